"""The command of `ckptsync exec`: a child behind a guard (guard.py), in our process group, with our stdin."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ckptsync.errors import CkptsyncError
from ckptsync.resume.running import guard

__all__ = ["CannotStart", "Child", "Ended"]

_PACKET = 4096
_KILLED = -int(signal.SIGKILL)
_ROUNDS = 100


class CannotStart(CkptsyncError):
    """The command was not started; `exit_status` is what a shell gives then: 127 = not found, 126 = not executable."""

    def __init__(self, word: str, number: int) -> None:
        super().__init__("cannot start the command", where=word, why=os.strerror(number))
        self.exit_status = 127 if number == 2 else 126  # noqa: PLR2004 - ENOENT


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended.

    Attributes:
        code: its exit code; minus the signal that killed it.
        alone: no process that it started is left.
    """

    code: int
    alone: bool

    @property
    def shell_code(self) -> int:
        """As shells count: 128 + signal."""
        return self.code if self.code >= 0 else 128 - self.code


@final
class Child:
    """A running command. Not for several threads.

    Args:
        words: the command.
        env: its environment.
        cwd: its working directory; None = ours.
        others: other children of this process, by now.
        output: descriptor of a file that gets what it prints; None = it prints where we do.

    Attributes:
        pid: of the command.
        root: of the process below which all is that the command starts, whoever started it.
        ended: None while it runs.
        alone: whether it and all that it started have ended.

    Raises:
        CannotStart: there is no such program, or it may not be executed.
    """

    ended: Ended | None

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        others: Callable[[], Collection[int]] = tuple,
        output: int | None = None,
    ) -> None:
        self.pid, self.ended, self.alone, self._others = 0, None, False, others
        guard.set_subreaper()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            command = [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), *words]
            # what we were given beside 0, 1 and 2 is the command's: Slurm's PMI, make's job server. A directory keeps
            # Python from posix_spawn, which leaves two signals ignored
            self._guard = subprocess.Popen(  # noqa: S603 - the user's
                command, env=env, cwd=cwd or ".", close_fds=False, stdout=output, stderr=output
            )
        self.root = self._guard.pid
        word, number = self._receive() or ("failed", "5")
        if word == "failed":
            self._let_go()
            raise CannotStart(words[0], int(number))
        self.pid = int(number)

    def fileno(self) -> int:
        """Can be read when `look` has something to do."""
        return self._channel.fileno()

    def look(self) -> None:
        """Take in what has happened, if anything has. A command that was stopped stops this process, too."""
        try:
            said = self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if said is None:
            self._guard_is_gone()
        elif said[0] == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # whoever started us sees the job stop, and `fg` wakes both
        elif said[0] == "ended":
            self.ended = Ended(os.waitstatus_to_exitcode(int(said[1])), alone=said[2] == "1")
            self.alone = self.ended.alone
        elif said[0] == "alone":
            self.alone = True

    def pass_on(self, number: int) -> None:
        """Give the command a signal that came to this process; after its end, to what is left of it."""
        self._say(f"pass {number}")

    def pass_to_rest(self, number: int) -> None:
        """The command ended of this signal, say a shell that does not pass it on: what it left gets it, too, once."""
        self._say(f"rest {number}")

    def leave(self) -> None:
        """The command has ended: what it has left running goes on."""
        self._say("leave")
        self._let_go()

    def kill(self) -> None:
        """Kill the command and all that it started; returns when none is left."""
        self._say("kill")
        self._let_go()

    def _guard_is_gone(self) -> None:
        """Somebody has killed it, and the kernel the command with it. What that had started is our child now."""
        self.ended, self.alone = self.ended or Ended(_KILLED, alone=False), True
        self._guard.wait()
        for _ in range(_ROUNDS):
            orphans = guard.descendants(os.getpid(), without=self._others())
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)  # one that is not our child yet will be in the next round
            if not orphans:
                return

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(line.encode())

    def _receive(self, flags: int = 0) -> list[str] | None:
        """One packet; None = there will be no more."""
        try:
            return self._channel.recv(_PACKET, flags).decode().split() or None
        except ConnectionError:
            return None

    def _let_go(self) -> None:
        guard.set_subreaper(on=False)  # what it leaves belongs to init, as without us
        self._guard.wait()
        self._channel.close()
