"""Waiting until the daemon has made a step safe."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ckptsync.actions.overview import look_once
from ckptsync.actions.push import first_reason
from ckptsync.app import Node
from ckptsync.model.step import LocalState

__all__ = ["Waited", "wait_for"]

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Waited:
    """What `wait` saw."""

    ok: bool
    step: int | None
    state: str
    message: str


def wait_for(node: Node, step: int | None, *, committed: bool, timeout_s: float | None) -> Waited:
    """Wait until the daemon has verified (or committed) a step: this one, or the newest there is."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wanted = "committed" if committed else "verified"
    while True:
        seen = _waited(node, step, committed=committed, wanted=wanted)
        if seen.ok or seen.state == LocalState.BROKEN.value:
            return seen
        if deadline is not None and time.monotonic() >= deadline:
            return replace(seen, message=f"not {wanted} after {timeout_s:g} s: {seen.message}")
        time.sleep(_POLL_S)


def _waited(node: Node, step: int | None, *, committed: bool, wanted: str) -> Waited:
    local = node.recognise()
    if local is None:
        return Waited(False, step, LocalState.ABSENT.value, "there is no step directory yet")
    local.refresh()
    views = [view for view in look_once(node, local) if view.state is not LocalState.PRUNED]
    newest = max(views, key=lambda view: view.listing.newest_ns, default=None)
    view = newest if step is None else next((view for view in views if view.step == step), None)
    save = view.save if view is not None else next((s for s in reversed(local.known) if s.part.step == step), None)
    number = view.step if view is not None else step
    if save is not None and (not committed or save.commit or local.saves.mark_of(save, "commit") is not None):
        return Waited(True, number, wanted, f"step {number} is {wanted}")
    if view is None and step is not None and committed and node.remote(create=False).index(step).commits:
        return Waited(True, step, wanted, f"step {step} is committed; it is no longer here")
    if view is None:
        return Waited(False, number, LocalState.ABSENT.value, f"there is no step {step}")
    state = view.state.value
    why = f": {first_reason([view])}" if view.problems else ""
    return Waited(False, number, state, f"step {number} is {state}{why}")
