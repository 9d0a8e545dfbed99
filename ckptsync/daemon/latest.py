"""What `latest` names: the newest verified whole step, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ckptsync.app import Node
from ckptsync.disk.promote import Pointer, promote
from ckptsync.errors import CheckpointError, CkptsyncError, StepChanged
from ckptsync.layouts import registry
from ckptsync.layouts.base import Layout
from ckptsync.model.step import LocalState
from ckptsync.sync.local import LocalSteps, StepView

__all__ = ["UNSETTLED", "Latest"]

_log = logging.getLogger("ckptsync")
UNSETTLED = (LocalState.SETTLING, LocalState.COMPLETE)
"""A step in one of these may become ready by itself."""
_Views = tuple[StepView, ...]


class Latest:
    """Moves `latest`, and takes it back. Used under the run's lock, but for `withdraw_from_nothing`.

    Args:
        node: opened.
        beat: called while something goes forward.

    Attributes:
        problems: of the last `point`.
    """

    def __init__(self, node: Node, beat: Callable[[], None]) -> None:
        self._node, self._beat = node, beat
        self.problems: list[str] = []

    def repair(self) -> None:
        """Remove what a killed process left of a link."""
        if (pointer := self._pointer()) is not None:
            pointer.repair()

    def leave(self, before: Layout) -> None:
        """The layout is another one now: a link where only `before` has it is looked after by nobody."""
        old, new = self._node.pointer(before, self._node.staging, self._node.output_dir), self._pointer()
        if old is not None and (new is None or new.path != old.path) and old.obstacle() is None:
            old.withdraw()

    def withdraw_from_nothing(self) -> None:
        """No step directory is left: `latest` names nothing then, wherever the layout of the last save has it."""
        node = self._node
        for save in node.saves.load()[-1:]:
            pointer = node.pointer(registry.load(save.part.layout), node.staging, node.output_dir)
            if pointer is not None and pointer.obstacle() is None and pointer.current() is not None:
                pointer.withdraw()
                _log.warning("latest named a step that is gone: link removed")

    def point(self, local: LocalSteps, views: _Views) -> tuple[str | None, _Views]:
        """Move `latest` to the newest verified whole step, or take it back from one that no longer is.

        Returns:
            The directory that it names now (None = nothing), and the views with what was found out meanwhile.
        """
        self.problems = []
        pointer = self._pointer()
        if pointer is None:
            return None, views
        try:
            current = pointer.current()
        except CkptsyncError as error:
            self.problems.append(f"promotion is off: {error}")
            return None, views
        candidates = [view for view in views if view.save is not None and local.whole(view.save)]
        best = max(candidates, key=lambda view: view.end_ns, default=None)
        if best is not None and best.name != current:
            fault = self._promote(local, best, pointer)
            if fault is None:
                return best.name, views
            return current, tuple(fault if view is best else view for view in views)
        if best is None and current is not None and not self._undecided(current, views):
            pointer.withdraw()
            _log.warning("latest no longer names a verified step: link to %s removed", current)
            return None, views
        return current, views

    def _promote(self, local: LocalSteps, view: StepView, pointer: Pointer) -> StepView | None:
        """None: `latest` names it now. Else it does not, and the step is as the view says."""
        _ = self._node.staging.temp_dir  # made by being asked for; the pointer only knows its path
        try:
            promote(view.listing, pointer, beat=self._beat)
        except StepChanged as error:
            _log.info("latest stays: %s", error)  # the next scan sees what became of the step
            return view
        except CheckpointError as error:
            # not to be tried again: the kernel tells once that it lost the pages, and then takes them for clean
            staged = local.saves.mark_of(view.save, "staged") if view.save is not None else None
            if staged is not None:
                self._node.staging.release(staged)
            self.problems.append(str(error))
            return local.condemn(view, str(error))
        _log.info("latest -> %s", view.name)
        return None

    def _pointer(self) -> Pointer | None:
        assert self._node.layout is not None, "recognised before"
        return self._node.pointer(self._node.layout, self._node.staging, self._node.output_dir)

    def _undecided(self, name: str, views: _Views) -> bool:
        """Nothing speaks against a step that this process has not verified yet (the cache was deleted, say)."""
        view = next((view for view in views if view.name == name), None)
        remembered = any(save.part.name == name for save in (self._node.local.known if self._node.local else ()))
        return view is not None and view.state in UNSETTLED and not remembered
