"""What a step directory is, by names and times: made by the real generators, dated to the second, and assessed."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.disk.assess import Around, Timeline, assess, look_around, seen_in, times_of
from ckptsync.disk.scan import list_step
from ckptsync.disk.tracker import TrackerState
from ckptsync.layouts.plain import Plain
from ckptsync.layouts.verl import Verl
from ckptsync.layouts.verl_layered import VerlLayered
from ckptsync.model.saves import next_end, previous_end
from ckptsync.model.step import FileStat, Listing, LocalState, Problem
from ckptsync.testing.checkpoints import layered_step, verl_sft_step, verl_step

NS = 10**9
BASE = 1_800_000_000
WINDOW = 3600
VERL = Verl()


def _date(directory: Path, seconds: float, *names: str) -> None:
    """Give the files (all, or those whose path has one of `names` in it) this time."""
    ns = int((BASE + seconds) * NS)
    for top, _, files in os.walk(directory):
        for name in files:
            path = Path(top, name)
            if not names or any(part in str(path.relative_to(directory)) for part in names):
                os.utime(path, ns=(ns, ns))


def _ns(seconds: float) -> int:
    return int((BASE + seconds) * NS)


def _assess(directory: Path, around: Around | None = None, layout=VERL, window=WINDOW):
    return assess(list_step(str(directory)), layout, around or Around(), window_ns=window * NS)


def _codes(verdict) -> list[tuple[str, str]]:
    return [(problem.path, problem.code) for problem in verdict.problems]


def _around(root: Path, name: str, layout=VERL, **options) -> Around:
    listings = [list_step(str(path)) for path in sorted(root.iterdir()) if path.is_dir()]
    index = [listing.name for listing in listings].index(name)
    return look_around(listings, index, layout, **{"seen": {}, **options})


@pytest.fixture
def whole(tmp_path):
    """A PPO save of two ranks, closed."""
    directory = verl_step(tmp_path / "out", 20, world=2, tracker=False)
    _date(directory, 0)
    _date(directory, 5, "data.pt")
    return directory


def test_a_closed_save_is_complete(whole):
    verdict = _assess(whole)
    assert (verdict.state, verdict.problems, verdict.closed) == (LocalState.COMPLETE, (), True)
    assert verdict.end_ns == _ns(5)
    assert list(verdict.paths) == sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())


@pytest.mark.parametrize("gone", ["optim_world_size_2_rank_1", "fsdp_config.json", "huggingface/config.json"])
def test_a_save_that_lacks_something_of_its_own_grows_until_a_later_step_begins(whole, gone):
    for path in [path for path in whole.rglob("*") if gone in str(path)]:
        path.unlink()
    verdict = _assess(whole)
    assert verdict.state is LocalState.GROWING
    assert [code for _, code in _codes(verdict)] == ["missing"]
    assert _assess(whole, Around(later_begun=True)).state is LocalState.BROKEN


def test_a_share_without_the_drivers_file_is_complete_but_not_closed(whole):
    (whole / "data.pt").unlink()
    verdict = _assess(whole)
    assert (verdict.state, verdict.closed) == (LocalState.COMPLETE, False)
    assert verdict.end_ns == _ns(0)


@pytest.mark.parametrize("later", [False, True])
def test_a_temporary_file_means_that_the_save_is_not_over(whole, later):
    (whole / "actor/huggingface/.tmpAb12Cd").write_bytes(b"x")
    verdict = _assess(whole, Around(later_begun=later))
    assert _codes(verdict) == [("actor/huggingface/.tmpAb12Cd", "temporary")]
    assert verdict.state is (LocalState.BROKEN if later else LocalState.GROWING)


def test_a_temporary_file_of_a_save_that_was_killed_does_not_block_the_next_one(whole):
    leftover = whole / "actor/huggingface/.tmpAb12Cd"
    leftover.write_bytes(b"x")
    _date(whole, -500, ".tmp")
    assert _assess(whole).state is LocalState.GROWING  # nothing tells when the save before ended
    verdict = _assess(whole, Around(previous_ns=_ns(-100)))
    assert verdict.state is LocalState.COMPLETE
    assert "actor/huggingface/.tmpAb12Cd" not in verdict.paths


def test_a_shard_newer_than_the_closing_file_means_that_another_save_has_begun(whole):
    _date(whole, 60, "model_world_size_2_rank_1")
    verdict = _assess(whole)
    assert _codes(verdict) == [("actor/model_world_size_2_rank_1.pt", "late")]
    assert (verdict.state, verdict.closed) == (LocalState.GROWING, False)
    assert _assess(whole, Around(later_begun=True)).state is LocalState.BROKEN


def test_a_tracker_that_names_the_step_closes_it(whole):
    """fully_async: data.pt came first."""
    _date(whole, 60, "rank_")
    assert _assess(whole).state is LocalState.GROWING
    verdict = _assess(whole, Around(vouched_ns=_ns(61)))
    assert (verdict.state, verdict.closed, verdict.end_ns) == (LocalState.COMPLETE, True, _ns(61))


# -- husks


def test_what_retention_leaves_is_pruned_where_this_node_had_shards(whole):
    shutil.rmtree(whole / "actor")
    assert _assess(whole, Around(had_roles=True)).state is LocalState.PRUNED
    assert _assess(whole, Around(had_roles=True)).problems == ()


def test_the_same_files_are_the_drivers_part_where_it_never_had(whole):
    shutil.rmtree(whole / "actor")
    verdict = _assess(whole)
    assert (verdict.state, verdict.paths, verdict.closed) == (LocalState.COMPLETE, ("data.pt",), True)


def test_dozens_of_husks_beside_real_steps_are_pruned(tmp_path):
    for step in range(10, 110, 10):
        directory = verl_step(tmp_path, step, tracker=False)
        _date(directory, step)
        if step < 90:
            shutil.rmtree(directory / "actor")
    states = {
        path.name: _assess(path, _around(tmp_path, path.name)).state for path in tmp_path.iterdir() if path.is_dir()
    }
    assert [states[f"global_step_{step}"] for step in range(10, 90, 10)] == [LocalState.PRUNED] * 8
    assert states["global_step_90"] is states["global_step_100"] is LocalState.COMPLETE


def test_an_empty_directory_may_still_grow_until_a_later_step_begins(tmp_path):
    empty = tmp_path / "global_step_20"
    (empty / "actor").mkdir(parents=True)
    assert _codes(_assess(empty)) == [("", "empty")]
    assert _assess(empty).state is LocalState.GROWING
    assert _assess(empty, Around(later_begun=True)).state is LocalState.PRUNED


def test_files_that_no_loader_reads_do_not_make_a_step(tmp_path):
    directory = tmp_path / "global_step_20"
    (directory / "actor").mkdir(parents=True)
    (directory / "actor" / "mcore_batch_0_1.safetensors").write_bytes(b"x")
    assert _assess(directory).state is LocalState.GROWING
    assert _assess(directory).paths == ()


# -- habits of the node


def test_a_critic_that_the_node_wrote_last_time_is_awaited(tmp_path):
    """verl saves the actor, then the critic: a pause between them proves nothing."""
    before = verl_step(tmp_path, 10, roles=("actor", "critic"), tracker=False)
    seen = seen_in([str(p.relative_to(before)) for p in before.rglob("*.pt")], VERL)
    assert seen == {(role, kind): 1 for role in ("actor", "critic") for kind in ("model", "optim", "extra_state")}
    directory = verl_step(tmp_path, 20, driver=False)
    verdict = _assess(directory, Around(seen=seen))
    assert verdict.state is LocalState.GROWING
    assert {path for path, code in _codes(verdict) if code == "missing"} == {"critic"}
    assert _assess(directory).state is LocalState.COMPLETE  # the control: nothing was seen
    verl_step(tmp_path, 20, roles=("critic",), driver=False)
    assert _assess(directory, Around(seen=seen)).state is LocalState.COMPLETE


def test_a_kind_that_the_node_wrote_last_time_is_awaited(tmp_path):
    directory = verl_step(tmp_path, 20, kinds=("model",), driver=False)
    verdict = _assess(directory, Around(seen={("actor", "model"): 1, ("actor", "optim"): 1}))
    assert [problem.path for problem in verdict.problems] == ["actor"]
    assert "optim" in verdict.problems[0].message


@pytest.mark.parametrize("over", ["closed", "later step"])
def test_a_save_that_is_over_no_longer_waits_for_habits(tmp_path, over):
    seen = {("critic", "model"): 1}
    directory = verl_step(tmp_path, 20, driver=over == "closed", tracker=False)
    assert _assess(directory, Around(seen=seen, later_begun=over != "closed")).state is LocalState.COMPLETE
    if over != "closed":
        assert _assess(directory, Around(seen=seen)).state is LocalState.GROWING


def test_a_closing_file_without_a_barrier_before_it_does_not_end_the_waiting(tmp_path):
    """SFT: this rank's data_0.pt says nothing about the other rank of this node."""
    directory = verl_sft_step(tmp_path, 20, world=2, ranks=[0], tracker=False)
    seen = {("", kind): 2 for kind in ("model", "optim", "extra_state")}
    assert _assess(directory, Around(seen=seen)).state is LocalState.GROWING
    assert _assess(directory).state is LocalState.COMPLETE


def test_closed_only_by_an_old_closing_file_does_not_end_the_waiting(whole):
    """A re-save in place: the old data.pt is there, the actor is new, the critic still comes."""
    _date(whole, 500, "actor")
    verdict = _assess(whole, Around(seen={("critic", "model"): 1}, previous_ns=_ns(100)))
    assert {code for _, code in _codes(verdict)} >= {"late", "missing"}


# -- stale shards


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (Around(previous_ns=_ns(-100)), "older than the end of the previous save"),
        (Around(), "commit.window"),
        (Around(previous_ns=_ns(900)), "commit.window"),  # not before this save: it tells nothing
    ],
)
def test_a_stale_shard_that_is_missed_is_named_with_the_reason(whole, around, reason):
    name = "actor/optim_world_size_2_rank_1.pt"
    _date(whole, -WINDOW - 60, "optim_world_size_2_rank_1")
    verdict = _assess(whole, around)
    stale = [problem for problem in verdict.problems if problem.code == "stale"]
    assert [problem.path for problem in stale] == [name]
    assert reason in stale[0].message
    assert name not in verdict.paths
    assert verdict.state is LocalState.GROWING
    if reason == "commit.window":
        assert "raise that key" in stale[0].message
        assert _assess(whole, around, window=WINDOW + 120).state is LocalState.COMPLETE


def test_stale_shards_of_a_role_that_is_gone_are_left_out_without_a_word(tmp_path):
    """A roll-back wrote the number again, without its critic."""
    directory = verl_step(tmp_path, 90, roles=("actor", "critic"), tracker=False)
    _date(directory, -5000, "critic")
    _date(directory, 0, "actor")
    _date(directory, 5, "data.pt")
    verdict = _assess(directory, Around(previous_ns=_ns(-100)))
    assert (verdict.state, verdict.problems) == (LocalState.COMPLETE, ())
    assert not [path for path in verdict.paths if path.startswith("critic/") and path.endswith(".pt")]
    assert len(_assess(directory, window=9000).paths) > len(verdict.paths)


def test_after_a_pull_other_ranks_old_shards_are_not_this_nodes_save(tmp_path):
    """Pulled: all ranks. Then rank 0 saves the same number again in place, with the driver on this node."""
    directory = verl_step(tmp_path, 20, world=2, tracker=False)
    _date(directory, -5000)
    pulled_ns = _ns(-60)
    _date(directory, 0, "rank_0", "fsdp_config", "huggingface")
    _date(directory, -5000, "optim_world_size_2_rank_0")
    growing = _assess(directory, _around(tmp_path, "global_step_20", pulled_ns=pulled_ns))
    assert growing.state is LocalState.GROWING
    assert ("actor/optim_world_size_2_rank_0.pt", "stale") in _codes(growing)
    _date(directory, 0, "optim_world_size_2_rank_0")
    share = _assess(directory, _around(tmp_path, "global_step_20", pulled_ns=pulled_ns))
    assert (share.state, share.closed) == (LocalState.COMPLETE, False), "the driver may be on another node now"
    assert not [path for path in share.paths if "rank_1" in path or path == "data.pt"]
    late = _assess(directory, _around(tmp_path, "global_step_20"), window=9000)
    assert {code for _, code in _codes(late)} == {"late"}, "without a pull, this node is the driver's"
    _date(directory, 5, "data.pt")
    verdict = _assess(directory, _around(tmp_path, "global_step_20", pulled_ns=pulled_ns))
    assert verdict.state is LocalState.COMPLETE
    assert not [path for path in verdict.paths if "rank_1" in path]
    assert [path for path in _assess(directory, window=9000).paths if "rank_1" in path]  # without the pull's time


# -- the surroundings


def test_the_surroundings_of_a_step_that_was_rolled_back_to(tmp_path):
    for step, seconds in ((80, 0), (90, 2000), (120, 1000)):
        _date(verl_step(tmp_path, step, tracker=False), seconds)
    new = _around(tmp_path, "global_step_90")
    assert (new.previous_ns, new.next_ns, new.later_begun) == (_ns(1000), 0, False)
    old = _around(tmp_path, "global_step_120")
    assert (old.previous_ns, old.next_ns, old.later_begun) == (_ns(0), _ns(2000), True)
    first = _around(tmp_path, "global_step_80", pulled_ns=_ns(500))
    assert (first.previous_ns, first.next_ns, first.later_begun) == (0, _ns(500), True)
    assert _around(tmp_path, "global_step_90", pulled_ns=_ns(1500)).previous_ns == _ns(1500)


def test_a_step_without_its_closing_file_ends_at_its_newest_shard_for_others(tmp_path):
    _date(verl_step(tmp_path, 10, driver=False), 0)
    _date(tmp_path / "global_step_10", 300, "huggingface")  # a converter's output, say
    _date(verl_step(tmp_path, 20, tracker=False), 1000)
    assert _around(tmp_path, "global_step_20").previous_ns == _ns(0)


def test_a_report_added_to_an_old_step_is_no_later_step(tmp_path):
    """Else the step that is being written would be called broken."""
    old = verl_step(tmp_path, 10, tracker=False)
    _date(old, 0)
    growing = verl_step(tmp_path, 20, driver=False)
    (growing / "actor/fsdp_config.json").unlink()
    _date(growing, 1000)
    (old / "eval.json").write_text("{}")
    _date(old, 2000, "eval.json")
    assert not _around(tmp_path, "global_step_20").later_begun
    assert _assess(growing, _around(tmp_path, "global_step_20")).state is LocalState.GROWING
    _date(old, 2000, "rank_0")
    assert _around(tmp_path, "global_step_20").later_begun


def test_roles_are_remembered_from_other_steps_or_from_saves(tmp_path):
    verl_step(tmp_path, 10, tracker=False)
    lone = tmp_path / "global_step_20"
    lone.mkdir()
    assert _around(tmp_path, "global_step_20").had_roles
    assert not _around(tmp_path, "global_step_10").had_roles
    assert _around(tmp_path, "global_step_10", seen={("actor", "model"): 1}).had_roles


def test_a_tracker_vouches_only_for_the_step_it_names(tmp_path):
    verl_step(tmp_path, 20, tracker=False)
    assert _around(tmp_path, "global_step_20", tracker=TrackerState(20, 77)).vouched_ns == 77
    assert _around(tmp_path, "global_step_20", tracker=TrackerState(10, 77)).vouched_ns == 0
    assert _around(tmp_path, "global_step_20").vouched_ns == 0


def _listing(number: int, shard: int | None, closing: int | None, report: int | None) -> Listing:
    found = {"actor/model_world_size_1_rank_0.pt": shard, "data.pt": closing, "report.txt": report}
    files = {path: FileStat(1, ns, 0o644, 1, 1, ns, 1) for path, ns in found.items() if ns is not None}
    return Listing(f"global_step_{number}", f"/out/global_step_{number}", files)


_TIMES = st.one_of(st.none(), st.integers(1, 9))


@given(st.lists(st.tuples(_TIMES, _TIMES, _TIMES), min_size=1, max_size=6), st.integers(0, 9))
def test_a_timeline_tells_of_each_directory_what_looking_at_all_others_tells(files, pulled_ns):
    """The same as without it, and as the definitions of `Around` say.

    A directory ends with its newest mark where its closing file is from before the pull, and a shard from after it.
    """
    listings = [_listing(number, *times) for number, times in enumerate(files)]
    timeline = Timeline(times_of(listings, VERL))
    ends = [closing or shard or max(filter(None, (report, 0)), default=0) for shard, closing, report in files]
    for index, (shard, closing, report) in enumerate(files):
        around = look_around(listings, index, VERL, seen={}, pulled_ns=pulled_ns, timeline=timeline)
        assert around == look_around(listings, index, VERL, seen={}, pulled_ns=pulled_ns)
        others = [*ends[:index], *ends[index + 1 :], pulled_ns]
        written_since = shard and closing and closing < pulled_ns < shard
        end = shard if written_since else ends[index]
        assert around.previous_ns == previous_end(others, end)
        assert around.next_ns == next_end(others, end)
        beside = [*files[:index], *files[index + 1 :]]
        newest = max(shard or 0, closing or 0, report or 0)
        assert around.later_begun == any((max(s or 0, c or 0) if s or c else (r or 0)) > newest for s, c, r in beside)
        assert around.had_roles == any(s is not None for s, _, _ in beside)


def test_an_sft_resave_in_place_is_seen_by_the_later_step_that_the_old_one_had(tmp_path):
    """From scratch again within the window, no barrier: rank 0's shard is new, all others are old."""
    directory = verl_sft_step(tmp_path, 20, world=2, tracker=False)
    _date(directory, 0)
    _date(directory, 1, "data_")
    _date(verl_sft_step(tmp_path, 40, world=2, tracker=False), 600)
    _date(directory, 1200, "model_world_size_2_rank_0")
    around = _around(tmp_path, "global_step_20")
    assert {code for _, code in _codes(_assess(directory, around))} == {"late"}
    assert _assess(directory, replace(around, next_ns=0)).state is LocalState.COMPLETE


# -- other layouts


def test_a_layered_step_is_closed_by_its_state(tmp_path):
    directory = layered_step(tmp_path, 20)
    verdict = _assess(directory, layout=VerlLayered())
    assert (verdict.state, verdict.closed) == (LocalState.COMPLETE, True)
    (directory / "trainer_state.json").unlink()
    assert _codes(_assess(directory, layout=VerlLayered())) == [("trainer_state.json", "missing")]


def test_a_plain_step_is_complete_by_quiet_and_habit(tmp_path):
    directory = tmp_path / "step-20"
    directory.mkdir()
    (directory / "model.pt").write_bytes(b"x")
    assert _assess(directory, layout=Plain()).state is LocalState.COMPLETE
    seen = {("", "model.pt"): 1, ("", "optimizer.pt"): 1}
    verdict = _assess(directory, Around(seen=seen), layout=Plain())
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
