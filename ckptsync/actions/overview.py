"""What there is, here and in the store: the tables of `steps` and `status`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptsync.app import Node
from ckptsync.daemon.status import summary
from ckptsync.errors import StepChanged
from ckptsync.model.step import LocalState, RemoteState
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.remote import StepIndex

__all__ = ["StepRow", "check_status", "look_once", "rows", "status_report"]

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class StepRow:
    """A line of `steps`."""

    step: int
    local: LocalState
    remote: RemoteState
    latest: bool
    reasons: tuple[str, ...]
    bytes: int


def rows(node: Node, *, with_remote: bool = True) -> list[StepRow]:
    """Every step here and in the store, ascending.

    Raises:
        StoreError: the store cannot be listed.
    """
    local = node.recognise()
    views = look_once(node, local) if local is not None else ()
    latest = node.latest_name()
    remote = node.remote(create=False).index_all() if with_remote else {}
    by_step = {view.step: view for view in views}
    return [_row(by_step.get(step), remote.get(step), step, latest) for step in sorted({*by_step, *remote})]


def look_once(node: Node, local: LocalSteps) -> tuple[StepView, ...]:
    """One scan without the daemon's memory: quiet times come from mtimes, and complete steps get a structural check."""
    now_ns = time.time_ns()
    return tuple(_judge_unverified(node, local, view, now_ns) for view in local.look(time.monotonic()))


def _judge_unverified(node: Node, local: LocalSteps, view: StepView, now_ns: int) -> StepView:
    if view.state is not LocalState.SETTLING or view.assessment is None:
        return view
    from ckptsync.disk.verify import inspect_step  # noqa: PLC0415 - every file format: only for what is not verified yet
    from ckptsync.sync.examine import restrict, structure_problems  # noqa: PLC0415 - as above

    newest = view.listing.newest_ns
    if now_ns - newest < node.config.watch.settle * 10**9:
        return view
    mine = restrict(view.listing, view.assessment.paths)
    try:
        problems = structure_problems(mine, local.setup.layout, inspect_step(mine), root=view.listing.path)
    except StepChanged:
        return view
    state = LocalState.BROKEN if problems else LocalState.COMPLETE
    return StepView(view.step, view.listing, state, tuple(problems), None, view.assessment)


def _row(view: StepView | None, index: StepIndex | None, step: int, latest: str | None) -> StepRow:
    if index is None or not (index.parts or index.commits):
        remote = RemoteState.ABSENT
    else:
        remote = RemoteState.COMMITTED if index.commits else RemoteState.PARTIAL
    if view is None:
        return StepRow(step, LocalState.ABSENT, remote, latest=False, reasons=(), bytes=0)
    size = view.listing.size
    return StepRow(step, view.state, remote, view.name == latest, tuple(str(p) for p in view.problems), size)


def status_report(node: Node) -> dict[str, Any]:
    """The JSON of `status` (docs/commands.md)."""
    local = node.recognise()
    views = look_once(node, local) if local is not None else ()
    known = local.known if local is not None else []
    report = summary(node, views, known, node.latest_name())
    left = [view.step for view in views if view.state in (LocalState.SETTLING, LocalState.COMPLETE)]
    if left and not report["daemon"]["running"]:
        report["problems"].append(
            f"no daemon runs: step {_some(left)} will not be verified or uploaded (`ckptsync run`)"
        )
    return report


def _some(steps: Sequence[int]) -> str:
    shown = sorted(steps, reverse=True)[:_NAMED_MAX]
    return ", ".join(map(str, shown)) + (f" and {len(steps) - len(shown)} more" if len(steps) > len(shown) else "")


def check_status(report: Mapping[str, Any], *, max_age_s: float | None, max_lag: int | None) -> tuple[bool, str]:
    """Whether a report is fine, and one line that says so or what is wrong first."""
    remote, faults = report["remote"], []
    if not report["daemon"]["running"]:
        faults.append("the daemon is not running")
    if remote["committed"] is None:
        if max_age_s is not None or (max_lag is not None and (remote["lag_steps"] or 0) > max_lag):
            faults.append("no step is committed")
    else:
        if max_age_s is not None and remote["age_s"] > max_age_s:
            faults.append(
                f"the last commit (step {remote['committed']}) is {remote['age_s']:.0f} s old, limit {max_age_s:g} s"
            )
        if max_lag is not None and (remote["lag_steps"] or 0) > max_lag:
            faults.append(f"the store lags {remote['lag_steps']} steps behind, {max_lag} are allowed")
    disk = report["disk"]
    if disk["next_save"] is not None and disk["free"] < disk["next_save"]:
        faults.append(f"the next save needs about {disk['next_save']} bytes, {disk['free']} are free")
    if faults:
        hint = f" ({report['problems'][0]})" if report["problems"] else ""
        return False, "; ".join(faults) + hint
    return True, f"ok: step {remote['committed']} is committed, {remote['lag_steps'] or 0} steps behind"
