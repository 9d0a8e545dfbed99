"""Random generators, the learning rate's schedule, and the engine's state: what comes back with the step."""

from __future__ import annotations

import io
import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from preflighting import fresh, prepared, verified
from resuming import now

from ckptsync.actions.push import push_step
from ckptsync.resume.checks import rng, rollout_state, scheduler
from ckptsync.testing.checkpoints import dcp_step, hf_step, layered_step, megatron_v2_step, verl_sft_step, verl_step


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def extra(step, rank=0, world=1):
    return step / f"actor/extra_state_world_size_{world}_rank_{rank}.pt"


def rewrite(path, change):
    """Load a file with torch, change what it holds, and save it again."""
    content = torch.load(path, weights_only=False)
    change(content)
    torch.save(content, path)


def both(tmp_path, *words):
    context = prepared(fresh(tmp_path), *words)
    return rng.check(context), scheduler.check(context)


@pytest.mark.parametrize("check", [rng.check, scheduler.check, rollout_state.check])
def test_no_step_is_skipped(out, tmp_path, check):
    found = check(prepared(fresh(tmp_path)))
    assert (found.status, bool(found.remedy)) == ("skip", True)


@pytest.mark.parametrize("real", [False, True], ids=["ours", "torch"])
@pytest.mark.parametrize(
    ("write", "world"), [(verl_step, 4), (verl_sft_step, 2), (hf_step, 4), (hf_step, 1), (layered_step, None)]
)
def test_whole_states_pass(out, tmp_path, write, world, real):
    write(out, 20, real=real, **({"world": world} if world else {}))
    assert [found.status for found in both(tmp_path)] == ["pass", "pass"]


@pytest.mark.parametrize("write", [megatron_v2_step, dcp_step])
def test_states_inside_distributed_checkpoints_are_skipped_and_say_so(out, tmp_path, write):
    write(out, 20)
    for found in both(tmp_path):
        assert (found.status, "distributed checkpoint" in found.message, bool(found.remedy)) == ("skip", True, True)


def test_a_layout_of_which_nothing_is_known_is_skipped(out, tmp_path):
    (out / "ckpt-5").mkdir()
    (out / "ckpt-5/model.bin").write_bytes(b"opaque")
    assert [found.status for found in both(tmp_path)] == ["skip", "skip"]


# -- verl


def test_a_rank_without_its_extra_state_fails(out, tmp_path):
    step = verl_step(out, 20, world=4)
    extra(step, 2, 4).unlink()
    random, _ = both(tmp_path)
    assert (random.status, "actor: rank 2 of 4" in random.message) == ("fail", True)


def test_a_step_without_extra_states_fails_unless_the_start_leaves_them_out(out, tmp_path):
    verl_step(out, 20, kinds=("model", "optim"))
    assert [found.status for found in both(tmp_path)] == ["fail", "fail"]
    name = "actor_rollout_ref.actor.checkpoint.load_contents"
    context = prepared(fresh(tmp_path))
    found = rng.check(replace(context, now=now({name: ["model", "optimizer"]})))
    assert (found.status, name in found.message) == ("warn", True)
    assert rng.check(replace(context, now=now({name: ["model", "extra"]}))).status == "fail"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.pop("rng"), "it has no rng states"),
        (lambda d: d["rng"].pop("numpy"), "it has no state of numpy"),
        (lambda d: d["rng"].update(cpu=torch.zeros(0, dtype=torch.uint8)), "the state of cpu has no bytes"),
        (lambda d: d["rng"].update(cpu="x"), "the state of cpu is no tensor"),
        (lambda d: d["rng"].update(random=(3, (1, 2), None)), "the state of random is not what"),
        (lambda d: d["rng"].update(numpy=("MT19937", np.zeros(0, "u4"), 0, 0, 0.0)), "the state of numpy has no words"),
        (lambda d: d["rng"].update(numpy=None), "the state of numpy is not what"),
        (lambda d: d["rng"].update(cuda=torch.zeros(0)), "the state of cuda has no bytes"),
    ],
)
def test_states_that_hold_less_than_they_should_fail(out, tmp_path, change, why):
    rewrite(extra(verl_step(out, 20)), change)
    found, _ = both(tmp_path)
    assert found.status == "fail"
    assert why in found.message


def test_states_without_a_device_are_a_warning(out, tmp_path):
    rewrite(extra(verl_step(out, 20)), lambda d: d["rng"].pop("cuda"))
    found, _ = both(tmp_path)
    assert (found.status, "no device's generator" in found.message) == ("warn", True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.pop("lr_scheduler"), "it has no lr_scheduler"),
        (lambda d: d.update(lr_scheduler=None), "the schedule is None"),
        (lambda d: d.update(lr_scheduler={}), "the schedule is empty"),
    ],
)
def test_schedules_that_are_none_or_empty_fail(out, tmp_path, change, why):
    rewrite(extra(verl_step(out, 20)), change)
    _, found = both(tmp_path)
    assert (found.status, why in found.message) == ("fail", True)


def test_files_that_cannot_be_looked_into_are_skipped_and_say_which(out, tmp_path):
    step = verl_step(out, 20, world=2)
    buffer = io.BytesIO()
    torch.save({"rng": {}}, buffer, _use_new_zipfile_serialization=False)
    extra(step, 1, 2).write_bytes(buffer.getvalue())
    for found in both(tmp_path):
        assert (found.status, "rank_1.pt is not in torch's zip format" in found.message) == ("skip", True)


def test_a_hostile_state_is_not_executed(out, tmp_path):
    step, mark = verl_step(out, 20), tmp_path / "mark"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    torch.save({"rng": {"cpu": Evil()}}, extra(step), pickle_module=pickle)
    assert [found.status for found in both(tmp_path)] == ["fail", "fail"]
    assert not mark.exists()


# -- Hugging Face


def test_a_gap_in_the_ranks_of_hugging_face_fails(out, tmp_path):
    (hf_step(out, 20, world=4) / "rng_state_1.pth").unlink()
    found, _ = both(tmp_path)
    assert (found.status, "ranks 1 is missing" in found.message) == ("fail", True)


def test_a_missing_schedule_of_hugging_face_fails(out, tmp_path):
    (hf_step(out, 20) / "scheduler.pt").unlink()
    _, found = both(tmp_path)
    assert (found.status, "scheduler.pt is missing" in found.message) == ("fail", True)


# -- verl_layered


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda s: s["rng_states"].pop("torch"), "fail"),
        (lambda s: s["rng_states"].update(numpy="???"), "fail"),
        (lambda s: s.pop("rng_states"), "fail"),
        (lambda s: s.pop("epoch"), "pass"),
    ],
)
def test_layered_has_its_states_in_the_trainers(out, tmp_path, change, status):
    step = layered_step(out, 20)
    state = json.loads((step / "trainer_state.json").read_text())
    change(state)
    (step / "trainer_state.json").write_text(json.dumps(state))
    found, _ = both(tmp_path, f"trainer.resume_from_checkpoint={step}")
    assert found.status == status


def test_a_trainer_state_that_is_no_json_is_skipped_here(out, tmp_path):
    step = layered_step(out, 20)
    (step / "trainer_state.json").write_text("{")
    found, _ = both(tmp_path, f"trainer.resume_from_checkpoint={step}")
    assert (found.status, "integrity" in found.remedy) == ("skip", True)


def test_the_schedule_of_layered_must_be_there(out, tmp_path):
    step = layered_step(out, 20)
    told = f"trainer.resume_from_checkpoint={step}"
    torch.save({}, step / "actor/scheduler.pt")
    assert both(tmp_path, told)[1].message == "actor/scheduler.pt: the schedule is empty"
    (step / "actor/scheduler.pt").unlink()
    assert both(tmp_path, told)[1].status == "fail"


# -- the engine's state


def test_stale_engine_state_fails_is_left_out_or_is_deleted(out, tmp_path):
    step = layered_step(out, 20)
    told = f"trainer.resume_from_checkpoint={step}"
    found = rollout_state.check(prepared(fresh(tmp_path), told))
    assert (found.status, "rollout/engine_state.json is stale" in found.message) == ("fail", True)
    assert rollout_state.check(prepared(fresh(tmp_path))).status == "warn"
    left_out = rollout_state.check(prepared(fresh(tmp_path), told, "--no-rollout-state-restore"))
    assert left_out.status == "pass"
    assert (step / "rollout/engine_state.json").exists()
    said = []
    fixed = rollout_state.check(prepared(fresh(tmp_path), told, fix=True, said=said))
    assert (fixed.status, said) == ("pass", [f"{step}/rollout is deleted"])
    assert not (step / "rollout").exists()
    assert (step / "actor/optimizer.pt").exists()
    assert rollout_state.check(prepared(fresh(tmp_path), told)).message == "step 20 has no rollout/"


def test_a_committed_step_without_its_engine_state_is_still_the_wanted_one(out, tmp_path):
    step = layered_step(out, 20)
    (step / "rollout/cache.bin").write_bytes(b"x")
    verified(fresh(tmp_path))
    push_step(fresh(tmp_path), 20, progress=lambda _: None)
    told = f"trainer.resume_from_checkpoint={step}"
    rollout_state.check(prepared(fresh(tmp_path), told, fix=True))
    context = prepared(fresh(tmp_path), told)
    assert (context.wanted, context.wanted_path) == (20, str(step))


def test_layouts_that_save_no_engine_state_pass(out, tmp_path):
    verl_step(out, 20)
    assert rollout_state.check(prepared(fresh(tmp_path))).status == "pass"
