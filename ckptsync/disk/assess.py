"""Is a step directory whole here? Names, markers and times only; what is inside the files is for verify.py.

Pure: it is given listings, and says what they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ckptsync.disk.scan import unseen
from ckptsync.disk.tracker import TrackerState
from ckptsync.layouts.base import Layout, Seen
from ckptsync.model.saves import SaveVerdict, TimedFile, judge, next_end, previous_end
from ckptsync.model.step import Listing, LocalState, Problem

__all__ = ["Around", "Assessment", "Timeline", "Times", "assess", "look_around", "seen_in", "times_of"]


@dataclass(frozen=True, slots=True)
class Around:
    """What this node knows besides the step directory itself. Times in ns, this node's clock.

    Attributes:
        previous_ns: end of the run's previous save, or of the last pull; 0 = unknown.
        next_ns: end of the first save, or of the last pull, after this one; 0 = unknown.
        later_begun: another step directory has newer shards: the save that wrote this one is over.
        had_roles: this node has, or had, shards in other steps.
        seen: what this node wrote in its previous verified save.
        vouched_ns: mtime of the tracker if it names this step, else 0.
        started_ns: when the last pull ended; 0 = never.
    """

    previous_ns: int = 0
    next_ns: int = 0
    later_begun: bool = False
    had_roles: bool = False
    seen: Seen = field(default_factory=dict)
    vouched_ns: int = 0
    started_ns: int = 0

    @property
    def incomplete(self) -> LocalState:
        """What a step is that lacks something: what has not come when a later step begins will not come."""
        return LocalState.BROKEN if self.later_begun else LocalState.GROWING


@dataclass(frozen=True, slots=True)
class Times:
    """What the mtimes of one step directory say (ns, this node's clock).

    Attributes:
        end_ns: the newest closing file's, else the newest shard's, else the newest file's.
        mark_ns: the newest shard's or closing file's: a report that somebody adds to an old step is no sign of a save.
        newest_ns: the newest file's.
        shards: there are shards.
    """

    end_ns: int
    mark_ns: int
    newest_ns: int
    shards: bool


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a step directory is.

    Attributes:
        state: GROWING, COMPLETE (by names; not yet settled or verified), BROKEN or PRUNED.
        problems: what is missing, unfinished or stale.
        paths: the files of this save, sorted.
        end_ns: when the save ended.
        closed: its closing file is here.
    """

    state: LocalState
    problems: tuple[Problem, ...]
    paths: tuple[str, ...]
    end_ns: int
    closed: bool


def assess(listing: Listing, layout: Layout, around: Around, *, window_ns: int) -> Assessment:
    """Judge one directory (see the module's docstring); `window_ns` is `commit.window`."""
    leftover, temporary = _temporary(listing, layout, around)
    hidden = unseen(listing)
    paths = [path for path in listing.files if path not in leftover and not layout.ignored(path)]
    if not paths or (around.had_roles and layout.is_husk(paths)):
        if hidden:  # its shards may be there
            return Assessment(around.incomplete, hidden, tuple(paths), 0, closed=False)
        return _without_shards(paths, around)
    verdict = _verdict(listing, layout, paths, around, window_ns)
    fresh = tuple(sorted(set(paths) - verdict.stale))
    problems = [
        *hidden,
        *(Problem(path, "temporary", "temporary file: the save is not over") for path in sorted(temporary)),
        *(Problem(path, "late", "newer than the closing file: another save began") for path in sorted(verdict.late)),
    ]
    lacking = _lacking(listing, layout, fresh, around, closed=verdict.closed) or (
        () if verdict.closed or around.later_begun else _half_written_again(verdict.stale, fresh, layout)
    )
    if lacking:
        problems += [*lacking, *_explain_stale(verdict, around)]
    state = around.incomplete if problems else LocalState.COMPLETE
    return Assessment(state, tuple(problems), fresh, verdict.end_ns, verdict.closed)


def _temporary(listing: Listing, layout: Layout, around: Around) -> tuple[set[str], set[str]]:
    """Temporary files that a killed save left before this one began, and those that say that this save is not over."""
    found = {path: stat.mtime_ns for path, stat in listing.files.items() if layout.is_temporary(path)}
    leftover = {path for path, mtime_ns in found.items() if mtime_ns < around.previous_ns}
    return leftover, found.keys() - leftover


def _without_shards(paths: Sequence[str], around: Around) -> Assessment:
    if paths or around.later_begun:
        return Assessment(LocalState.PRUNED, (), tuple(paths), 0, closed=False)
    return Assessment(LocalState.GROWING, (Problem("", "empty", "there is no file in it yet"),), (), 0, closed=False)


def _verdict(listing: Listing, layout: Layout, paths: Sequence[str], around: Around, window_ns: int) -> SaveVerdict:
    closing = layout.closing(paths)
    timed = (
        TimedFile(path, listing.files[path].mtime_ns, layout.shard(path) is not None, path in closing) for path in paths
    )
    return judge(
        timed,
        previous_ns=around.previous_ns,
        window_ns=window_ns,
        barrier=layout.has_barrier(paths),
        vouched_ns=around.vouched_ns,
        next_ns=around.next_ns,
        started_ns=around.started_ns,
    )


def _lacking(
    listing: Listing, layout: Layout, fresh: Sequence[str], around: Around, *, closed: bool
) -> tuple[Problem, ...]:
    """What is missing here.

    A closed save, or one that was followed by another, is over: habits of earlier saves (a critic, a kind) no longer
    count, only what its own names demand.
    """
    sizes = {path: listing.files[path].size for path in fresh}
    over = around.later_begun or (closed and layout.has_barrier(fresh))
    return layout.missing_here(sizes, {} if over else around.seen)


def _half_written_again(stale: Collection[str], fresh: Collection[str], layout: Layout) -> tuple[Problem, ...]:
    """What a save in place still has to write: a rank that has written one of its shards again writes all of them."""
    new = [shard for path in fresh if (shard := layout.shard(path)) is not None]
    ranks, written = {shard.rank for shard in new}, {(shard.role, shard.kind, shard.rank) for shard in new}
    old = ((path, shard) for path in sorted(stale) if (shard := layout.shard(path)) is not None)
    said = "of an earlier save; other shards of its rank have been written again"
    return tuple(
        Problem(path, "stale", said)
        for path, shard in old
        if shard.rank in ranks and (shard.role, shard.kind, shard.rank) not in written
    )


def _explain_stale(verdict: SaveVerdict, around: Around) -> list[Problem]:
    if verdict.start_ns == around.previous_ns:
        why = "older than the end of the previous save: it belongs to another save"
    else:
        why = "more than commit.window older than the closing file: raise that key if the save really took so long"
    return [Problem(path, "stale", why) for path in sorted(verdict.stale)]


def look_around(
    listings: Sequence[Listing],
    index: int,
    layout: Layout,
    *,
    seen: Seen,
    pulled_ns: int = 0,
    tracker: TrackerState | None = None,
    timeline: Timeline | None = None,
) -> Around:
    """The surroundings of `listings[index]`.

    Args:
        listings: all step directories of output_dir.
        index: which of them.
        layout: the run's layout.
        seen: see `seen_in`.
        pulled_ns: when the last pull ended (0 = never).
        tracker: the trainer's, if there is one.
        timeline: of the same listings, for who asks for many of them.
    """
    timeline = Timeline(times_of(listings, layout)) if timeline is None else timeline
    end_ns = timeline.end_ns(index)
    if end_ns < pulled_ns < timeline.mark_ns(index):
        end_ns = timeline.mark_ns(index)  # the closing file came with the pull, and shards were written since
    ends = [*timeline.beside(end_ns), pulled_ns]
    step = layout.step_of(listings[index].name)
    return Around(
        previous_ns=previous_end(ends, end_ns),
        next_ns=next_end(ends, end_ns),
        later_begun=timeline.later_begun(index),
        had_roles=bool(seen) or timeline.other_has_shards(index),
        seen=seen,
        vouched_ns=tracker.mtime_ns if tracker is not None and tracker.step == step else 0,
        started_ns=pulled_ns,
    )


class Timeline:
    """The times of all step directories, sorted once, so that thousands of them can be asked what lies around each."""

    def __init__(self, times: Sequence[Times]) -> None:
        self._times = times
        self._ends = sorted(times.end_ns for times in self._times)
        self._newest_mark_ns = max((times.mark_ns for times in self._times), default=0)
        self._with_shards = sum(times.shards for times in self._times)

    def end_ns(self, index: int) -> int:
        """When the save of a directory ended, by its mtimes."""
        return self._times[index].end_ns

    def mark_ns(self, index: int) -> int:
        """The newest mtime of a shard or closing file of a directory."""
        return self._times[index].mark_ns

    def beside(self, end_ns: int) -> list[int]:
        """The ends next to that one: the greatest of those before it, and the least of those after it."""
        before, after = bisect_left(self._ends, end_ns), bisect_right(self._ends, end_ns)
        return [*self._ends[max(before - 1, 0) : before], *self._ends[after : after + 1]]

    def later_begun(self, index: int) -> bool:
        """Whether another directory has a newer mark than anything here (its own mark is never newer than that)."""
        return self._newest_mark_ns > self._times[index].newest_ns

    def other_has_shards(self, index: int) -> bool:
        """Whether there are shards in another directory."""
        return self._with_shards > self._times[index].shards


def times_of(listings: Sequence[Listing], layout: Layout) -> tuple[Times, ...]:
    """The times of each step directory, for a `Timeline`."""
    return tuple(_times(listing, layout) for listing in listings)


def _times(listing: Listing, layout: Layout) -> Times:
    def newest(paths: Collection[str]) -> int:
        return max((listing.files[path].mtime_ns for path in paths), default=0)

    paths = listing.files.keys()
    closing, shards = layout.closing(paths), [path for path in paths if layout.shard(path) is not None]
    return Times(newest(closing or shards or paths), newest([*closing, *shards] or paths), newest(paths), bool(shards))


def seen_in(paths: Mapping[str, object] | Sequence[str], layout: Layout) -> dict[tuple[str, str], int]:
    """How many shards of each (role, kind) are among `paths`: what the next save of this node should bring too."""
    counts: dict[tuple[str, str], int] = {}
    for path in paths:
        shard = layout.shard(path)
        if shard is not None:
            counts[shard.role, shard.kind] = counts.get((shard.role, shard.kind), 0) + 1
    return counts
