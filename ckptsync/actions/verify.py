"""Judging a step directory: the whole step, or one node's share of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ckptsync.app import Node
from ckptsync.disk.assess import assess, look_around
from ckptsync.disk.scan import list_step, scan, unreadable
from ckptsync.disk.tracker import read_tracker
from ckptsync.disk.verify import inspect_step, read_step
from ckptsync.errors import CheckpointError, UsageError
from ckptsync.layouts import registry
from ckptsync.layouts.base import Layout
from ckptsync.model.step import Level, Listing, LocalState, Problem
from ckptsync.sync.examine import deep_problems, missing_files, restrict, structure_problems
from ckptsync.sync.setup import DeepLimits

__all__ = ["Verdict", "newest_step", "verify_path"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `verify`."""

    step: int | None
    layout: str
    level: Level
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    bytes: int

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems


def verify_path(
    path: str,
    *,
    level: Level,
    deep: DeepLimits,
    window_ns: int,
    layout_name: str = "auto",
    part: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Judge the step directory at `path` (a link is followed): the whole step, or with `part` this node's share.

    Raises:
        CheckpointError: it is not a step directory, or it changes while it is read.
        UsageError: `path` is empty.
    """
    if not path:
        raise UsageError("the path names no directory", why="it is empty", remedy="leave it out for the newest step")
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        remedy = "name the directory of the whole step"
        raise CheckpointError("not a step directory", where=path, why="it is no directory", remedy=remedy)
    name = os.path.basename(path)
    listing = list_step(path)
    layout = (
        registry.load(layout_name, [name]) if layout_name != "auto" else registry.detect({name: tuple(listing.files)})
    )
    if layout is None and layout_name == "auto":
        layout = next((each for each in map(registry.load, registry.names()) if each.step_of(name) is not None), None)
    if layout is None or layout.step_of(name) is None:
        remedy = f"name a step directory, or give its layout with --layout ({', '.join(registry.names())})"
        raise CheckpointError(
            "not a step directory", where=path, why="no layout knows its name and files", remedy=remedy
        )
    listing = list_step(path, ignored=layout.ignored)
    problems = _problems(listing, layout, level, deep, window_ns, part=part, progress=progress)
    return Verdict(layout.step_of(name), layout.name, level, tuple(problems), listing.warnings, listing.size)


def _problems(
    listing: Listing,
    layout: Layout,
    level: Level,
    deep: DeepLimits,
    window_ns: int,
    *,
    part: bool,
    progress: Callable[[int], None] | None,
) -> list[Problem]:
    siblings = scan(os.path.dirname(listing.path), layout)
    index = next((i for i, other in enumerate(siblings) if other.name == listing.name), None)
    beside = siblings if index is not None else (listing,)
    tracker = read_tracker(os.path.dirname(listing.path), layout)
    around = look_around(beside, index or 0, layout, seen={}, tracker=tracker)
    verdict = assess(listing, layout, around, window_ns=window_ns)
    if verdict.state is LocalState.PRUNED:
        return [Problem("", "pruned", "the trainer deleted its shards, nothing can be resumed from it")]
    denied = list(unreadable(listing))
    if denied:
        return denied
    mine = restrict(listing, verdict.paths)
    inspection = inspect_step(mine)
    lacking = [] if part else missing_files(mine, layout, inspection)
    told = {(problem.path, problem.code) for problem in lacking}  # a whole step lacks all that this node's share lacks
    found = [problem for problem in verdict.problems if (problem.path, problem.code) not in told]
    found += [*structure_problems(mine, layout, inspection, root=listing.path), *lacking]
    if level is not Level.STRUCTURE and not found:
        found += read_step(mine, inspection, progress=progress).problems
    if level is Level.DEEP and not found:
        found += [p for p in deep_problems(listing.path, tuple(mine.files), deep) if p.code != "skipped"]
    return list(dict.fromkeys(found))


def newest_step(node: Node) -> str:
    """Path of the newest step directory, for `verify` without a path.

    Raises:
        UsageError: there is none.
    """
    local = node.recognise()
    views = local.look(time.monotonic()) if local is not None else ()
    real = [view for view in views if view.state is not LocalState.PRUNED]
    newest = max(real, key=lambda view: view.listing.newest_ns, default=None)
    if newest is None:
        raise UsageError("nothing to verify", where=node.config.run.output_dir, why="there is no step directory")
    return newest.listing.path
