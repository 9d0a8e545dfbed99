"""What a step directory is, by names and times: made by the real generators, dated to the second, and assessed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from assessing import NS, VERL, WINDOW, around_of, assessed, at_ns, codes_of, date_files

from ckptsync.disk.assess import Around, assess, seen_in
from ckptsync.disk.scan import list_step
from ckptsync.layouts.plain import Plain
from ckptsync.layouts.verl_layered import VerlLayered
from ckptsync.model.step import LocalState, Problem
from ckptsync.testing.checkpoints import layered_step, verl_sft_step, verl_step


@pytest.fixture
def whole(tmp_path):
    """A PPO save of two ranks, closed."""
    directory = verl_step(tmp_path / "out", 20, world=2, tracker=False)
    date_files(directory, 0)
    date_files(directory, 5, "data.pt")
    return directory


def test_a_closed_save_is_complete(whole):
    verdict = assessed(whole)
    assert (verdict.state, verdict.problems, verdict.closed) == (LocalState.COMPLETE, (), True)
    assert verdict.end_ns == at_ns(5)
    assert list(verdict.paths) == sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())


@pytest.mark.parametrize("gone", ["optim_world_size_2_rank_1", "fsdp_config.json", "huggingface/config.json"])
def test_a_save_that_lacks_something_of_its_own_grows_until_a_later_step_begins(whole, gone):
    for path in [path for path in whole.rglob("*") if gone in str(path)]:
        path.unlink()
    verdict = assessed(whole)
    assert verdict.state is LocalState.GROWING
    assert [code for _, code in codes_of(verdict)] == ["missing"]
    assert assessed(whole, Around(later_begun=True)).state is LocalState.BROKEN


def test_a_share_without_the_drivers_file_is_complete_but_not_closed(whole):
    (whole / "data.pt").unlink()
    verdict = assessed(whole)
    assert (verdict.state, verdict.closed) == (LocalState.COMPLETE, False)
    assert verdict.end_ns == at_ns(0)


@pytest.mark.parametrize("later", [False, True])
def test_a_temporary_file_means_that_the_save_is_not_over(whole, later):
    (whole / "actor/huggingface/.tmpAb12Cd").write_bytes(b"x")
    verdict = assessed(whole, Around(later_begun=later))
    assert codes_of(verdict) == [("actor/huggingface/.tmpAb12Cd", "temporary")]
    assert verdict.state is (LocalState.BROKEN if later else LocalState.GROWING)


def test_a_temporary_file_of_a_save_that_was_killed_does_not_block_the_next_one(whole):
    leftover = whole / "actor/huggingface/.tmpAb12Cd"
    leftover.write_bytes(b"x")
    date_files(whole, -500, ".tmp")
    assert assessed(whole).state is LocalState.GROWING  # nothing tells when the save before ended
    verdict = assessed(whole, Around(previous_ns=at_ns(-100)))
    assert verdict.state is LocalState.COMPLETE
    assert "actor/huggingface/.tmpAb12Cd" not in verdict.paths


def test_a_shard_newer_than_the_closing_file_means_that_another_save_has_begun(whole):
    date_files(whole, 60, "model_world_size_2_rank_1")
    verdict = assessed(whole)
    assert codes_of(verdict) == [("actor/model_world_size_2_rank_1.pt", "late")]
    assert (verdict.state, verdict.closed) == (LocalState.GROWING, False)
    assert assessed(whole, Around(later_begun=True)).state is LocalState.BROKEN


def test_a_tracker_that_names_the_step_closes_it(whole):
    """fully_async: data.pt came first."""
    date_files(whole, 60, "rank_")
    assert assessed(whole).state is LocalState.GROWING
    verdict = assessed(whole, Around(vouched_ns=at_ns(61)))
    assert (verdict.state, verdict.closed, verdict.end_ns) == (LocalState.COMPLETE, True, at_ns(61))


# -- husks


def test_what_retention_leaves_is_pruned_where_this_node_had_shards(whole):
    shutil.rmtree(whole / "actor")
    assert assessed(whole, Around(had_roles=True)).state is LocalState.PRUNED
    assert assessed(whole, Around(had_roles=True)).problems == ()


def test_the_same_files_are_the_drivers_part_where_it_never_had(whole):
    shutil.rmtree(whole / "actor")
    verdict = assessed(whole)
    assert (verdict.state, verdict.paths, verdict.closed) == (LocalState.COMPLETE, ("data.pt",), True)


def test_dozens_of_husks_beside_real_steps_are_pruned(tmp_path):
    for step in range(10, 110, 10):
        directory = verl_step(tmp_path, step, tracker=False)
        date_files(directory, step)
        if step < 90:
            shutil.rmtree(directory / "actor")
    states = {
        path.name: assessed(path, around_of(tmp_path, path.name)).state for path in tmp_path.iterdir() if path.is_dir()
    }
    assert [states[f"global_step_{step}"] for step in range(10, 90, 10)] == [LocalState.PRUNED] * 8
    assert states["global_step_90"] is states["global_step_100"] is LocalState.COMPLETE


def test_an_empty_directory_may_still_grow_until_a_later_step_begins(tmp_path):
    empty = tmp_path / "global_step_20"
    (empty / "actor").mkdir(parents=True)
    assert codes_of(assessed(empty)) == [("", "empty")]
    assert assessed(empty).state is LocalState.GROWING
    assert assessed(empty, Around(later_begun=True)).state is LocalState.PRUNED


def test_files_that_no_loader_reads_do_not_make_a_step(tmp_path):
    directory = tmp_path / "global_step_20"
    (directory / "actor").mkdir(parents=True)
    (directory / "actor" / "mcore_batch_0_1.safetensors").write_bytes(b"x")
    assert assessed(directory).state is LocalState.GROWING
    assert assessed(directory).paths == ()


# -- habits of the node


def test_a_critic_that_the_node_wrote_last_time_is_awaited(tmp_path):
    """verl saves the actor, then the critic: a pause between them proves nothing."""
    before = verl_step(tmp_path, 10, roles=("actor", "critic"), tracker=False)
    seen = seen_in([str(p.relative_to(before)) for p in before.rglob("*.pt")], VERL)
    assert seen == {(role, kind): 1 for role in ("actor", "critic") for kind in ("model", "optim", "extra_state")}
    directory = verl_step(tmp_path, 20, driver=False)
    verdict = assessed(directory, Around(seen=seen))
    assert verdict.state is LocalState.GROWING
    assert {path for path, code in codes_of(verdict) if code == "missing"} == {"critic"}
    assert assessed(directory).state is LocalState.COMPLETE  # the control: nothing was seen
    verl_step(tmp_path, 20, roles=("critic",), driver=False)
    assert assessed(directory, Around(seen=seen)).state is LocalState.COMPLETE


def test_a_kind_that_the_node_wrote_last_time_is_awaited(tmp_path):
    directory = verl_step(tmp_path, 20, kinds=("model",), driver=False)
    verdict = assessed(directory, Around(seen={("actor", "model"): 1, ("actor", "optim"): 1}))
    assert [problem.path for problem in verdict.problems] == ["actor"]
    assert "optim" in verdict.problems[0].message


@pytest.mark.parametrize("over", ["closed", "later step"])
def test_a_save_that_is_over_no_longer_waits_for_habits(tmp_path, over):
    seen = {("critic", "model"): 1}
    directory = verl_step(tmp_path, 20, driver=over == "closed", tracker=False)
    assert assessed(directory, Around(seen=seen, later_begun=over != "closed")).state is LocalState.COMPLETE
    if over != "closed":
        assert assessed(directory, Around(seen=seen)).state is LocalState.GROWING


def test_a_closing_file_without_a_barrier_before_it_does_not_end_the_waiting(tmp_path):
    """SFT: this rank's data_0.pt says nothing about the other rank of this node."""
    directory = verl_sft_step(tmp_path, 20, world=2, ranks=[0], tracker=False)
    seen = {("", kind): 2 for kind in ("model", "optim", "extra_state")}
    assert assessed(directory, Around(seen=seen)).state is LocalState.GROWING
    assert assessed(directory).state is LocalState.COMPLETE


def test_closed_only_by_an_old_closing_file_does_not_end_the_waiting(whole):
    """A re-save in place: the old data.pt is there, the actor is new, the critic still comes."""
    date_files(whole, 500, "actor")
    verdict = assessed(whole, Around(seen={("critic", "model"): 1}, previous_ns=at_ns(100)))
    assert {code for _, code in codes_of(verdict)} >= {"late", "missing"}


# -- stale shards


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (Around(previous_ns=at_ns(-100)), "older than the end of the previous save"),
        (Around(), "commit.window"),
        (Around(previous_ns=at_ns(900)), "commit.window"),  # not before this save: it tells nothing
    ],
)
def test_a_stale_shard_that_is_missed_is_named_with_the_reason(whole, around, reason):
    name = "actor/optim_world_size_2_rank_1.pt"
    date_files(whole, -WINDOW - 60, "optim_world_size_2_rank_1")
    verdict = assessed(whole, around)
    stale = [problem for problem in verdict.problems if problem.code == "stale"]
    assert [problem.path for problem in stale] == [name]
    assert reason in stale[0].message
    assert name not in verdict.paths
    assert verdict.state is LocalState.GROWING
    if reason == "commit.window":
        assert "raise that key" in stale[0].message
        assert assessed(whole, around, window=WINDOW + 120).state is LocalState.COMPLETE


def test_stale_shards_of_a_role_that_is_gone_are_left_out_without_a_word(tmp_path):
    """A roll-back wrote the number again, without its critic."""
    directory = verl_step(tmp_path, 90, roles=("actor", "critic"), tracker=False)
    date_files(directory, -5000, "critic")
    date_files(directory, 0, "actor")
    date_files(directory, 5, "data.pt")
    verdict = assessed(directory, Around(previous_ns=at_ns(-100)))
    assert (verdict.state, verdict.problems) == (LocalState.COMPLETE, ())
    assert not [path for path in verdict.paths if path.startswith("critic/") and path.endswith(".pt")]
    assert len(assessed(directory, window=9000).paths) > len(verdict.paths)


def test_after_a_pull_other_ranks_old_shards_are_not_this_nodes_save(tmp_path):
    """Pulled: all ranks. Then rank 0 saves the same number again in place, with the driver on this node."""
    directory = verl_step(tmp_path, 20, world=2, tracker=False)
    date_files(directory, -5000)
    pulled_ns = at_ns(-60)
    date_files(directory, 0, "rank_0", "fsdp_config", "huggingface")
    date_files(directory, -5000, "optim_world_size_2_rank_0")
    growing = assessed(directory, around_of(tmp_path, "global_step_20", pulled_ns=pulled_ns))
    assert growing.state is LocalState.GROWING
    assert ("actor/optim_world_size_2_rank_0.pt", "stale") in codes_of(growing)
    date_files(directory, 0, "optim_world_size_2_rank_0")
    share = assessed(directory, around_of(tmp_path, "global_step_20", pulled_ns=pulled_ns))
    assert (share.state, share.closed) == (LocalState.COMPLETE, False), "the driver may be on another node now"
    assert not [path for path in share.paths if "rank_1" in path or path == "data.pt"]
    late = assessed(directory, around_of(tmp_path, "global_step_20"), window=9000)
    assert {code for _, code in codes_of(late)} == {"late"}, "without a pull, this node is the driver's"
    date_files(directory, 5, "data.pt")
    verdict = assessed(directory, around_of(tmp_path, "global_step_20", pulled_ns=pulled_ns))
    assert verdict.state is LocalState.COMPLETE
    assert not [path for path in verdict.paths if "rank_1" in path]
    assert [path for path in assessed(directory, window=9000).paths if "rank_1" in path]  # without the pull's time


def test_an_sft_resave_in_place_is_seen_by_the_later_step_that_the_old_one_had(tmp_path):
    """From scratch again within the window, no barrier: rank 0's shard is new, all others are old."""
    directory = verl_sft_step(tmp_path, 20, world=2, tracker=False)
    date_files(directory, 0)
    date_files(directory, 1, "data_")
    date_files(verl_sft_step(tmp_path, 40, world=2, tracker=False), 600)
    date_files(directory, 1200, "model_world_size_2_rank_0")
    around = around_of(tmp_path, "global_step_20")
    assert {code for _, code in codes_of(assessed(directory, around))} == {"late"}
    assert assessed(directory, replace(around, next_ns=0)).state is LocalState.COMPLETE


# -- other layouts


def test_a_layered_step_is_closed_by_its_state(tmp_path):
    directory = layered_step(tmp_path, 20)
    verdict = assessed(directory, layout=VerlLayered())
    assert (verdict.state, verdict.closed) == (LocalState.COMPLETE, True)
    (directory / "trainer_state.json").unlink()
    assert codes_of(assessed(directory, layout=VerlLayered())) == [("trainer_state.json", "missing")]


def test_a_plain_step_is_complete_by_quiet_and_habit(tmp_path):
    directory = tmp_path / "step-20"
    directory.mkdir()
    (directory / "model.pt").write_bytes(b"x")
    assert assessed(directory, layout=Plain()).state is LocalState.COMPLETE
    seen = {("", "model.pt"): 1, ("", "optimizer.pt"): 1}
    verdict = assessed(directory, Around(seen=seen), layout=Plain())
    assert verdict.state is LocalState.GROWING
    assert "optimizer.pt" in verdict.problems[0].message


@pytest.mark.parametrize("hidden", ["", "actor", "actor/huggingface"])
def test_what_cannot_be_looked_into_is_neither_deleted_nor_whole(whole, hidden):
    listing = list_step(str(whole))
    rest = {path: stat for path, stat in listing.files.items() if hidden and not path.startswith(f"{hidden}/")}
    denied = Problem(hidden, "permission", "not readable by uid 1000 (run ckptsync as user root)")
    partial = replace(listing, files=rest, warnings=(denied,))
    for around in (Around(had_roles=True), Around(had_roles=True, later_begun=True)):
        verdict = assess(partial, VERL, around, window_ns=WINDOW * NS)
        assert verdict.state not in (LocalState.PRUNED, LocalState.COMPLETE)
        assert denied in verdict.problems
