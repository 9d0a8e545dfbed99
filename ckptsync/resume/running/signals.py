"""Signals that come to `ckptsync exec`: before the command runs they end it, while it runs they are passed on."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import final

from ckptsync.resume.running.guard import PASSED

__all__ = ["LINGER_S", "STOPPING", "Signals", "Stopped"]

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""What asks a process to end."""
LINGER_S = 15.0
_BYTES = 4096
_Handler = Callable[[int, FrameType | None], object] | int | None


class Stopped(KeyboardInterrupt):
    """Asked to end before the command ran. A KeyboardInterrupt: whatever runs ends as cleanly as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@final
class Signals:
    """The signals of this process, for its main thread; a context manager that puts back what was there, or `decide`.

    What was ignored when it began (`nohup`, a shell's `&`) stays ignored, here and in the command. Where cleaning up
    after Stopped takes longer than LINGER_S, since a store does not answer, the process ends hard: all can stand that.

    Attributes:
        stopped: the first of STOPPING that came; 0 = none.
    """

    def __init__(self) -> None:
        self.stopped = 0
        self._raising, self._decided = True, False
        self._before: dict[int, _Handler] = {}
        self._waiting: list[int] = []
        self._lingering: threading.Timer | None = None
        self._read = self._write = self._wakeup_before = -1

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handle(STOPPING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raising = False
        self._linger_no_more()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._decided else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def decide(self) -> None:
        """How this process ends is decided: from the end of the context on, no signal changes that any more."""
        self._decided = True

    def raise_them(self) -> None:
        """From now on one of STOPPING raises Stopped in the main thread, wherever it is; a second one ends the process.

        Raises:
            Stopped: one is in the queue.
        """
        if signal.SIGTSTP in self._before:
            signal.signal(signal.SIGTSTP, self._before.pop(signal.SIGTSTP))
        self._raising = True
        for number in self.take():
            if number in STOPPING:
                raise Stopped(number)

    def queue_them(self) -> None:
        """From now on all that can be passed on is only put into the queue.

        What came before and stops nothing is lost: it was for a command that did not run.
        """
        self._raising = False
        self._linger_no_more()
        self._waiting = [number for number in self.take() if number in STOPPING]
        self._handle(PASSED)

    def take(self) -> list[int]:
        """What is in the queue, in its order; taken out."""
        found, self._waiting = self._waiting, []
        with contextlib.suppress(BlockingIOError):
            found += os.read(self._read, _BYTES)
        self.stopped = self.stopped or next((number for number in found if number in STOPPING), 0)
        return found

    def wait(self, timeout_s: float, *others: int) -> bool:
        """Wait until something is in the queue or one of `others` can be read, at most so long; whether it came."""
        if self._waiting:
            return True
        return bool(select.select([self._read, *others], [], [], timeout_s)[0])

    def _handle(self, numbers: frozenset[int]) -> None:
        for number in numbers - self._before.keys():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on)

    def _on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        if not self._raising or number not in STOPPING:
            return
        if self.stopped:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.stopped = number
        self._lingering = threading.Timer(LINGER_S, _end, [number])
        self._lingering.daemon = True
        self._lingering.start()
        raise Stopped(number)

    def _linger_no_more(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None


def _end(number: int) -> None:
    with contextlib.suppress(OSError):
        os.write(
            2, f"ckptsync: stopped by signal {number}, though something had not ended in {LINGER_S:g} s\n".encode()
        )
    os._exit(128 + number)
