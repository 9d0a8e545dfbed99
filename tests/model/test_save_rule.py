"""The one rule of where a save ends and which files are its: `judge`. Times are seconds of a calendar of our own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.model.saves import TimedFile, judge, next_end, previous_end

NS = 10**9
WINDOW = 3600
DAY = 1_000_000
"""When the newer save happens: far enough from 0 (= unknown)."""


def _shard(path, seconds):
    return TimedFile(path, int(seconds * NS), shard=True)


def _closing(seconds, path="data.pt"):
    return TimedFile(path, int(seconds * NS), closing=True)


def _judge(files, *, previous=0, barrier=True, vouched=0, following=0, window=WINDOW):
    return judge(
        files,
        previous_ns=int(previous * NS),
        window_ns=window * NS,
        barrier=barrier,
        vouched_ns=int(vouched * NS),
        next_ns=int(following * NS),
    )


def test_a_save_ends_at_its_closing_file_else_at_its_newest_shard_else_at_its_newest_file():
    files = [_shard("a", DAY), _shard("b", DAY + 5), TimedFile("readme", (DAY + 90) * NS)]
    assert _judge([*files, _closing(DAY + 7)]).end_ns == (DAY + 7) * NS
    assert _judge([*files, _closing(DAY + 7)]).closed
    assert _judge(files).end_ns == (DAY + 5) * NS
    assert not _judge(files).closed
    assert _judge(files[2:]).end_ns == (DAY + 90) * NS
    assert _judge([]).end_ns == 0


def test_the_newest_closing_file_ends_the_save():
    verdict = _judge([_shard("a", DAY), _closing(DAY + 1), _closing(DAY + 9, "ckpt_contents.json")])
    assert verdict.end_ns == (DAY + 9) * NS


def test_a_resave_after_a_pull_takes_only_what_was_written_again():
    """Pulled at DAY, all ranks' files carry the times of the old save; then actor and data.pt are saved again."""
    files = [_shard("actor/0", DAY + 50), _shard("critic/0", DAY - 9000), _closing(DAY + 60)]
    verdict = _judge(files, previous=DAY)
    assert verdict.stale == {"critic/0"}
    assert verdict.closed
    # without the pull's time and with a window that is long enough, the old critic would pass
    assert not _judge(files, window=100_000).stale


def test_a_resave_that_has_not_reached_the_closing_file_is_late_not_complete():
    """A crash between model and optimizer: the old closing file is still there."""
    files = [_shard("actor/model", DAY + 50), _shard("actor/optim", DAY), _closing(DAY + 1)]
    verdict = _judge(files)
    assert verdict.late == {"actor/model"}
    assert not verdict.closed
    assert not _judge([*files[1:], _shard("actor/model", DAY)]).late


def test_after_a_roll_back_old_shards_of_the_number_are_stale():
    """120 was saved last, then the run went back to 80 and saved 90 again, without its critic."""
    ended_120 = DAY
    files = [_shard("actor/0", DAY + 600), _shard("critic/0", DAY - 1800), _closing(DAY + 610)]
    ends = [ended_120, DAY - 3600, DAY + 610]
    previous_ns = previous_end([end * NS for end in ends], (DAY + 610) * NS)
    assert previous_ns == ended_120 * NS
    assert _judge(files, previous=ended_120).stale == {"critic/0"}
    assert not _judge(files, previous=DAY - 3600).stale  # the save before 120 would not tell


@pytest.mark.parametrize("barrier", [True, False])
def test_how_much_newer_than_the_closing_file_a_shard_may_be(barrier):
    slack = 10 if barrier else WINDOW
    inside = _judge([_shard("a", DAY + slack), _closing(DAY)], barrier=barrier)
    beyond = _judge([_shard("a", DAY + slack + 0.004), _closing(DAY)], barrier=barrier)
    assert (inside.late, inside.closed) == (frozenset(), True)
    assert (beyond.late, beyond.closed) == ({"a"}, False)


def test_the_window_counts_only_where_no_previous_end_is_known():
    files = [_shard("slow", DAY - WINDOW - 1), _shard("a", DAY), _closing(DAY + 1)]
    assert _judge(files).stale == {"slow"}
    assert not _judge(files, previous=DAY - 2 * WINDOW).stale
    assert not _judge(files, window=WINDOW + 10).stale
    assert not _judge([_shard("slow", DAY - WINDOW + 1), *files[1:]]).stale


def test_a_previous_end_that_is_not_before_this_one_is_unknown():
    files = [_shard("a", DAY), _closing(DAY + 1)]
    assert not _judge(files, previous=DAY + 1).stale
    assert not _judge(files, previous=DAY + 500).stale
    assert _judge(files, previous=DAY + 0.5).stale == {"a"}


def test_closing_files_of_an_earlier_save_are_stale_too():
    files = [_closing(DAY - 500, "actor/.metadata"), _shard("a", DAY), _closing(DAY + 1)]
    assert _judge(files, previous=DAY - 100).stale == {"actor/.metadata"}


def test_a_file_that_is_neither_shard_nor_closing_is_never_stale():
    files = [TimedFile("tokenizer.json", 1), _shard("a", DAY), _closing(DAY + 1)]
    assert not _judge(files, previous=DAY - 100).stale


def test_a_tracker_that_names_the_step_closes_it_only_after_the_newest_shard():
    """verl's fully_async writes data.pt from another process, at any time."""
    files = [_closing(DAY - 300), _shard("a", DAY)]
    assert _judge(files).late == {"a"}
    vouched = _judge(files, vouched=DAY + 2, previous=DAY - 400)
    assert (vouched.late, vouched.closed, vouched.end_ns) == (frozenset(), True, (DAY + 2) * NS)
    assert _judge(files, vouched=DAY - 1).late == {"a"}
    assert _judge([_shard("a", DAY)], vouched=DAY).closed


def test_a_tracker_does_not_move_the_end_of_a_save_that_its_closing_file_ends():
    assert _judge([_shard("a", DAY), _closing(DAY + 1)], vouched=DAY + 99).end_ns == (DAY + 1) * NS


def test_without_a_barrier_a_known_later_end_tells_two_saves_apart():
    """SFT from scratch in place, 20 min after the old one, with the old data_0.pt still there."""
    files = [_shard("rank_0", DAY + 1200), _shard("rank_1", DAY), _closing(DAY + 1, "data_0.pt")]
    assert _judge(files, barrier=False, following=DAY + 600).late == {"rank_0"}
    assert not _judge(files, barrier=False).late
    assert not _judge(files, barrier=False, following=DAY + 1).late  # it is this one's own end


def test_equal_times_belong_together():
    """File systems keep times to 4 ms: files of one save, and ends of two, can carry the same."""
    files = [_shard("a", DAY), _shard("b", DAY), _closing(DAY)]
    assert not _judge(files, previous=DAY - 0.004).stale
    assert _judge([_shard("a", DAY), _closing(DAY + 1)], previous=DAY).stale == frozenset()
    assert previous_end([DAY * NS], DAY * NS) == 0
    assert next_end([DAY * NS], DAY * NS) == 0


def test_the_ends_around_a_save_are_the_nearest_ones():
    ends = [30, 10, 20, 40]
    assert (previous_end(ends, 25), next_end(ends, 25)) == (20, 30)
    assert (previous_end(ends, 5), next_end(ends, 5)) == (0, 10)
    assert (previous_end(ends, 40), next_end(ends, 40)) == (30, 0)


def test_times_before_the_epoch_are_survived():
    verdict = _judge([_shard("a", -5), _closing(-1)])
    assert (verdict.end_ns, verdict.late) == (0, frozenset())


SECONDS = st.integers(DAY - 5000, DAY + 5000)


@settings(max_examples=150)
@given(st.lists(SECONDS, max_size=6), st.lists(SECONDS, max_size=2), SECONDS, st.booleans())
def test_what_is_left_is_one_stretch_of_time(shards, closings, previous, barrier):
    files = [_shard(f"s{i}", t) for i, t in enumerate(shards)]
    files += [_closing(t, f"c{i}") for i, t in enumerate(closings)]
    verdict = _judge(files, previous=previous, barrier=barrier)
    assert not verdict.late & verdict.stale
    kept = [f for f in files if f.path not in verdict.stale | verdict.late]
    slack = (10 if barrier else WINDOW) * NS if closings else 0
    assert all(verdict.start_ns <= f.mtime_ns <= verdict.end_ns + slack for f in kept)
    assert verdict.closed == (bool(closings) and not verdict.late)
    again = _judge(kept, previous=previous, barrier=barrier)
    assert not again.stale | again.late
