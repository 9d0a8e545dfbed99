"""What there is to resume from, here and in the store, as one look shows it. Reads at most one step's structure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ckptsync.app import Node
from ckptsync.disk.scan import is_absent, list_step
from ckptsync.disk.verify import inspect_step
from ckptsync.errors import CkptsyncError, Interrupted, NothingToResume, StepChanged, StoreError
from ckptsync.model.rounds import Limits
from ckptsync.model.step import LocalState
from ckptsync.resume.context import Resumed
from ckptsync.sync.choose import Choice, Stock, choose, local_unions
from ckptsync.sync.examine import restrict, structure_problems
from ckptsync.sync.launches import Launches
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.remote import Remote

__all__ = ["Seen", "look"]


_STALE = "rollout/"
"""The engine's state, which `ckptsync preflight --fix` deletes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found.

    Attributes:
        node: this node.
        views: its step directories.
        wanted: the number of the newest whole step, here or in the store.
        wanted_path: its directory; "" = what is here is not that, or not all of it.
        offset_ns: store time minus this node's.
        launches: of the run; None = the store does not answer, or does not have the run.
        answers: the store has said all that it was asked; else only this disk is known.
    """

    node: Node
    views: tuple[StepView, ...]
    wanted: int | None
    wanted_path: str = ""
    offset_ns: int = 0
    launches: Launches | None = None
    answers: bool = True

    def resumed(self, path: str) -> Resumed | None:
        """The step in a directory, with what is known of it; None = it is none, or is gone.

        Raises:
            CheckpointError: it is not a directory that can be listed.
        """
        layout = self.node.layout
        step = layout.step_of(os.path.basename(path)) if layout is not None else None
        if layout is None or step is None:
            return None
        real = os.path.realpath(path)
        view = next((view for view in self.views if os.path.realpath(view.listing.path) == real), None)
        if view is None:
            try:
                return Resumed(step, list_step(path, ignored=layout.ignored))
            except StepChanged:
                return None
        save = view.save
        commit = (save.commit or self.node.saves.mark_of(save, "commit") or "") if save is not None else ""
        saved_ns = view.end_ns + self.offset_ns if view.end_ns else 0
        return Resumed(step, view.listing, save.part if save is not None else None, saved_ns, commit)


def look(node: Node) -> Seen:
    """Look once. A store that cannot be reached holds nothing here: the check `store` says so.

    Raises:
        ConfigError: output_dir cannot be read.
    """
    local = node.recognise() if not is_absent(node.config.run.output_dir) else None
    views = local.look(time.monotonic()) if local is not None else ()
    remote, offset_ns, answers = _open(node)
    launches = Launches(remote) if remote is not None else None
    try:
        choice = _newest(node, remote, local, views, offset_ns)
    except StoreError:
        choice, answers = _newest(node, None, local, views, offset_ns), False
    mine = _newest_unverified(local, views) if local is not None else None
    if mine is not None and (choice is None or mine.end_ns + offset_ns > choice.union.end_ns):
        return Seen(node, views, mine.step, mine.listing.path, offset_ns, launches, answers)
    if choice is None:
        return Seen(node, views, None, "", offset_ns, launches, answers)
    view = next((view for view in views if view.step == choice.union.step), None)
    path = view.listing.path if view is not None and _holds(node, view, choice) else ""
    return Seen(node, views, choice.union.step, path, offset_ns, launches, answers)


def _holds(node: Node, view: StepView, choice: Choice) -> bool:
    """Whether a directory holds what is wanted, by names, sizes and times; with several nodes perhaps not all of it."""
    if view.state is LocalState.BROKEN:
        return False
    if view.save is not None and choice.commit and view.save.commit == choice.commit:
        return True  # a pull left it: some file systems keep coarser times than given
    here, wanted, dropped = view.listing.files, choice.union.files, node.dropped()
    found = {path: entry for path, (_, entry) in wanted.items() if path in here}
    alike = all((here[path].size, here[path].mtime_ns) == (e.size, e.mtime_ns) for path, e in found.items())
    whole = all(path in found or dropped(path) or path.startswith(_STALE) for path in wanted)
    return alike and bool(found) and (whole or len(choice.union.parts) > 1)


def _open(node: Node) -> tuple[Remote | None, int, bool]:
    """The run, if the store has it; store time minus this node's; and whether the store answers."""
    try:
        remote = node.remote(create=False)
        if not remote.run_id:
            return None, 0, True
        return remote, remote.clock_offset_ns(node.config.node.name), True
    except (CkptsyncError, Interrupted):
        return None, 0, False


def _newest(
    node: Node, remote: Remote | None, local: LocalSteps | None, views: tuple[StepView, ...], offset_ns: int
) -> Choice | None:
    """The newest step among commits and verified saves that are whole here, in store time. Raises StoreError."""
    unions = []
    if local is not None:
        here = {view.step: view.listing for view in views if view.state is LocalState.VERIFIED}
        whole = [save for save in local.known if local.whole(save)]
        unions = local_unions(whole, here, local.setup.layout, window_ns=node.window_ns, offset_ns=offset_ns)
    try:
        return choose(Stock(remote, node.layout_of(), node.window_ns, unions), Limits())
    except NothingToResume:
        return None


def _newest_unverified(local: LocalSteps, views: tuple[StepView, ...]) -> StepView | None:
    """The newest step that no daemon has verified yet, and that is whole here by names and structure."""
    waiting = [view for view in views if view.state in (LocalState.SETTLING, LocalState.COMPLETE)]
    return next(_whole(local, sorted(waiting, key=lambda view: view.end_ns, reverse=True)), None)


def _whole(local: LocalSteps, views: list[StepView]) -> Iterator[StepView]:
    layout = local.setup.layout
    for view in views:
        if view.assessment is None:
            continue
        mine = restrict(view.listing, view.assessment.paths)
        lacking = layout.missing({path: stat.size for path, stat in mine.files.items()})
        if lacking and not (local.setup.many and view.assessment.closed):
            continue
        try:
            problems = structure_problems(mine, layout, inspect_step(mine), root=view.listing.path)
        except StepChanged:
            continue
        if not problems:
            yield view
