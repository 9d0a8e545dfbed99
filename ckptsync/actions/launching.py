"""The words of `ckptsync exec`: what is run, a start that is ready, and the end of a job."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ckptsync.actions.launched import ALONE, Launch
from ckptsync.actions.resuming import From, Wanted
from ckptsync.app import Node
from ckptsync.errors import ConflictError

__all__ = ["ExecOptions", "Finished", "Start", "only_one", "resumes", "signal_name"]

_SIGNING_S = 0.3  # by then, whoever has just taken the lock has written who it is


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """What is run, and what goes with it.

    Attributes:
        words: the command, `{resume}` where the arguments go.
        cwd: where it is started.
        env: its environment.
        pull: bring the step back first, and again at each restart.
        wanted: which step.
        preflight: check before each start.
        train_log, python: for the checks and the record.
        launch: with how many nodes, in which attempt.
        daemon: options of the daemon that runs for as long as the job; None = it runs none.
        restart: how often it is started again after a crash.
        adds: the command is the trainer: it gets the resume arguments, and its starts are recorded.
        deadline_s: for how long after a signal, else after the command's end, the last push may go on.
    """

    words: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    pull: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    preflight: bool = False
    train_log: str | None = None
    python: str | None = None
    launch: Launch = ALONE
    daemon: tuple[str, ...] | None = None
    restart: int = 0
    adds: bool = True
    deadline_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Start:
    """A start of the command, ready."""

    words: tuple[str, ...]
    resumed: From | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a job.

    Attributes:
        code: the command's exit code, minus the signal that killed it; 128 + signal where nothing ran any more.
        hard: a thread still waits for a store: leave without waiting for it.
    """

    code: int
    hard: bool = False


def only_one(node: Node) -> AbstractContextManager[object]:
    """This node's run for one `exec` alone, as long as the context lasts, or the process.

    Raises:
        ConflictError: another one is at work.
        ConfigError, NoSpaceError, CkptsyncError: the lock file cannot be used.
    """
    lock = node.exec_lock()
    try:
        lock.acquire(_SIGNING_S)
    except ConflictError:
        who = lock.holder()
        since = (
            f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at_s))}" if (at_s := lock.since_s()) else ""
        )
        end = f"`kill {who.rpartition(' ')[2]}`" if who[-1].isdecimal() else "SIGTERM"
        raise ConflictError(
            f"another `ckptsync exec` of run {node.config.run.name} is at work on this node",
            where=node.config.state_dir,
            why=f"{who}{since}",
            remedy=f"wait for its end, or end it with {end}: two trainers would write into one directory",
        ) from None
    return lock


def resumes(start: Start, node: Node, *, adds: bool) -> str:
    """What this start does, for people."""
    if start.resumed is None:
        return "nothing to resume from: the command stays as it is"
    if not adds:
        return f"step {start.resumed.step} is here; no resume arguments are added"
    if not start.resumed.arguments:
        layout = node.layout.name if node.layout else "unknown"
        return f"step {start.resumed.step} is here; for layout {layout} no resume arguments are known: none are added"
    return f"resumes from step {start.resumed.step}: {shlex.join(start.resumed.arguments)}"


def signal_name(number: int) -> str:
    """`SIGTERM`, as people know it."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
