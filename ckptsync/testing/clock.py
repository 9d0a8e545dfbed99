"""A clock that stands still until told otherwise."""

from __future__ import annotations

import threading

__all__ = ["FakeClock"]


class FakeClock:
    """Monotonic time that moves only by `sleep`. Safe to use from many threads."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Monotonic time, in seconds."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass; `slept` records it."""
        with self._lock:
            self.slept.append(seconds)
            self._now_s += seconds
