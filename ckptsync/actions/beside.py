"""The node's daemon for as long as a job lives, where no service runs it (Slurm, pods): a child of `ckptsync exec`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ckptsync.app import Node
from ckptsync.errors import ConfigError, ConflictError, UsageError
from ckptsync.resume.running import guard

__all__ = ["DaemonBeside"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
_STARTING_S = 60.0
_POLL_S = 0.02
_FOR_GOOD = frozenset((0, UsageError.exit_code, ConfigError.exit_code, ConflictError.exit_code))
_MAIN = "import sys; sys.path = [p for p in sys.path if p]; from ckptsync.cli.main import main; sys.exit(main())"
"""Without the working directory, where the trainer may have modules of any name."""
_NOT_ITS_OWN = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")
"""What systemd says to exec, if that is a service."""


@dataclass
class DaemonBeside:
    """`ckptsync run` as a child: in a session of its own, since Ctrl-C is for the trainer; it dies with this process.

    Args:
        node: whose daemon.
        options: of `ckptsync run`: which configuration.
        env: its environment.
        say: told what happens, a line each.
    """

    node: Node
    options: Sequence[str]
    env: Mapping[str, str]
    say: Callable[[str], None]
    _child: subprocess.Popen[bytes] | None = None
    _pause_s: float = _FIRST_PAUSE_S
    _again_at: float = 0.0
    _pids: list[int] = field(default_factory=list)

    @property
    def pids(self) -> Sequence[int]:
        """Its process, while there is one."""
        return self._pids

    def start(self) -> None:
        """Start it, unless a daemon of this run has this node already; returns once it holds its lock."""
        if self.node.daemon_lock().taken():
            self.say("a daemon of this run is here already: it is left to do its work")
            return
        self._start()
        until = time.monotonic() + _STARTING_S
        while not self.node.daemon_lock().taken() and time.monotonic() < until:
            if self._child is None or self._child.poll() is not None:
                return
            time.sleep(_POLL_S)

    def watch(self, *, again: bool) -> None:
        """Start it again if it has died; to be called now and then. `again`: not if the whole job is to end."""
        if self._child is None:
            return
        code = self._child.poll()
        if code is None:
            return
        if not self._again_at:
            self._pids.clear()
            if code in _FOR_GOOD or not again:
                if code:
                    self.say(f"the daemon has ended ({_how(code)}): it is not started again")
                self._child = None
                return
            self.say(f"the daemon has ended ({_how(code)}): it is started again in {self._pause_s:.0f} s")
            self._again_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        elif time.monotonic() >= self._again_at:
            self._start()

    @property
    def running(self) -> bool:
        """Whether our own daemon runs."""
        return self._child is not None and self._child.poll() is None

    def tell_to_stop(self) -> None:
        """SIGTERM: it uploads what is due, and the newest verified step, and ends."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)

    def stop(self, until: float, goes_on: Callable[[], bool]) -> None:
        """End it: SIGTERM, and SIGKILL at `until` (monotonic seconds), or when `goes_on` says no; it can stand that."""
        self.tell_to_stop()
        child = self._child
        if child is None:
            return
        while child.poll() is None and time.monotonic() < until and goes_on():
            time.sleep(_POLL_S)
        if child.poll() is None:
            child.kill()
        child.wait()
        self._child = None
        self._pids.clear()

    def _start(self) -> None:
        self._again_at = 0.0
        env = {name: value for name, value in self.env.items() if name not in _NOT_ITS_OWN}
        command = [sys.executable, "-c", _MAIN, "run", *self.options]
        dies_with_us = [sys.executable, "-I", "-S", guard.__file__, "--beside", str(os.getpid()), *command]
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(dies_with_us, env=env, stdin=subprocess.DEVNULL)  # noqa: S603 - ourselves
            self._pids[:] = [self._child.pid]


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
