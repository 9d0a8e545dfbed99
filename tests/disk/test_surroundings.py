"""What the other directories beside a step tell of it: the save before, the one after, and which ranks were here."""

from __future__ import annotations

from assessing import VERL, around_of, assessed, at_ns, date_files
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.disk.assess import Timeline, look_around, times_of
from ckptsync.disk.tracker import TrackerState
from ckptsync.model.saves import next_end, previous_end
from ckptsync.model.step import FileStat, Listing, LocalState
from ckptsync.testing.checkpoints import verl_step


def test_the_surroundings_of_a_step_that_was_rolled_back_to(tmp_path):
    for step, seconds in ((80, 0), (90, 2000), (120, 1000)):
        date_files(verl_step(tmp_path, step, tracker=False), seconds)
    new = around_of(tmp_path, "global_step_90")
    assert (new.previous_ns, new.next_ns, new.later_begun) == (at_ns(1000), 0, False)
    old = around_of(tmp_path, "global_step_120")
    assert (old.previous_ns, old.next_ns, old.later_begun) == (at_ns(0), at_ns(2000), True)
    first = around_of(tmp_path, "global_step_80", pulled_ns=at_ns(500))
    assert (first.previous_ns, first.next_ns, first.later_begun) == (0, at_ns(500), True)
    assert around_of(tmp_path, "global_step_90", pulled_ns=at_ns(1500)).previous_ns == at_ns(1500)


def test_a_step_without_its_closing_file_ends_at_its_newest_shard_for_others(tmp_path):
    date_files(verl_step(tmp_path, 10, driver=False), 0)
    date_files(tmp_path / "global_step_10", 300, "huggingface")  # a converter's output, say
    date_files(verl_step(tmp_path, 20, tracker=False), 1000)
    assert around_of(tmp_path, "global_step_20").previous_ns == at_ns(0)


def test_a_report_added_to_an_old_step_is_no_later_step(tmp_path):
    """Else the step that is being written would be called broken."""
    old = verl_step(tmp_path, 10, tracker=False)
    date_files(old, 0)
    growing = verl_step(tmp_path, 20, driver=False)
    (growing / "actor/fsdp_config.json").unlink()
    date_files(growing, 1000)
    (old / "eval.json").write_text("{}")
    date_files(old, 2000, "eval.json")
    assert not around_of(tmp_path, "global_step_20").later_begun
    assert assessed(growing, around_of(tmp_path, "global_step_20")).state is LocalState.GROWING
    date_files(old, 2000, "rank_0")
    assert around_of(tmp_path, "global_step_20").later_begun


def test_roles_are_remembered_from_other_steps_or_from_saves(tmp_path):
    verl_step(tmp_path, 10, tracker=False)
    lone = tmp_path / "global_step_20"
    lone.mkdir()
    assert around_of(tmp_path, "global_step_20").had_roles
    assert not around_of(tmp_path, "global_step_10").had_roles
    assert around_of(tmp_path, "global_step_10", seen={("actor", "model"): 1}).had_roles


def test_a_tracker_vouches_only_for_the_step_it_names(tmp_path):
    verl_step(tmp_path, 20, tracker=False)
    assert around_of(tmp_path, "global_step_20", tracker=TrackerState(20, 77)).vouched_ns == 77
    assert around_of(tmp_path, "global_step_20", tracker=TrackerState(10, 77)).vouched_ns == 0
    assert around_of(tmp_path, "global_step_20").vouched_ns == 0


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
