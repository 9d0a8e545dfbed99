"""The check `parallelism`, on steps as verl writes them."""

from __future__ import annotations

import json

import pytest
from resuming import ACTOR, ROLLOUT, context_of, now, then

from ckptsync.resume.checks.parallelism import check
from ckptsync.testing.checkpoints import layered_step, megatron_v2_step, verl_sft_step, verl_step

MEGATRON = f"{ACTOR}.megatron"
SIZE = {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 2}


@pytest.fixture
def step(tmp_path):
    return verl_step(tmp_path / "out", 10, world=4)


def test_as_many_ranks_as_the_shards_names_say_pass(tmp_path, step):
    outcome = check(context_of(tmp_path, step=step, now=now({**SIZE, f"{ACTOR}.strategy": "fsdp"})))
    assert outcome.status == "pass"
    assert "world size 4 (actor/" in outcome.message
    assert "FSDP version 1" in outcome.message


@pytest.mark.parametrize(
    ("nodes", "gpus", "add"),
    [
        (1, 2, "add trainer.nnodes=2"),
        (3, 2, "add trainer.nnodes=2"),
        (1, 8, "add trainer.n_gpus_per_node=4"),
        (3, 8, "add trainer.nnodes=1 trainer.n_gpus_per_node=4"),
    ],
)
def test_another_world_size_fails_where_a_rank_reads_only_its_own_file(tmp_path, step, nodes, gpus, add):
    start = now({"trainer.nnodes": nodes, "trainer.n_gpus_per_node": gpus})
    outcome = check(context_of(tmp_path, step=step, now=start))
    assert outcome.status == "fail"
    assert (
        f"4 ranks wrote the step (actor/optim_world_size_4_rank_3.pt), the start has {nodes * gpus}" in outcome.message
    )
    assert outcome.remedy == add


def test_the_originals_own_numbers_are_the_remedy_where_they_are_known(tmp_path, step):
    start = now({"trainer.nnodes": 2, "trainer.n_gpus_per_node": 1})
    outcome = check(context_of(tmp_path, step=step, then=then(SIZE), now=start))
    assert (outcome.status, outcome.remedy) == ("fail", "add trainer.n_gpus_per_node=2")


def test_a_critics_settings_count_only_where_there_is_one(tmp_path, step):
    before, after = {**SIZE, "critic.strategy": "fsdp"}, {**SIZE, "critic.strategy": "fsdp2"}
    assert check(context_of(tmp_path, step=step, then=then(before), now=now(after))).status == "pass"
    step = verl_step(tmp_path / "out", 20, world=4, roles=("actor", "critic"))
    assert check(context_of(tmp_path, step=step, then=then(before), now=now(after))).status == "fail"


def test_the_same_ranks_on_other_nodes_are_a_warning(tmp_path, step):
    start = now({"trainer.nnodes": 1, "trainer.n_gpus_per_node": 4})
    outcome = check(context_of(tmp_path, step=step, then=then(SIZE), now=start))
    assert outcome.status == "warn"
    assert outcome.remedy == "add trainer.nnodes=2 trainer.n_gpus_per_node=2"


def test_fsdp_2_cannot_read_what_fsdp_1_wrote(tmp_path, step):
    context = context_of(tmp_path, step=step, now=now({**SIZE, f"{ACTOR}.strategy": "fsdp2"}))
    outcome = check(context)
    assert (outcome.status, outcome.remedy) == ("fail", f"add {ACTOR}.strategy=fsdp")
    (step / "actor" / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 4}))
    assert check(context).status == "pass"


@pytest.mark.parametrize(
    ("name", "before", "after", "status"),
    [
        (f"{ACTOR}.fsdp_config.fsdp_size", -1, 2, "fail"),
        (f"{ACTOR}.fsdp_config.model_dtype", "fp32", "bf16", "warn"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", 1, 2, "warn"),
        (f"{ROLLOUT}.tensor_model_parallel_size", 2, 4, "warn"),
        (f"{ROLLOUT}.pipeline_model_parallel_size", 1, 2, "warn"),
        (f"{ACTOR}.fsdp_config.optimizer_offload", False, True, "pass"),
    ],
)
def test_how_the_parameters_are_cut_decides_what_else_changed_is_told(tmp_path, step, name, before, after, status):
    context = context_of(tmp_path, step=step, then=then({**SIZE, name: before}), now=now({**SIZE, name: after}))
    outcome = check(context)
    assert outcome.status == status
    assert name in outcome.message


@pytest.mark.parametrize("reshardable", [False, True])
def test_megatrons_sizes_may_change_only_if_its_optimizer_was_saved_for_that(tmp_path, reshardable):
    step = megatron_v2_step(tmp_path / "out", 10, world=4)
    before = {
        **SIZE,
        f"{MEGATRON}.tensor_model_parallel_size": 2,
        f"{MEGATRON}.dist_ckpt_optim_fully_reshardable": reshardable,
    }
    after = {**before, f"{MEGATRON}.tensor_model_parallel_size": 4}
    outcome = check(context_of(tmp_path, step=step, then=then(before), now=now(after)))
    assert outcome.status == ("warn" if reshardable else "fail")
    assert outcome.remedy == f"add {MEGATRON}.tensor_model_parallel_size=2"


def test_megatron_is_laid_out_anew_for_another_number_of_ranks(tmp_path):
    step = megatron_v2_step(tmp_path / "out", 10, world=4)
    start = {"trainer.nnodes": 4, "trainer.n_gpus_per_node": 2}
    outcome = check(context_of(tmp_path, step=step, now=now(start)))
    assert outcome.status == "warn"
    assert "4 ranks wrote the step (actor/ckpt_contents.json), the start has 8" in outcome.message


def test_sft_and_the_configured_world_size(tmp_path):
    step = verl_sft_step(tmp_path / "out", 10, world=2)
    assert check(context_of(tmp_path, step=step, more="[pull]\nworld_size = 2")).status == "pass"
    assert check(context_of(tmp_path, step=step, more="[pull]\nworld_size = 4")).status == "fail"


def test_a_start_of_unknown_size_is_skipped(tmp_path, step):
    outcome = check(context_of(tmp_path, step=step, now=now({"trainer.nnodes": 2})))
    assert outcome.status == "skip"
    assert "the number of ranks is not known for the start" in outcome.message
    assert "[pull] world_size" in outcome.remedy


def test_a_step_that_tells_no_world_size_needs_a_record(tmp_path):
    step = layered_step(tmp_path / "out", 10)
    outcome = check(context_of(tmp_path, step=step, now=now(SIZE)))
    assert outcome.status == "skip"
    assert "neither the step nor a record" in outcome.message
    assert check(context_of(tmp_path, step=step, then=then(SIZE), now=now(SIZE))).status == "pass"
    outcome = check(context_of(tmp_path, step=step, then=then(SIZE), now=now({**SIZE, "trainer.nnodes": 1})))
    assert outcome.status == "warn"
    assert "4 ranks wrote the step (the launch record of attempt a-1), the start has 2" in outcome.message
