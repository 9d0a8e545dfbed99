"""Which of this node's saves are due, by `[upload]`, and which would be once they are verified."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ckptsync.app import Node
from ckptsync.disk.saves import Save
from ckptsync.model.due import SavePoint, due
from ckptsync.sync.local import LocalSteps, StepView

__all__ = ["due_if_verified", "mark_due"]


def due_if_verified(node: Node, local: LocalSteps, view: StepView) -> str:
    """Why the step would be due, so that it can be staged before it is read; "" = it would not."""
    points = _points(node, _own(local))
    points = sorted([*points, SavePoint(view.step, view.end_ns)], key=lambda point: point.end_ns)
    found = due(points, node.cadence, time.time_ns())
    return next(
        (reason for i, reason in found.items() if points[i].step == view.step and points[i].end_ns == view.end_ns),
        "",
    )


def mark_due(node: Node, local: LocalSteps, *, stopping: bool = False) -> None:
    """Mark what is due, with the reason. `stopping`: the daemon ends, so the newest save is."""
    own = _own(local)
    for index, reason in due(_points(node, own), node.cadence, time.time_ns(), stopping=stopping).items():
        if local.saves.mark_of(own[index], "due") is None:
            local.saves.mark(own[index], "due", reason)


def _own(local: LocalSteps) -> list[Save]:
    """Without what a pull brought back."""
    return [save for save in local.known if not save.commit]


def _points(node: Node, saves: Sequence[Save]) -> list[SavePoint]:
    marks = node.saves.mark_of
    return [SavePoint(save.part.step, save.part.saved_ns, marks(save, "due") is not None) for save in saves]
