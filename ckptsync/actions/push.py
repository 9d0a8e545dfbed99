"""Uploading a step now, and the one pass over the local steps that commands without a daemon need."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence

from ckptsync.app import Node
from ckptsync.disk.lock import RunLock
from ckptsync.errors import CheckpointError, ConflictError, Interrupted, StepChanged
from ckptsync.model.step import LocalState
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.push import Pushed, push

__all__ = ["LOCK_S", "first_reason", "push_step", "settle_local", "take_lock"]

LOCK_S = 7 * 86400.0
"""How long a command waits for the run's lock: a large verification or pull takes its time."""
_POLL_S = 0.2
_PAUSE_S = 0.5
_PATIENCE = 4
_SAY_AFTER_S = 2.0
_NAMED_MAX = 5


def settle_local(
    local: LocalSteps,
    *,
    beat: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[StepView, ...]:
    """Look until no step is inside `settle`, and verify what is complete: for commands that run without a daemon.

    A step that keeps changing for several times `settle` is being written: it stays SETTLING. `beat` is called while
    that goes on; `say` is told, once, what is waited for, if that lasts.

    Raises:
        Interrupted: `stop` says so.
    """
    begun, told = time.monotonic(), False
    deadline = begun + _PATIENCE * local.setup.settle_s
    while True:
        if stop():
            raise Interrupted("stopped", why="while waiting for steps to settle")
        views = [_take_if_complete(local, view, beat, stop) for view in local.look(time.monotonic())]
        young = [view for view in views if view.state is LocalState.SETTLING]
        if time.monotonic() > deadline or not young:
            return tuple(views)
        if not told and time.monotonic() > begun + _SAY_AFTER_S:
            told = True
            say(_may_be_written([view.step for view in young], max(local.settle_s(view.name) for view in young)))
        time.sleep(_POLL_S)


def _may_be_written(steps: Sequence[int], settle_s: float) -> str:
    named = ", ".join(map(str, sorted(steps, reverse=True)[:_NAMED_MAX]))
    return f"waiting: step {named} may still be written, until nothing has changed there for {settle_s:g} s"


def _take_if_complete(
    local: LocalSteps, view: StepView, beat: Callable[[], None], stop: Callable[[], bool]
) -> StepView:
    return local.take(view, stop=stop, progress=lambda _: beat()) if view.state is LocalState.COMPLETE else view


def push_step(
    node: Node, step: int | None, *, progress: Callable[[int], None], stop: Callable[[], bool] = lambda: False
) -> Pushed:
    """Push the newest verified step, or `step`, now, whatever is due.

    Raises:
        CheckpointError: there is no such step, or it is broken or incomplete.
        Interrupted: `stop` says so; the next push goes on where this one ended.
    """
    local = node.recognise()
    if local is None or node.layout is None:
        raise CheckpointError("no step to push", where=node.output_dir, why="there is no step directory yet")
    lock = node.lock()
    take_lock(lock, stop)
    try:
        view = _pick(settle_local(local, stop=stop), step, node.output_dir)
        assert view.save is not None, "a verified view has its save"
        local.saves.mark(view.save, "due", "pushed by hand")
        staged = node.staging.stage(view.listing)
        local.saves.mark(view.save, "staged", staged.key)
    finally:
        lock.release()
    root, options = staged.listing.path, node.push_options
    try:
        pushed = push(view.save, root, node.remote(), node.saves, node.layout, options, stop=stop, progress=progress)
    except StepChanged:
        if os.path.isdir(root):
            raise
        # a daemon has committed this very save, and let the links go: the step itself is still there, or says so
        root = view.listing.path
        pushed = push(view.save, root, node.remote(), node.saves, node.layout, options, stop=stop, progress=progress)
    take_lock(lock, stop)  # a daemon must not look between the links that go and the new stats
    try:
        node.staging.release(staged.key)
        local.saves.unmark(view.save, "staged")
        local.restat(view.save)
    finally:
        lock.release()
    return pushed


def take_lock(lock: RunLock, stop: Callable[[], bool]) -> None:
    """Take the run's lock; a daemon that verifies may hold it for long.

    Raises:
        Interrupted: `stop` says so.
        ConflictError: another process holds it for days.
    """
    until, waiting = time.monotonic() + LOCK_S, _tell_stderr
    while time.monotonic() < until:
        with contextlib.suppress(ConflictError):
            lock.acquire(_PAUSE_S, waiting=waiting)
            return
        if stop():
            raise Interrupted("stopped", why="while waiting for the run's lock")
        waiting = _tell_nobody
    lock.acquire()


def _tell_nobody(line: str) -> None:
    """It was told before."""


def _tell_stderr(line: str) -> None:
    print(f"ckptsync: {line}", file=sys.stderr)  # noqa: T201 - a person or a script's log waits with us


def _pick(views: Sequence[StepView], step: int | None, where: str) -> StepView:
    verified = [view for view in views if view.state is LocalState.VERIFIED and view.save is not None]
    if step is None:
        newest = max(verified, key=lambda view: view.end_ns, default=None)
        if newest is None:
            raise CheckpointError("no verified step to push", where=where, why=first_reason(views))
        return newest
    view = next((view for view in views if view.step == step), None)
    if view is None:
        raise CheckpointError(f"there is no step {step}", where=where, remedy="`ckptsync steps` shows what is there")
    if view not in verified:
        raise CheckpointError(f"step {step} is {view.state.value}", where=view.listing.path, why=first_reason([view]))
    return view


def first_reason(views: Sequence[StepView]) -> str:
    """The first problem of the newest step that has any."""
    return next((str(problem) for view in reversed(views) for problem in view.problems), "")
