from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.layouts.plain import Plain
from ckptsync.model.step import Shard
from ckptsync.testing.checkpoints import dcp_step, hf_step

PLAIN = Plain()
PREFIXES = [
    "checkpoint-",
    "ckpt_",
    "step-",
    "step_",
    "step",
    "iter_",
    "global_step_",
    "global_step",
    "epoch_",
    "epoch=",
]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step-20", 20),
        ("step_20", 20),
        ("iter_0000020", 20),
        ("global_step20", 20),
        ("global_step_20", 20),
        ("epoch_3", 3),
        ("tmp-checkpoint-500", None),
        ("checkpoint-500.partial", None),
        ("iter_0000010.tmp", None),
        ("tmp_step_5", None),
        ("old_step_5", None),
        ("step-", None),
        ("latest", None),
        ("500", None),
        ("step-٣", None),
    ],
)
def test_what_counts_as_a_step_directory(name, step):
    assert PLAIN.step_of(name) == step


@pytest.mark.parametrize(
    ("names", "next_name", "step", "foreign"),
    [
        (["iter_0000020", "iter_0000040"], "iter_0000060", 60, "iter_60"),
        (["iter_0000020"], "iter_10000000", 10_000_000, "iter_010000000"),
        (["checkpoint-500"], "checkpoint-1000", 1000, "checkpoint-01000"),
        (["global_step10", "zero_to_fp32.py"], "global_step20", 20, "global_step_20"),
        (["step_9900", "step_10000", "epoch_1"], "step_7", 7, "epoch_1"),
        (["step_100", "step_200", "epoch_1"], "step_300", 300, "epoch_1"),
        (["epoch_1", "step_10"], "step_20", 20, "epoch_1"),
    ],
)
def test_what_another_pattern_would_name_is_no_step(names, next_name, step, foreign):
    layout = Plain.for_names(names)
    assert layout.step_of(next_name) == step
    assert layout.step_of(foreign) is None


@pytest.mark.parametrize("names", [["junk"], []])
def test_where_no_pattern_is_in_use_every_known_one_is_read(names):
    layout = Plain.for_names(names)
    assert (layout.step_of("step-3"), layout.step_of("iter_0000003")) == (3, 3)


@given(
    st.sampled_from(PREFIXES),
    st.integers(0, 8),
    st.sets(st.integers(0, 10**6), min_size=1, max_size=8),
)
def test_every_name_of_the_pattern_in_use_is_read(prefix, width, steps):
    names = [f"{prefix}{step:0{width}d}" for step in steps]
    layout = Plain.for_names(names)
    assert [layout.step_of(name) for name in names] == list(steps)


def test_steps_are_ordered_as_numbers():
    names = [f"checkpoint-{n}" for n in (9, 10, 99, 100, 9900, 10000)]
    assert sorted(sorted(names), key=Plain.for_names(names).step_of) == names


@pytest.mark.parametrize(
    "path",
    [
        "model.safetensors.tmp",
        ".tmpAb12Cd",
        "a/.metadata.tmp",
        "checkpoint-is-incomplete.txt",
        "x-unfinished",
        "a.tmp/b",
    ],
)
def test_temporary_and_sentinel_files(path):
    assert PLAIN.is_temporary(path)
    assert not PLAIN.recognise([path])


@pytest.mark.parametrize(
    ("path", "shard"),
    [
        ("__3_1.distcp", Shard("", "__*_*.distcp", 3)),
        ("rng_state_3.pth", Shard("", "rng_state_*.pth", 3)),
        (
            "bf16_zero_pp_rank_8_mp_rank_00_optim_states.pt",
            Shard("", "bf*_zero_pp_rank_*_mp_rank_*_optim_states.pt", 8),
        ),
        ("global_step20/mp_rank_01_model_states.pt", Shard("global_step*", "mp_rank_*_model_states.pt", 1)),
        ("model-00002-of-00003.safetensors", Shard("", "model-*-of-*.safetensors", 2)),
        ("optimizer.pt", Shard("", "optimizer.pt", 0)),
        ("config.json", None),
        ("zero_to_fp32.py", None),
        (".metadata", None),
    ],
)
def test_shards_of_one_step_compare_with_those_of_the_next(path, shard):
    assert PLAIN.shard(path) == shard


def test_a_hugging_face_step_ends_with_its_state(tmp_path, sizes_of):
    step = tmp_path / "checkpoint-100"
    verdicts = []
    hf_step(tmp_path, 100, shards=2, n=64, pause=lambda _: verdicts.append(bool(PLAIN.missing(sizes_of(step)))))
    arguments = next(i for i, path in enumerate(order_of(tmp_path / "again")) if path.endswith("training_args.bin"))
    assert all(verdicts[arguments:-1])
    assert not verdicts[-1]
    assert PLAIN.closing(sizes_of(step)) == {"trainer_state.json"}


def order_of(root):
    order = []
    hf_step(root, 100, shards=2, n=64, pause=order.append)
    return order


def test_a_hugging_face_step_without_its_state_is_not_whole(tmp_path, sizes_of, faults):
    step = hf_step(tmp_path, 600, n=64)
    (step / "trainer_state.json").unlink()
    assert faults(PLAIN.missing(sizes_of(step))) == [("trainer_state.json", "missing")]
    assert faults(PLAIN.missing_here(sizes_of(step), {})) == [("trainer_state.json", "missing")]


def test_a_node_with_only_rng_states_lacks_nothing_here(tmp_path, sizes_of):
    step = hf_step(tmp_path, 600, world=4, ranks=[2, 3], n=64)
    assert sorted(sizes_of(step)) == ["rng_state_2.pth", "rng_state_3.pth"]
    assert PLAIN.missing_here(sizes_of(step), {}) == ()
    assert PLAIN.missing(sizes_of(step))


def test_dcp_needs_its_metadata_on_the_coordinators_node(tmp_path, sizes_of, faults):
    first = dcp_step(tmp_path / "n0", 10, ranks=[0], n=64)
    second = dcp_step(tmp_path / "n1", 10, ranks=[1], n=64)
    assert PLAIN.missing(sizes_of(first, second)) == ()
    assert PLAIN.closing(sizes_of(first)) == {".metadata"}
    assert PLAIN.missing_here(sizes_of(second), {}) == ()
    assert faults(PLAIN.missing(sizes_of(second))) == [(".metadata", "missing")]
    (first / ".metadata").unlink()
    assert faults(PLAIN.missing_here(sizes_of(first), {})) == [(".metadata", "missing")]


def test_an_unknown_trainer_is_judged_by_its_files_alone():
    assert PLAIN.missing({"weights/model.pt": 9}) == PLAIN.missing_here({"weights/model.pt": 9}, {}) == ()
    assert PLAIN.closing(["weights/model.pt"]) == frozenset()
    assert not PLAIN.has_barrier(["weights/model.pt"])
    assert PLAIN.pointer == "state_dir"


def test_a_directory_without_files_is_a_husk_and_never_whole(faults):
    assert PLAIN.is_husk([])
    assert faults(PLAIN.missing({})) == [("", "missing")]
