"""Many nodes' parts of one step -> the saves they hold, and which of those are whole.

A pure function of the parts: every node that sees the same parts finds the same saves, so any of them may write
the commit, and a reader can check it. Nothing here knows stores or clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ckptsync.model.manifest import Commit, DirEntry, FileEntry, LinkEntry, Part, PartId
from ckptsync.model.paths import tree_clash
from ckptsync.model.saves import BARRIER_SLACK_NS, TimedFile, judge
from ckptsync.model.step import Problem, Shard

__all__ = ["StepRules", "Union", "saves_of", "unite"]


class StepRules(Protocol):
    """The part of a layout that merging needs (see layouts/base.py)."""

    def step_of(self, name: str) -> int | None:
        """The step number of a directory name."""
        ...

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
        conflicts: two different contents for one rank's shard within this save, or paths that do not form a tree:
            never committed.
        awaited: shards of this save that only a witness has. Names do not tell of a role that lies on other nodes
            altogether: a commit must wait for it; one that has been written is not undone by it.
    """

    step: int
    end_ns: int
    parts: Mapping[PartId, Part]
    files: Mapping[str, tuple[Part, FileEntry]]
    links: Mapping[str, LinkEntry]
    dirs: Mapping[str, DirEntry]
    problems: tuple[Problem, ...] = ()
    conflicts: tuple[Problem, ...] = ()
    awaited: tuple[Problem, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it may be restored, and committed once nothing is awaited."""
        return not self.problems and not self.conflicts

    @property
    def commit(self) -> Commit:
        """The commit that makes it exist remotely."""
        part = next(iter(self.parts.values()))
        return Commit(part.run, part.run_id, self.step, tuple(sorted(self.parts)))


def saves_of(
    parts: Iterable[Part], rules: StepRules, *, window_ns: int, witnesses: Iterable[Part] = ()
) -> tuple[Union, ...]:
    """The saves that these parts of one step hold, newest first.

    Each part that holds a closing file anchors a save; where no part does, each part's end does. A save
    includes the parts whose shards fit its time (the stale-shard rule).

    Args:
        parts: of one run and step.
        rules: of the run's layout.
        window_ns: `commit.window`.
        witnesses: further parts of the step that may not be used (their chunks are not in the store yet), but tell
            where one save ended and the next began.
    """
    merger = _Merger(parts, rules, window_ns, witnesses)
    found: dict[tuple[PartId, ...], Union] = {}
    for end_ns in merger.anchors():
        union = merger.unite(end_ns)
        if union.parts:
            found.setdefault(tuple(sorted(union.parts)), union)
    return tuple(found.values())


def unite(parts: Sequence[Part], end_ns: int, rules: StepRules, *, window_ns: int) -> Union:
    """Merge the parts of the save that ended at `end_ns` (store time), path by path: the file written last wins."""
    return _Merger(parts, rules, window_ns).unite(end_ns)


@dataclass(frozen=True, slots=True)
class _Share:
    """A part, and its files in store time."""

    part: Part
    timed: tuple[TimedFile, ...]

    @classmethod
    def of(cls, part: Part, rules: StepRules) -> _Share:
        closing = rules.closing([file.path for file in part.files])
        return cls(
            part,
            tuple(
                TimedFile(f.path, f.mtime_ns + part.offset_ns, rules.shard(f.path) is not None, f.path in closing)
                for f in part.files
            ),
        )

    @property
    def newest_ns(self) -> int:
        """Its newest file, in the node's own clock: two puts of one save may have measured different offsets."""
        return max((file.mtime_ns for file in self.part.files), default=0)

    def rewritten_in(self, later: _Share) -> int | None:
        """When `later` (of the same node) first wrote other bytes into a shard of this part; None = it did not."""
        mine = {file.path: file.digest for file in self.part.files}
        return min(
            (
                timed.mtime_ns
                for timed, file in zip(later.timed, later.part.files, strict=True)
                if timed.shard and mine.get(file.path, file.digest) != file.digest
            ),
            default=None,
        )


class _Merger:
    """The parts of one step, and the points in time that no save of it reaches across."""

    def __init__(self, parts: Iterable[Part], rules: StepRules, window_ns: int, witnesses: Iterable[Part] = ()) -> None:
        self._rules, self._window_ns = rules, window_ns
        self._shares = [_Share.of(part, rules) for part in sorted(parts, key=lambda p: (p.saved_ns, p.id))]
        barrier = rules.has_barrier([file.path for share in self._shares for file in share.part.files])
        self._slack_ns = BARRIER_SLACK_NS if barrier else window_ns
        self._witnesses = [_Share.of(part, rules) for part in witnesses]
        self._borders = _borders([*self._shares, *self._witnesses])

    def anchors(self) -> list[int]:
        """Ends of saves, newest first."""
        closed = {share.part.saved_ns for share in self._shares if share.part.closed}
        return sorted(closed or {share.part.saved_ns for share in self._shares}, reverse=True)

    def unite(self, end_ns: int) -> Union:
        """The save that ended at `end_ns`."""
        previous_ns = max((border for border in self._borders if border < end_ns), default=0)
        latest_ns = min([end_ns + self._slack_ns, *(border for border in self._borders if border > end_ns)])
        chosen = _newest_of_each_node(share for share in self._shares if share.part.saved_ns <= latest_ns)
        others = [share for share in self._witnesses if share.part.saved_ns <= latest_ns]
        fresh = {share.part.id: self._fresh(share, end_ns, previous_ns) for share in chosen}
        used = [share.part for share in chosen if fresh[share.part.id]]
        files: dict[str, tuple[Part, FileEntry]] = {}
        for part in used:
            mine = fresh[part.id]
            for entry in part.files:
                if entry.path in mine and _replaces(part, entry, files.get(entry.path)):
                    files[entry.path] = (part, entry)
        contributing = {part.id for part in {id(part): part for part, _ in files.values()}.values()}
        kept = {part.id: part for part in used if part.id in contributing}
        links = {link.path: link for part in reversed(kept.values()) for link in part.links}
        return Union(
            step=self._shares[0].part.step,
            end_ns=end_ns,
            parts=kept,
            files=files,
            links=links,
            dirs=_dirs(kept.values()),
            problems=(*_disagreements(kept.values(), self._rules), *_problems(files, kept.values(), self._rules)),
            conflicts=(*_conflicts(kept.values(), fresh, self._rules), *_clashes(files, links, kept.values())),
            awaited=_awaited(files, [(share, self._fresh(share, end_ns, previous_ns)) for share in others]),
        )

    def _fresh(self, share: _Share, end_ns: int, previous_ns: int) -> frozenset[str]:
        """The paths of a part that belong to the save; empty when all of its shards are stale."""
        anchor = TimedFile("", end_ns, closing=True)
        verdict = judge((*share.timed, anchor), previous_ns=previous_ns, window_ns=self._window_ns, barrier=True)
        marks = [file.path for file in share.timed if file.shard or file.closing]
        old = verdict.stale.issuperset(marks) if marks else share.part.saved_ns < verdict.start_ns
        return frozenset() if old else frozenset(file.path for file in share.timed) - verdict.stale


def _newest_of_each_node(shares: Iterable[_Share]) -> list[_Share]:
    """By node name. A node that put two parts of one save took the step again: its newer part stands."""
    newest: dict[str, _Share] = {}
    for share in shares:
        held = newest.get(share.part.node)
        if held is None or _stands(share, held):
            newest[share.part.node] = share
    return [newest[node] for node in sorted(newest)]


def _awaited(files: Mapping[str, object], others: Iterable[tuple[_Share, frozenset[str]]]) -> tuple[Problem, ...]:
    return tuple(
        Problem(file.path, "not-ready", f"node {share.part.node} has it, and has not uploaded it yet")
        for share, fresh in others
        for file in share.timed
        if file.shard and file.path in fresh and file.path not in files
    )


def _borders(shares: Iterable[_Share]) -> list[int]:
    """Points in store time that lie between two saves: no save of the step has files on both sides of one.

    Each part tells one, the end of its run's previous save. Where a node wrote a shard again, another lies half-way
    between the end of the one save and the first new shard of the other.
    """
    borders = {share.part.previous_ns for share in shares if share.part.previous_ns}
    by_node = sorted(shares, key=lambda share: (share.part.node, share.part.saved_ns, share.part.id))
    for earlier, later in pairwise(by_node):
        if earlier.part.node == later.part.node:
            began_ns = earlier.rewritten_in(later)
            if began_ns is not None and began_ns > earlier.part.saved_ns:
                borders.add((earlier.part.saved_ns + began_ns) // 2)
    return sorted(borders)


def _stands(share: _Share, held: _Share) -> bool:
    """Whether a node's later part replaces the one held: it is of another save, or not poorer than the one held."""
    if held.rewritten_in(share) is not None:
        return True
    return (share.newest_ns, len(share.timed)) >= (held.newest_ns, len(held.timed))


def _replaces(part: Part, entry: FileEntry, held: tuple[Part, FileEntry] | None) -> bool:
    """Whether `entry` was written after the one held (equal times: the lowest node name stands)."""
    return held is None or entry.mtime_ns + part.offset_ns > held[1].mtime_ns + held[0].offset_ns


def _dirs(parts: Iterable[Part]) -> dict[str, DirEntry]:
    """The directories of all parts: each as the node had it that changed it last."""
    newest: dict[str, tuple[int, DirEntry]] = {}
    for part in parts:
        for entry in part.dirs:
            changed_ns = entry.mtime_ns + part.offset_ns
            if entry.path not in newest or changed_ns > newest[entry.path][0]:
                newest[entry.path] = (changed_ns, entry)
    return {path: entry for path, (_, entry) in newest.items()}


def _disagreements(parts: Iterable[Part], rules: StepRules) -> tuple[Problem, ...]:
    """The step directory must have a name that stands for this step, the same on all nodes: a restore makes it."""
    names = sorted({(part.name, part.layout) for part in parts})
    if len(names) > 1:
        said = " and ".join(f"{name} ({layout})" for name, layout in names)
        return (Problem("", "name", f"nodes disagree about the step's name or layout: {said}"),)
    wrong = [part for part in parts if rules.step_of(part.name) != part.step]
    return tuple(Problem("", "name", f"{part.name!r} is no name of step {part.step}") for part in wrong[:1])


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
        mine = fresh[part.id]
        for entry in part.files:
            if entry.path not in mine or rules.shard(entry.path) is None:
                continue
            other, held = holders.setdefault(entry.path, (part, entry))
            if held.digest != entry.digest:
                said = f"nodes {other.node} and {part.node} hold different bytes of this shard in one save"
                conflicts.append(Problem(entry.path, "conflict", said))
    return tuple(conflicts)


def _clashes(files: Mapping[str, object], links: Mapping[str, object], parts: Iterable[Part]) -> tuple[Problem, ...]:
    """Nodes must not disagree about what a path is: a link where another node has a directory leads files astray."""
    path = tree_clash([*files, *links], {entry.path for part in parts for entry in part.dirs})
    if path is None:
        return ()
    return (
        Problem(path, "conflict", "nodes disagree whether this, or what it lies in, is a file, a link or a directory"),
    )
