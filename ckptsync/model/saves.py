"""When a save ended, and which files belong to it. The one rule, for one directory and for many nodes.

A save is what a trainer writes between two calls of its save function. Several saves can pass through one
directory (a restart, a roll-back, a `pull` followed by an in-place re-save), and they must never mix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["BARRIER_SLACK_NS", "SaveVerdict", "TimedFile", "judge", "next_end", "previous_end"]

BARRIER_SLACK_NS = 10 * 10**9
"""How much newer than the closing file a shard may be if a barrier precedes that file."""


@dataclass(frozen=True, slots=True)
class TimedFile:
    """A file with its mtime (ns; one clock for all files of a call) and what its layout says of it."""

    path: str
    mtime_ns: int
    shard: bool = False
    closing: bool = False


@dataclass(frozen=True, slots=True)
class SaveVerdict:
    """What a set of files says about the save they are from.

    Attributes:
        end_ns: the closing file's mtime, else the newest shard's, else the newest file's; 0 for no files.
        closed: a closing file is there and no shard is newer than it.
        stale: shards from an earlier save.
        late: shards newer than the closing file: another save has begun in place.
        start_ns: what is older is from an earlier save.
    """

    end_ns: int
    closed: bool
    stale: frozenset[str]
    late: frozenset[str]
    start_ns: int


def previous_end(ends: Iterable[int], end_ns: int) -> int:
    """The end of the save before the one that ended at `end_ns`; 0 = unknown."""
    return max((end for end in ends if end < end_ns), default=0)


def next_end(ends: Iterable[int], end_ns: int) -> int:
    """The end of the first save after the one that ended at `end_ns`; 0 = unknown."""
    return min((end for end in ends if end > end_ns), default=0)


def judge(
    files: Iterable[TimedFile],
    *,
    previous_ns: int,
    window_ns: int,
    barrier: bool,
    vouched_ns: int = 0,
    next_ns: int = 0,
    started_ns: int = 0,
) -> SaveVerdict:
    """Judge the files of one step directory, or of one step over all nodes.

    Args:
        files: with times in one clock.
        previous_ns: end of the run's previous save, or start of the current attempt; 0 = unknown.
        window_ns: `commit.window`: how much older than the end a shard may be where `previous_ns` is unknown.
        barrier: the trainer waits for all shards before it writes the closing file.
        vouched_ns: mtime of a tracker that names this step (0 = none); it closes the save where no
            closing file does (verl fully_async writes `data.pt` from another process).
        next_ns: a later save of the run, or a pull, ended then (0 = none is known): shards that are newer are not of
            the save that the closing file ended, however long shards may take without a barrier.
        started_ns: a pull ended then (0 = never). It brings closing files to every node; where shards have been written
            since and they have not, they close nothing: the trainer's driver may be on another node.
    """
    files = tuple(files)
    shards = [file for file in files if file.shard and not file.closing]
    newest_shard = max((file.mtime_ns for file in shards), default=0)
    slack = BARRIER_SLACK_NS if barrier else window_ns
    closing = max((file.mtime_ns for file in files if file.closing), default=0)
    if newest_shard > closing + slack and vouched_ns >= newest_shard:
        closing = vouched_ns
    if 0 < closing < started_ns < newest_shard:
        closing = 0
    latest = min(closing + slack, next_ns) if next_ns > closing else closing + slack
    late = frozenset(file.path for file in shards if closing and file.mtime_ns > latest)
    end = max(closing or newest_shard or max((file.mtime_ns for file in files), default=0), 0)
    start = previous_ns if 0 < previous_ns < end else end - window_ns
    stale = frozenset(file.path for file in files if (file.shard or file.closing) and file.mtime_ns < start)
    return SaveVerdict(end, bool(closing) and not late, stale, late, start)
