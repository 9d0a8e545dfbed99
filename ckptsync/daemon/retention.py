"""Retention in the daemon: one call in each pass.

What a policy lets go waits until the store has said what is pinned, and that it still holds what it should. What must
give way before the disk is full does not wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ckptsync.app import Node
from ckptsync.daemon.inquiry import Inquiry, Untold
from ckptsync.daemon.retention_plan import LocalPlan, LocalRow, Planner, commit_of, digests_of
from ckptsync.disk.saves import Save
from ckptsync.disk.trash import Trash
from ckptsync.errors import CkptsyncError, StepChanged
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.notes import identity

__all__ = ["Retention", "delete_row", "untold"]

_log = logging.getLogger("ckptsync")
_SELDOM_S = 300.0
_TOLD_S = 86400.0  # how long `status` tells of what was lost


class Retention:
    """The stage that deletes step directories, or tells what could go.

    Args:
        node: opened.
        wake: called when the store has answered.

    Attributes:
        problems: of the last pass.
    """

    def __init__(self, node: Node, wake: Callable[[], None]) -> None:
        self._node, self._wake = node, wake
        self.problems: list[str] = []
        self._planner = Planner(node)
        self._inquiry = Inquiry(node, self._planner.metric, wake)
        self._trash: Trash | None = None
        self._lost: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        """Whether an answer of the store is awaited, or something is being deleted."""
        return self._inquiry.busy or (self._trash is not None and self._trash.busy)

    def run(self, local: LocalSteps, views: Sequence[StepView], uploading: Save | None) -> list[StepView]:
        """One pass, under the run's lock; what fails is a problem. Returns the views of what is still there.

        Args:
            local: of the node.
            views: what the scan has just seen.
            uploading: the save that is being uploaded.
        """
        self.problems = []
        if self._trash is None:
            self._trash = Trash(self._node.staging, self._node.output_dir)
        try:
            return self._run(self._trash, local, views, uploading)
        except CkptsyncError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"retention cannot look at the disk: {error}")
        return list(views)

    def _run(
        self, trash: Trash, local: LocalSteps, views: Sequence[StepView], uploading: Save | None
    ) -> list[StepView]:
        self._inquiry.settle()
        plan = self._planner.plan(
            local,
            views,
            self._inquiry.answer,
            now_ns=time.time_ns(),
            uploading=uploading.name if uploading is not None else "",
            returning=trash.returning if self._planner.active else 0,
        )
        self._make_pinned_due(plan)
        going = plan.going if plan.delete else ()
        gone: list[LocalRow] = []
        for row in going:
            short = plan.still_short(sum(each.facts.bytes for each in gone))
            if self._may_go(row, short=short) and self._delete(trash, row):
                gone.append(row)
        trash.empty_beside()  # also what an earlier process left
        self._ask(plan, local)
        self._lost = {what: at for what, at in self._lost.items() if time.monotonic() - at < _TOLD_S}
        self.problems += [*plan.problems, *self._lost]
        deleted = {row.view.name for row in gone if row.view is not None}
        return [view for view in views if view.name not in deleted]

    def _make_pinned_due(self, plan: LocalPlan) -> None:
        """So that every node uploads its part of a step that somebody pinned."""
        for row in plan.rows:
            if row.save is not None and row.facts.pin is not None and not (row.facts.due or row.facts.committed):
                self._node.saves.mark(row.save, "due", "pinned")

    def _may_go(self, row: LocalRow, *, short: bool) -> bool:
        if row.policy.keep or row.save is None:
            return True
        commit = commit_of(self._node, row.save)
        return short or (self._inquiry.fresh and (not commit or self._inquiry.lost(commit) is False))

    def _delete(self, trash: Trash, row: LocalRow) -> bool:
        try:
            delete_row(self._node, trash, row)
        except StepChanged as error:
            _log.info("%s", error)
            return False
        except CkptsyncError as error:
            self.problems.append(str(error))
            return False
        if row.verdict.loud:
            why = "although the store had lost it" if row.facts.lost else "before it was uploaded"
            what = f"step {row.facts.step} had to be deleted {why}: the disk was about to fill up"
            self._lost[what] = time.monotonic()
        return True

    def _ask(self, plan: LocalPlan, local: LocalSteps) -> None:
        """Ask when something waits for the answer; seldom else, for what other nodes have pinned."""
        inquiry, planner = self._inquiry, self._planner
        asked, notes = planner.questions(plan), untold(self._node, planner, local)
        waits = plan.delete and any(not row.policy.keep and row.save is not None for row in plan.going)
        if waits and inquiry.fault is not None and not plan.pressed:
            self.problems.append(f"nothing is deleted before the store says what is pinned: {inquiry.fault}")
        if (
            (waits and any(inquiry.lost(digest) is None for _, digest in asked.commits))
            or (waits and not inquiry.fresh)
            or not inquiry.values(asked.valued)
            or notes
            or ((planner.active or local.setup.many) and inquiry.idle_s() > _SELDOM_S)
        ):
            inquiry.ask(asked, notes, planner.waiting)


def delete_row(node: Node, trash: Trash, row: LocalRow) -> None:
    """Delete a step directory, and its links in staging; the run's lock is held.

    Raises:
        StepChanged: it is no longer what was judged, and stays.
        CkptsyncError: as the disk says; it stays.
    """
    assert node.layout is not None, "what was judged has a layout"
    if row.view is not None:
        trash.take(row.view.listing, ignored=node.layout.ignored)
    save = row.save
    key = node.saves.mark_of(save, "staged") if save is not None else None
    if save is not None and key is not None:
        node.saves.unmark(save, "staged")
        node.staging.release(key)
    reasons = "; ".join(str(reason) for reason in row.verdict.reasons)
    level = logging.WARNING if row.policy.keep else logging.INFO
    _log.log(level, "step %d is deleted here (%d bytes): %s", row.facts.step, row.facts.bytes, reasons)


def untold(node: Node, planner: Planner, local: LocalSteps) -> list[Untold]:
    """The notes that the store should have and has not, of saves that it knows by a digest."""
    notes = planner.waiting.all()
    found = []
    for save in local.known if notes else ():
        name = identity(save.part)
        if name not in notes:
            continue
        commit = commit_of(node, save)
        digest = next(iter(digests_of(node, save, commit)), "")
        if digest and (commit or notes[name].told != digest):
            found.append(Untold(name, save, digest, bool(commit)))
    return found
