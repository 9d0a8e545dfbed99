"""A writer that goes silent for longer than `settle`, anywhere in a save: nothing is taken before it is done.

`LocalSteps` is driven with a made-up monotonic time: between any two files of a save it is told that an hour of
silence has passed.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptsync.disk.saves import Broken, Saves
from ckptsync.layouts import registry
from ckptsync.model.step import Level, LocalState
from ckptsync.sync.local import LocalSteps
from ckptsync.sync.setup import DeepLimits, Identity, Setup
from ckptsync.testing.checkpoints import (
    age,
    hf_step,
    layered_step,
    megatron_v1_step,
    megatron_v2_step,
    verl_sft_step,
    verl_step,
)

SETTLE_S = 10.0
HOUR_S = 3600.0


class Watched:
    """A directory, and what one node's daemon would say of it as time goes by."""

    def __init__(self, root, layout, *, alone=True):
        self.root, self.now = root / "ckpt", 0.0
        self.root.mkdir()
        setup = Setup(
            output_dir=str(self.root),
            layout=registry.load(layout),
            identity=Identity("r", "n0", "id"),
            level=Level.FULL,
            settle_s=SETTLE_S,
            window_ns=3600 * 10**9,
            deep=DeepLimits(60, 1 << 30),
            alone=alone,
        )
        self.steps = LocalSteps(setup, Saves(str(root / "state")), Broken(str(root / "state")))
        self.early = []

    def look(self):
        """One pass: look, and take what is complete."""
        views = self.steps.look(self.now)
        return {v.name: self.steps.take(v) if v.state is LocalState.COMPLETE else v for v in views}

    def quiet(self, seconds=HOUR_S):
        """Look, let time pass in silence, look again."""
        self.look()
        self.now += seconds
        return self.look()

    def state(self, step):
        return self.quiet()[step.name].state

    def watch(self, name):
        """A pause hook: after each file an hour of silence; what is verified then goes to `early`."""

        def pause(path):
            view = self.quiet().get(name)
            if view is not None and view.state is LocalState.VERIFIED:
                self.early.append(path)

        return pause


PPO = {
    "fsdp, actor and critic": lambda root, step, **o: verl_step(root, step, world=2, roles=("actor", "critic"), **o),
    "fsdp, with the model": lambda root, step, **o: verl_step(root, step, hf=True, **o),
    "megatron v1": lambda root, step, **o: megatron_v1_step(root, step, roles=("actor", "critic"), **o),
    "megatron v2": megatron_v2_step,
}


@pytest.mark.parametrize("kind", PPO)
def test_silence_anywhere_in_a_save_of_verl_ends_nothing_but_its_last_file(tmp_path, kind):
    seen = Watched(tmp_path, "verl")
    step = PPO[kind](seen.root, 20, tracker=False, pause=seen.watch("global_step_20"))
    assert seen.early == ["global_step_20/data.pt"]
    assert seen.state(step) is LocalState.VERIFIED


def test_silence_anywhere_in_a_layered_save_ends_nothing(tmp_path):
    seen = Watched(tmp_path, "verl_layered")
    layered_step(seen.root, 20, pause=seen.watch("step_20"))
    assert seen.early == ["step_20/trainer_state.json"]


def test_silence_anywhere_in_a_hugging_face_save_is_known_from_the_step_before(tmp_path):
    """The trainer vouches with `trainer_state.json` only on rank 0; the RNG states of the ranks come before it."""
    seen = Watched(tmp_path, "plain")
    first = hf_step(seen.root, 100, world=2, shards=2)
    assert seen.state(first) is LocalState.VERIFIED
    hf_step(seen.root, 200, world=2, shards=2, pause=seen.watch("checkpoint-200"))
    assert seen.early == ["checkpoint-200/trainer_state.json"]


def test_where_nothing_closes_the_roles_and_kinds_of_the_step_before_are_awaited(tmp_path):
    """A node without the driver: its share ends with no marker at all, and the critic comes after a long silence."""
    seen = Watched(tmp_path, "verl", alone=False)
    share = {"world": 4, "ranks": [2, 3], "roles": ("actor", "critic"), "driver": False}
    first = verl_step(seen.root, 20, **share)
    assert seen.state(first) is LocalState.VERIFIED
    verl_step(seen.root, 40, **share, pause=seen.watch("global_step_40"))
    assert seen.early == ["global_step_40/critic/extra_state_world_size_4_rank_3.pt"]


def test_the_dataloaders_state_of_a_step_of_sft_is_awaited(tmp_path):
    seen = Watched(tmp_path, "verl")
    verl_sft_step(seen.root, 20, tracker=False, pause=seen.watch("global_step_20"))
    assert seen.early == ["global_step_20/data_0.pt"]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize(
    "path", ["actor/model_world_size_1_rank_0.pt", "actor/huggingface/config.json", "data.pt", "actor/fsdp_config.json"]
)
def test_a_half_written_file_is_never_taken_and_its_end_is(tmp_path, path, share):
    """All names are there, one file is cut; what is found broken then is looked at again when it has changed."""
    seen = Watched(tmp_path, "verl")
    step = verl_step(seen.root, 20)
    file = step / path
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    assert seen.state(step) in (LocalState.BROKEN, LocalState.GROWING)
    assert seen.state(step) is not LocalState.VERIFIED
    file.write_bytes(data)
    assert seen.state(step) is LocalState.VERIFIED


def test_a_config_that_is_written_twice_in_one_save_is_taken_as_it_ends(tmp_path):
    seen = Watched(tmp_path, "verl")
    step = verl_step(seen.root, 20, hf=True)
    config = step / "actor/huggingface/config.json"
    assert seen.state(step) is LocalState.VERIFIED
    config.write_text('{"model_type": "qwen2", "second": true}')
    assert seen.look()[step.name].state is LocalState.SETTLING
    taken = seen.quiet()[step.name]
    assert taken.state is LocalState.VERIFIED
    entry = next(f for f in taken.save.part.files if f.path == "actor/huggingface/config.json")
    assert entry.size == config.stat().st_size


@pytest.mark.parametrize("times", ["moved", "set back"])
def test_a_file_rewritten_after_it_was_quiet_is_taken_again(tmp_path, times):
    """Same size; even with the old mtime set back, the change time tells."""
    seen = Watched(tmp_path, "verl")
    step = verl_step(seen.root, 20)
    first = seen.quiet()[step.name].save
    file = step / "actor/model_world_size_1_rank_0.pt"
    before = file.stat()
    other = verl_step(tmp_path / "other", 20, seed=9) / "actor/model_world_size_1_rank_0.pt"
    with file.open("r+b") as target:
        target.write(other.read_bytes())
    if times == "set back":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert seen.look()[step.name].state is LocalState.SETTLING
    second = seen.quiet()[step.name].save
    assert second is not None
    assert [file.digest for file in second.part.files] != [file.digest for file in first.part.files]


@pytest.mark.parametrize("kind", PPO)
def test_a_save_into_the_same_directory_is_growing_until_it_is_closed_again(tmp_path, kind):
    seen = Watched(tmp_path, "verl")
    step = PPO[kind](seen.root, 20, tracker=False)
    age(step, 600)
    assert seen.state(step) is LocalState.VERIFIED
    PPO[kind](seen.root, 20, tracker=False, seed=1, pause=seen.watch("global_step_20"))
    assert seen.early == ["global_step_20/data.pt"]


WRITERS = {
    "verl": ("verl", "global_step_{}", lambda r, s, **o: verl_step(r, s, world=2, tracker=False, **o)),
    "verl critic": (
        "verl",
        "global_step_{}",
        lambda r, s, **o: verl_step(r, s, roles=("actor", "critic"), tracker=False, **o),
    ),
    "megatron": ("verl", "global_step_{}", lambda r, s, **o: megatron_v1_step(r, s, tracker=False, **o)),
    "layered": ("verl_layered", "step_{}", layered_step),
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(WRITERS)),
    silences=st.lists(st.sampled_from([0.0, 1.0, SETTLE_S - 0.1, SETTLE_S, HOUR_S]), min_size=1, max_size=8),
    order=st.lists(st.sampled_from([10, 20, 30]), min_size=1, max_size=3, unique=True),
)
def test_whatever_the_schedule_nothing_is_verified_while_the_writer_is_not_done(
    tmp_path_factory, kind, silences, order
):
    """Steps in any order, silences of any length between files: never VERIFIED early, always VERIFIED in the end."""
    layout, pattern, write = WRITERS[kind]
    seen = Watched(tmp_path_factory.mktemp("schedule"), layout)
    turn = 0
    for number in order:
        name, files = pattern.format(number), []

        def pause(path, name=name, files=files):
            nonlocal turn
            view = seen.quiet(silences[turn % len(silences)]).get(name)
            turn += 1
            files.append((path, view is not None and view.state is LocalState.VERIFIED))

        step = write(seen.root, number, pause=pause)
        assert not any(verified for _, verified in files[:-1]), files
        assert seen.state(step) is LocalState.VERIFIED
        age(step, 100 - turn / 10)  # saves of a real run lie apart
        seen.quiet()
