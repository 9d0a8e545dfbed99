"""What a restart of the trainer would find, here and now: whether its own tracker leads it to the newest good step."""

from __future__ import annotations

from collections.abc import Sequence

from ckptsync.disk.tracker import TrackerState
from ckptsync.layouts.base import Layout
from ckptsync.model.step import LocalState
from ckptsync.sync.local import StepView

__all__ = ["tracker_problem"]


def tracker_problem(
    layout: Layout, tracker: TrackerState | None, views: Sequence[StepView], *, now_ns: int, settle_s: float
) -> str:
    """Why a restart of the trainer, here and now, would not resume from the newest good step; "" = it would.

    Only for the node that holds the newest verified save's closing file: the trainer writes the tracker there, right
    after it. verl (0.9.1) truncates and then writes it: one without a number that changed less than `settle_s` before
    `now_ns` (by this node's clock) is being written, and the next pass looks again.
    """
    if layout.tracker is None:
        return ""
    if tracker is not None and tracker.step is None and 0 <= now_ns - tracker.mtime_ns < settle_s * 10**9:
        return ""
    verified = [view for view in views if view.save is not None and view.save.part.closed]
    newest = max(verified, key=lambda view: view.end_ns, default=None)
    if newest is None:
        return ""
    why = _why_not(tracker, newest, views)
    fix = f"`ckptsync pull` writes it: step {newest.step} is complete"
    return f"{layout.tracker.name} {why} ({fix})" if why else ""


def _why_not(tracker: TrackerState | None, newest: StepView, views: Sequence[StepView]) -> str:
    if tracker is None:
        return "is missing: the trainer would start from step 0"
    if tracker.step is None:
        return "cannot be read: the trainer would not find a step"
    named = next((view for view in views if view.step == tracker.step), None)
    if named is None:
        return f"names step {tracker.step}, which is not here: the trainer would start from step 0"
    if named.state in (LocalState.BROKEN, LocalState.PRUNED):
        return f"names step {tracker.step}, which is {named.state.value}"
    if named.save and named.step != newest.step and newest.save and tracker.mtime_ns < newest.save.part.saved_ns:
        return f"names step {tracker.step}, but step {newest.step} is newer"
    return ""
