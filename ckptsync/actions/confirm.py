"""What `confirm` does: read the trainer's log, wait for its first step if asked to, judge, and keep the outcome."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptsync.app import Node
from ckptsync.errors import UsageError
from ckptsync.resume.confirmation.confirm import Confirmation, Confirming, steps_of
from ckptsync.resume.confirmation.confirmed import expected_of, judge_log, keep, newest_launch
from ckptsync.resume.confirmation.newest_start import Logged
from ckptsync.resume.confirmation.tail import Tail
from ckptsync.resume.sources.train_log import read_lines

if TYPE_CHECKING:
    from ckptsync.model.launch import LaunchRecord

__all__ = ["ConfirmOptions", "confirm_log"]

_POLL_S = 0.5
_SLACK_NS = 10 * 10**9  # the clocks of this node and of the store


@dataclass(frozen=True, slots=True)
class ConfirmOptions:
    """What is asked.

    Attributes:
        train_log: the log with the newest start.
        before: a log of the training before, if that is another one.
        step: resumed from; None = as the newest launch by `exec` was recorded, else as the log says.
        follow: wait until there is something to judge.
        timeout_s: at most so long.
        steps: how many logged steps are waited for.
    """

    train_log: str
    before: str | None = None
    step: int | None = None
    follow: bool = False
    timeout_s: float = 1800.0
    steps: int = 1


def confirm_log(node: Node, options: ConfirmOptions, *, say: Callable[[str], None]) -> Confirmation:
    """Judge the newest start in a train log.

    Args:
        node: opened.
        options: what is asked.
        say: told what could not be found out, or kept.

    Raises:
        UsageError: there is no such log, it ends before the newest launch began, or nobody knows which step was
            resumed from.
        ConfigError: a log, or output_dir, cannot be read.
    """
    node.recognise()
    record = newest_launch(node, say)
    step = options.step if options.step is not None or record is None else record.resumed_step
    before: list[Logged] = steps_of(_lines(options.before)) if options.before is not None else []
    confirming = Confirming(expected_of(node, step, before=before, steps=options.steps))
    if options.follow:
        _follow(confirming, options)
    else:
        _refuse_older(options.train_log, record)
        confirming.feed(_lines(options.train_log))
    found = judge_log(node, confirming)
    if found.step is None and found.ok:
        raise UsageError(
            "nobody knows which step was resumed from",
            where=options.train_log,
            why="neither the log nor a launch by `ckptsync exec` tells",
            remedy="--step N",
        )
    keep(node, record, found, options.train_log, say=say)
    return found


def _lines(path: str) -> Iterator[str]:
    try:
        yield from read_lines(path)
    except FileNotFoundError:
        remedy = "name the file that holds the trainer's output"
        raise UsageError("there is no such log", where=path, remedy=remedy) from None


def _refuse_older(path: str, record: LaunchRecord | None) -> None:
    with contextlib.suppress(OSError):
        if record is not None and os.stat(path).st_mtime_ns + _SLACK_NS < record.started_ns:
            remedy = "name the log of the newest start, or wait for it: --follow"
            raise UsageError("the log ends before the newest launch began", where=path, remedy=remedy)


def _follow(confirming: Confirming, options: ConfirmOptions) -> None:
    """Read until there is enough to judge, or time is up. A start counts once it tells more than is there already."""
    tail, deadline = Tail(options.train_log), time.monotonic() + options.timeout_s
    while lines := tail.read():
        confirming.feed(lines)
    confirming.mark()
    while time.monotonic() < deadline:
        lines = tail.read()
        confirming.feed(lines)
        if not lines:
            if confirming.alive and not confirming.result().pending:
                return
            time.sleep(_POLL_S)
