"""Is the step whole and undamaged, as far as this node's ranks load it?"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
import torch
from preflighting import fresh, prepared, verified

from ckptsync.actions.pull import PullOptions, pull_step
from ckptsync.actions.push import push_step
from ckptsync.model.step import Level
from ckptsync.resume.checks.integrity import check
from ckptsync.testing.checkpoints import (
    age,
    dcp_step,
    hf_step,
    layered_step,
    megatron_v2_step,
    verl_sft_step,
    verl_step,
)


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def outcome(tmp_path, *words, nodes=1, node=None, **options):
    context = prepared(node or fresh(tmp_path), *words, **options)
    return check(replace(context, nodes=nodes))


def flip(path, at=-2000):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    stat = path.stat()
    path.write_bytes(data)
    return stat


def test_no_step_is_skipped(out, tmp_path):
    found = outcome(tmp_path)
    assert (found.status, bool(found.remedy)) == ("skip", True)


@pytest.mark.parametrize("write", [verl_step, verl_sft_step, megatron_v2_step, layered_step, hf_step, dcp_step])
def test_whole_steps_pass_by_their_structure(out, tmp_path, write):
    write(out, 20)
    found = outcome(tmp_path)
    assert (found.status, "its structure was looked at" in found.message) == ("pass", True)
    assert outcome(tmp_path, level=Level.FULL).status == "pass"


def test_what_was_verified_counts_while_nothing_changed(out, tmp_path):
    step = verl_step(out, 20)
    verified(fresh(tmp_path))
    assert "verified (full), unchanged since" in outcome(tmp_path).message
    file = step / "actor/model_world_size_1_rank_0.pt"
    file.write_bytes(file.read_bytes()[:-200])
    found = outcome(tmp_path)
    assert (found.status, "model_world_size_1_rank_0.pt" in found.message) == ("fail", True)


def test_level_full_finds_what_structure_cannot(out, tmp_path):
    step = verl_step(out, 20, n=20_000)
    flip(step / "actor/model_world_size_1_rank_0.pt", at=10_000)
    assert outcome(tmp_path).status == "pass"
    found = outcome(tmp_path, level=Level.FULL)
    assert (found.status, "CRC32 differs" in found.message) == ("fail", True)


def test_level_full_compares_with_what_was_verified_where_a_file_has_no_sums(out, tmp_path):

    step = hf_step(out, 20)
    verified(fresh(tmp_path))
    stat = flip(step / "model.safetensors", at=-5)
    os.utime(step / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    context = prepared(fresh(tmp_path), level=Level.FULL)
    assert context.resumed.part is None, "its ctime has moved"
    node = fresh(tmp_path)
    save = node.saves.load()[0]
    found = check(replace(context, resumed=replace(context.resumed, part=save.part)))
    assert (found.status, "not those that were verified" in found.message) == ("fail", True)


def test_level_deep_finds_numbers_that_are_none(out, tmp_path):
    step = verl_step(out, 20)
    file = step / "actor/model_world_size_1_rank_0.pt"
    torch.save({"weight": torch.full((8,), float("nan"))}, file)
    assert outcome(tmp_path, level=Level.FULL).status == "pass"
    found = outcome(tmp_path, level=Level.DEEP)
    assert (found.status, "model_world_size_1_rank_0.pt" in found.message) == ("fail", True)


def test_what_a_full_verification_found_broken_stays_broken(out, tmp_path):
    step = verl_step(out, 20, n=20_000)
    flip(step / "actor/model_world_size_1_rank_0.pt", at=10_000)
    verified(fresh(tmp_path))
    context = prepared(fresh(tmp_path))
    found = check(context)
    assert (found.status, "CRC32 differs" in found.message) == ("fail", True)
    assert "no step can be resumed from" in found.remedy
    assert "--avoid 20" in check(replace(context, wanted=10)).remedy


def test_missing_ranks_and_a_missing_dataloader_fail_on_one_node(out, tmp_path):
    verl_step(out, 20, world=4, ranks=[0, 1])
    assert "ranks 2-3 of 4 are missing" in outcome(tmp_path).message
    (out / "global_step_20/data.pt").unlink()
    assert outcome(tmp_path).status == "fail"


def test_a_temporary_file_says_that_the_save_was_cut_short(out, tmp_path):
    step = hf_step(out, 20)
    (step / ".tmpAbCdEf").write_bytes(b"x")
    found = outcome(tmp_path)
    assert (found.status, "temporary" in found.message) == ("fail", True)


def test_a_husk_fails(out, tmp_path):

    age(verl_step(out, 10), 100)
    step = verl_step(out, 20)
    shutil.rmtree(step / "actor")
    found = outcome(tmp_path)
    assert (found.status, "deleted its shards" in found.message) == ("fail", True)


# -- layered


def test_layered_needs_its_five_files_and_a_readable_state(out, tmp_path):
    step = layered_step(out, 20)
    told = f"trainer.resume_from_checkpoint={step}"
    for name in ("actor/optimizer.pt", "actor/scheduler.pt", "ref/pytorch_model.bin", "actor/pytorch_model.bin"):
        data = (step / name).read_bytes()
        (step / name).unlink()
        found = outcome(tmp_path, told)
        assert (found.status, name in found.message) == ("fail", True)
        (step / name).write_bytes(data)
    assert outcome(tmp_path, told).status == "pass"
    (step / "trainer_state.json").write_text("{")
    assert "trainer_state.json" in outcome(tmp_path, told).message
    assert outcome(tmp_path, told).status == "fail"


def test_a_file_that_no_loader_of_layered_knows_is_named(out, tmp_path):
    (layered_step(out, 20) / "actor/notes.txt").write_text("x")
    found = outcome(tmp_path)
    assert (found.status, "actor/notes.txt" in found.message) == ("warn", True)


# -- several nodes


def test_an_fsdp_node_with_all_its_ranks_is_warned_that_ranks_move(out, tmp_path):
    verl_step(out, 20, world=4, ranks=[0, 1])
    found = outcome(tmp_path, nodes=2)
    assert (found.status, "only ranks 0-1 of 4 of step 20 are here" in found.message) == ("warn", True)


def test_an_fsdp_node_that_lacks_shards_of_its_ranks_fails(out, tmp_path):
    step = verl_step(out, 20, world=4, ranks=[0, 1])
    (step / "actor/optim_world_size_4_rank_1.pt").unlink()
    found = outcome(tmp_path, nodes=2)
    assert (found.status, "will run 2 ranks, and has only the shards of rank 0 of 4" in found.message) == ("fail", True)


def test_the_settings_tell_how_many_ranks_a_node_runs(out, tmp_path):
    verl_step(out, 20, world=4, ranks=[0, 1])
    words = (f"trainer.default_local_dir={out}", "trainer.n_gpus_per_node=4")
    assert "this node will run 4 ranks" in outcome(tmp_path, *words, nodes=2).message


def test_a_node_without_the_dataloaders_state_fails_since_the_driver_may_run_here(out, tmp_path):
    verl_step(out, 20, world=4, ranks=[2, 3], driver=False)
    (out / "latest_checkpointed_iteration.txt").write_text("20")
    found = outcome(tmp_path, nodes=2)
    assert (found.status, "data.pt" in found.message) == ("fail", True)


@pytest.mark.parametrize("write", [megatron_v2_step, dcp_step])
def test_loaders_that_read_all_ranks_need_them_here_on_every_node(out, tmp_path, write):
    write(out, 20, world=4, ranks=[0, 1])
    found = outcome(tmp_path, nodes=2)
    assert (found.status, "this node's loader needs it all" in found.message) == ("fail", True)


def test_ranks_that_were_left_out_on_purpose_are_no_warning(out, tmp_path):
    verl_step(out, 20, world=4)
    node = fresh(tmp_path)
    verified(node)
    push_step(node, 20, progress=lambda _: None)

    shutil.rmtree(out / "global_step_20")
    node = fresh(tmp_path)
    with pull_step(
        node,
        step=None,
        max_step=None,
        dest=None,
        keep_newer=False,
        say=lambda _: None,
        options=PullOptions(scope="0-1"),
    ) as planned:
        planned.execute(lambda _: None)
    found = outcome(tmp_path, nodes=2)
    assert (found.status, "as --scope or --ranks asked for" in found.message) == ("pass", True)
