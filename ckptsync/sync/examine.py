"""From a step directory to a verified save: structure, then one read pass that checks and digests everything."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ckptsync.chunks.split import ChunkDigests, FileShape, Plan, split
from ckptsync.disk.assess import Assessment
from ckptsync.disk.saves import Save
from ckptsync.disk.verify import StepInspection, inspect_step, locate, read_step
from ckptsync.errors import CheckpointError, Interrupted
from ckptsync.layouts.base import Layout
from ckptsync.model.manifest import MODE_MASK, ChunkRef, DirEntry, Extent, FileEntry, LinkEntry, Part
from ckptsync.model.merge import unite
from ckptsync.model.step import Level, Listing, Problem
from ckptsync.sync.setup import DeepLimits, Identity

__all__ = [
    "Examined",
    "Progress",
    "deep_problems",
    "examine",
    "lacking_alone",
    "missing_files",
    "restrict",
    "structure_problems",
]

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""
_NOT_PUT = "not-put"
"""The run's id is the store's: push.py fills it in, so that verification never needs the store."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The outcome: a save if nothing is wrong, and what is wrong otherwise. Warnings never stop a save."""

    save: Save | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def restrict(listing: Listing, paths: tuple[str, ...]) -> Listing:
    """The listing with only these files (those of one save)."""
    return replace(listing, files={path: listing.files[path] for path in paths})


def structure_problems(listing: Listing, layout: Layout, inspection: StepInspection, *, root: str) -> list[Problem]:
    """What is wrong with the files that are here, by their formats and the layout's content rules."""
    sizes = {path: stat.size for path, stat in listing.files.items()}
    problems = list(inspection.problems)
    if not problems:

        def read(path: str) -> bytes:
            with open(os.path.join(root, path), "rb") as file:
                return file.read()

        with_links = {**sizes, **dict.fromkeys(listing.links, 0)}
        problems += layout.check(with_links, layout.step_of(listing.name) or 0, read)
    for expected in inspection.expects:
        # an index is written by the process that writes its shards; DCP's shards may lie on other nodes
        if expected.size is None and locate(listing, expected.path) is None:
            problems.append(Problem(expected.path, "missing", f"missing, but {expected.voucher} names it"))
    return problems


def missing_files(listing: Listing, layout: Layout, inspection: StepInspection) -> list[Problem]:
    """What a directory lacks to be a whole step by itself."""
    absent = (expected for expected in inspection.expects if locate(listing, expected.path) is None)
    return [
        *layout.missing({path: stat.size for path, stat in listing.files.items()}),
        *(Problem(expected.path, "missing", f"missing, but {expected.voucher} names it") for expected in absent),
    ]


def lacking_alone(save: Save, layout: Layout, window_ns: int) -> tuple[Problem, ...]:
    """What a save lacks to be a whole step by itself; empty = nothing."""
    return unite([save.part], save.part.saved_ns, layout, window_ns=window_ns).problems


def examine(
    listing: Listing,
    assessment: Assessment,
    layout: Layout,
    identity: Identity,
    *,
    level: Level,
    previous_ns: int,
    deep: DeepLimits,
    root: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Examined:
    """Verify one save at `level`, and make its part.

    Args:
        listing: the step directory.
        assessment: which of its files are the save, and when it ended.
        layout: the run's layout.
        identity: run and node.
        level: at least `full` also compares CRCs and runs the content digests; `structure` digests too,
            since a part needs them, but believes the CRCs.
        previous_ns: end of the save before, for the part.
        deep: limits of level `deep`.
        root: where to read the bytes (the staged copy), if not in the directory itself.
        stop: true = give up (Interrupted).
        progress: told the bytes read.

    Raises:
        StepChanged: a file moved meanwhile.
    """
    root = root or listing.path
    mine = restrict(listing, assessment.paths)
    inspection = inspect_step(mine, root=root)
    problems = structure_problems(mine, layout, inspection, root=root)
    if problems:
        return Examined(None, tuple(problems), listing.warnings)
    plan = split([FileShape(path, mine.files[path].size, inspection.records.get(path, ())) for path in mine.files])
    sink = ChunkDigests(plan)
    outcome = read_step(mine, inspection, root=root, sink=sink, stop=stop, progress=progress)
    problems += [p for p in outcome.problems if level is not Level.STRUCTURE]
    skipped: tuple[Problem, ...] = ()
    if level is Level.DEEP and not problems:
        found = deep_problems(root, tuple(mine.files), deep, stop=stop, progress=progress)
        problems += [problem for problem in found if problem.code != "skipped"]
        skipped = tuple(problem for problem in found if problem.code == "skipped")
    if problems:
        return Examined(None, tuple(problems), listing.warnings)
    part = _part(
        mine, assessment, layout, identity, inspection, plan, sink.digests(), outcome.digests, level, previous_ns
    )
    return Examined(Save(part, dict(mine.files)), (), (*listing.warnings, *skipped))


def deep_problems(
    root: str,
    paths: tuple[str, ...],
    limits: DeepLimits,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> tuple[Problem, ...]:
    """Load every tensor file in a child process and look for NaN and Inf; code `skipped` is a warning.

    While the child works, `progress(0)` says that something goes forward.

    Raises:
        Interrupted: `stop` said so; the child is gone.
    """
    from ckptsync.formats.deep import check_deep  # noqa: PLC0415 - only level deep pays for it

    def go_on() -> bool:
        if progress is not None:
            progress(0)
        return not stop()

    found = check_deep(root, paths, timeout_s=limits.timeout_s, memory_bytes=limits.memory_bytes, go_on=go_on)
    if stop():
        raise Interrupted("stopped while loading a step", where=root)
    return found


def _part(
    listing: Listing,
    assessment: Assessment,
    layout: Layout,
    identity: Identity,
    inspection: StepInspection,
    plan: Plan,
    chunk_digests: tuple[str, ...],
    file_digests: Mapping[str, str],
    level: Level,
    previous_ns: int,
) -> Part:
    step = layout.step_of(listing.name)
    if step is None:
        raise CheckpointError(
            "not a step directory", where=listing.path, why=f"layout {layout.name} does not know the name"
        )
    table, index_of = _chunk_table(plan, chunk_digests)
    return Part(
        run=identity.run,
        run_id=_NOT_PUT,
        step=step,
        name=listing.name,
        below=identity.below,
        node=identity.node,
        node_id=identity.node_id,
        layout=layout.name,
        level=level,
        saved_ns=assessment.end_ns,
        closed=assessment.closed,
        previous_ns=max(previous_ns, 0),
        offset_ns=0,
        files=tuple(
            FileEntry(
                path,
                stat.size,
                stat.mode & MODE_MASK,
                stat.mtime_ns,
                file_digests[path],
                tuple(Extent(index_of[e.chunk], e.offset, e.length) for e in plan.extents.get(path, ())),
            )
            for path, stat in sorted(listing.files.items())
        ),
        links=tuple(LinkEntry(path, target) for path, target in sorted(listing.links.items())),
        dirs=_dirs(listing),
        expects=tuple(inspection.expects),
        chunks=table,
    )


def _chunk_table(plan: Plan, digests: tuple[str, ...]) -> tuple[tuple[ChunkRef, ...], list[int]]:
    """Equal chunks (hard-linked or copied files) become one row."""
    rows: dict[str, int] = {}
    table: list[ChunkRef] = []
    index_of = []
    for ranges, digest in zip(plan.chunks, digests, strict=True):
        if digest not in rows:
            rows[digest] = len(table)
            table.append(ChunkRef(digest, sum(r.length for r in ranges)))
        index_of.append(rows[digest])
    return tuple(table), index_of


def _dirs(listing: Listing) -> tuple[DirEntry, ...]:
    """Directories that hold a file or link of the save, or nothing at all: not those of other saves alone."""
    needed = {""}
    for path in [*listing.files, *listing.links]:
        parent = posixpath.dirname(path)
        while parent:
            needed.add(parent)
            parent = posixpath.dirname(parent)
    inner = {posixpath.dirname(path) for path in listing.dirs if path}
    return tuple(
        DirEntry(path, stat.mode & MODE_MASK, stat.mtime_ns)
        for path, stat in sorted(listing.dirs.items())
        if path in needed or path not in inner
    )
