"""Many nodes' parts of one step -> the saves they hold, and which of those are whole.

A pure function of the parts: every node that sees the same parts finds the same saves, so any of them may write
the commit, and a reader can check it. Nothing here knows stores or clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ckptsync.model.manifest import Commit, DirEntry, FileEntry, LinkEntry, Part, PartId
from ckptsync.model.saves import BARRIER_SLACK_NS, TimedFile, judge
from ckptsync.model.step import Problem, Shard

__all__ = ["StepRules", "Union", "saves_of", "unite"]


class StepRules(Protocol):
    """The part of a layout that merging needs (see layouts/base.py)."""

    def shard(self, path: str) -> Shard | None:
        """What a shard's name says."""
        ...

    def closing(self, paths: Collection[str]) -> frozenset[str]:
        """The closing files among `paths`."""
        ...

    def missing(self, sizes: Mapping[str, int]) -> tuple[Problem, ...]:
        """What a whole step still needs."""
        ...

    def has_barrier(self, paths: Collection[str]) -> bool:
        """Whether all shards end before the closing file is written."""
        ...


@dataclass(frozen=True, slots=True)
class Union:
    """One save of a step, over all nodes.

    Attributes:
        step: global step number.
        end_ns: when the save ended, store time.
        parts: the parts that contribute a file, by id.
        files: path -> (the part it comes from, its entry): the file written last.
        links, dirs: likewise.
        problems: what keeps it from being whole; empty = whole.
        conflicts: two different contents for one rank's shard within this save: never committed.
    """

    step: int
    end_ns: int
    parts: Mapping[PartId, Part]
    files: Mapping[str, tuple[Part, FileEntry]]
    links: Mapping[str, LinkEntry]
    dirs: Mapping[str, DirEntry]
    problems: tuple[Problem, ...] = ()
    conflicts: tuple[Problem, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it may be committed."""
        return not self.problems and not self.conflicts

    @property
    def commit(self) -> Commit:
        """The commit that makes it exist remotely."""
        part = next(iter(self.parts.values()))
        return Commit(part.run, part.run_id, self.step, tuple(sorted(self.parts)))


def saves_of(parts: Iterable[Part], rules: StepRules, *, window_ns: int) -> tuple[Union, ...]:
    """The saves that these parts of one step hold, newest first.

    Each part that holds a closing file anchors a save; where no part does, each part's end does. A save
    includes the parts whose shards fit its time (the stale-shard rule).
    """
    parts = tuple(parts)
    anchors = sorted(
        {part.saved_ns for part in parts if part.closed} or {part.saved_ns for part in parts}, reverse=True
    )
    unions = (unite(parts, end, rules, window_ns=window_ns) for end in anchors)
    seen: dict[tuple[PartId, ...], Union] = {}
    for union in unions:
        seen.setdefault(tuple(sorted(union.parts)), union)
    return tuple(union for union in seen.values() if union.parts)


def unite(parts: Sequence[Part], end_ns: int, rules: StepRules, *, window_ns: int) -> Union:
    """Merge the parts of the save that ended at `end_ns` (store time), path by path: the file written last wins."""
    barrier = rules.has_barrier([file.path for part in parts for file in part.files])
    newest = _newest_of_each_node(parts, end_ns + (BARRIER_SLACK_NS if barrier else window_ns))
    previous = max((p.previous_ns for p in newest if p.previous_ns < end_ns), default=0)
    fresh = {part.id: _fresh(part, end_ns, previous, rules, window_ns) for part in newest}
    used = [part for part in newest if fresh[part.id]]
    files: dict[str, tuple[Part, FileEntry]] = {}
    for part in sorted(used, key=lambda p: p.node, reverse=True):
        for entry in part.files:
            if entry.path in fresh[part.id] and _replaces(part, entry, files.get(entry.path)):
                files[entry.path] = (part, entry)
    contributing = {id(part) for part, _ in files.values()}
    kept = {part.id: part for part in used if id(part) in contributing}
    return Union(
        step=parts[0].step,
        end_ns=end_ns,
        parts=kept,
        files=files,
        links={link.path: link for part in kept.values() for link in part.links},
        dirs={entry.path: entry for part in kept.values() for entry in part.dirs},
        problems=_problems(files, kept.values(), rules),
        conflicts=_conflicts(kept.values(), fresh, rules),
    )


def _newest_of_each_node(parts: Iterable[Part], latest_ns: int) -> list[Part]:
    """A node that put two parts of one save took the step again: its newer part stands."""
    newest: dict[str, Part] = {}
    for part in sorted(parts, key=lambda p: (p.saved_ns, p.id)):
        if part.saved_ns <= latest_ns:
            newest[part.node] = part
    return [newest[node] for node in sorted(newest)]


def _fresh(part: Part, end_ns: int, previous_ns: int, rules: StepRules, window_ns: int) -> frozenset[str]:
    """The paths of a part that belong to the save; empty when all of its shards are stale."""
    closing = rules.closing([file.path for file in part.files])
    timed = [
        TimedFile(f.path, f.mtime_ns + part.offset_ns, rules.shard(f.path) is not None, f.path in closing)
        for f in part.files
    ]
    anchor = TimedFile("", end_ns, closing=True)
    stale = judge((*timed, anchor), previous_ns=previous_ns, window_ns=window_ns, barrier=True).stale
    shards = [file for file in timed if file.shard or file.closing]
    if shards and all(file.path in stale for file in shards):
        return frozenset()
    return frozenset(file.path for file in timed) - stale


def _replaces(part: Part, entry: FileEntry, held: tuple[Part, FileEntry] | None) -> bool:
    """Whether `entry` was written after the one held (equal times: the lowest node name stands)."""
    if held is None:
        return True
    return entry.mtime_ns + part.offset_ns >= held[1].mtime_ns + held[0].offset_ns


def _problems(
    files: Mapping[str, tuple[Part, FileEntry]], parts: Iterable[Part], rules: StepRules
) -> tuple[Problem, ...]:
    sizes = {path: entry.size for path, (_, entry) in files.items()}
    problems = list(rules.missing(sizes))
    for part in parts:
        for expected in part.expects:
            if files.get(expected.voucher, (None,))[0] is not part:
                continue
            if expected.path not in sizes:
                problems.append(Problem(expected.path, "missing", f"missing, but {expected.voucher} names it"))
            elif expected.size not in (None, sizes[expected.path]):
                said = f"{sizes[expected.path]} bytes, but {expected.voucher} says {expected.size}"
                problems.append(Problem(expected.path, "size", said))
    return tuple(dict.fromkeys(problems))


def _conflicts(parts: Iterable[Part], fresh: Mapping[PartId, frozenset[str]], rules: StepRules) -> tuple[Problem, ...]:
    holders: dict[str, tuple[Part, FileEntry]] = {}
    conflicts = []
    for part in parts:
        for entry in part.files:
            if entry.path not in fresh[part.id] or rules.shard(entry.path) is None:
                continue
            other, held = holders.setdefault(entry.path, (part, entry))
            if held.digest != entry.digest:
                said = f"nodes {other.node} and {part.node} hold different bytes of this shard in one save"
                conflicts.append(Problem(entry.path, "conflict", said))
    return tuple(conflicts)
