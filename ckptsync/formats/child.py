"""Starting a child process that reads untrusted bytes: bounded in time and output, with nothing secret around it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Outcome", "run_child"]

_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
"""What finding and starting Python may need. No credentials, no HOME (configuration), no PYTHON* (also -I)."""
_WATCH_S = 0.5
_QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Cores and GPUs belong to the trainer."""
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
"""Ctrl-C is not for a child. But another session has a share of the processor of its own (autogroups, sched(7)), which
a daemon that gives way must not get through its children; Python 3.10 knows no other way."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended.

    Attributes:
        output: what it wrote to stdout, at most `output_max` bytes.
        code: exit code; negative = the signal that ended it.
        stopped: why we ended it ("its time was up"), empty where it ended by itself.
    """

    output: bytes
    code: int
    stopped: str


def run_child(
    command: Sequence[str],
    feed: Iterable[bytes],
    *,
    timeout_s: float,
    output_max: int,
    go_on: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Run `command`, give it `feed` on stdin, collect its stdout; kill it after `timeout_s` seconds of wall clock.

    `go_on` is asked twice a second, in another thread; False ends the child.

    The child must read stdin to its end before it writes, and sets its own limits of memory and CPU time: a hook
    between fork and exec is not safe in a process with threads.

    Raises:
        OSError: the child cannot be started; or from `feed`.
    """
    ended = threading.Event()
    reasons: list[str] = []
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _KEPT if name in os.environ} | _QUIET,
        cwd="/",
        **_OWN_GROUP,
    )
    watcher = threading.Thread(
        target=_watch, args=(process, time.monotonic() + timeout_s, go_on, ended, reasons), daemon=True
    )
    watcher.start()
    try:
        output = _exchange(process, feed, output_max + 1)
        if len(output) > output_max:
            process.kill()
        process.wait()
    finally:
        process.kill()
        process.wait()
        ended.set()
        watcher.join()
    too_much = ["it wrote too much"] if len(output) > output_max else []
    return Outcome(output[:output_max], process.returncode, next(iter(reasons + too_much), ""))


def _watch(
    process: subprocess.Popen[bytes],
    deadline: float,
    go_on: Callable[[], bool],
    ended: threading.Event,
    reasons: list[str],
) -> None:
    """Kill the child at the deadline, or when it should not go on."""
    while not ended.wait(min(_WATCH_S, max(deadline - time.monotonic(), 0.0))):
        late = time.monotonic() >= deadline
        if late or not go_on():
            reasons.append("its time was up" if late else "it was asked to stop")
            process.kill()
            return


def _exchange(process: subprocess.Popen[bytes], feed: Iterable[bytes], output_max: int) -> bytes:
    """Write all of `feed`, then read at most `output_max` bytes."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # it died: its exit code says why
            for data in feed:
                stdin.write(data)
        return stdout.read(output_max)
