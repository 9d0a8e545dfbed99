"""A clock that stands still until told otherwise."""

from __future__ import annotations

import threading

__all__ = ["FakeClock"]

_NS = 10**9


class FakeClock:
    """Monotonic and wall time that move only by `advance` and `sleep`. Safe to use from many threads.

    Args:
        wall_s: seconds since the epoch at the start.
        monotonic_s: monotonic seconds at the start.
    """

    def __init__(self, wall_s: float = 1_800_000_000.0, monotonic_s: float = 1000.0) -> None:
        self._wall_ns, self._monotonic_ns = round(wall_s * _NS), round(monotonic_s * _NS)
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def time(self) -> float:
        """Wall time, in seconds since the epoch."""
        return self._wall_ns / _NS

    def time_ns(self) -> int:
        """Wall time, in ns since the epoch."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Monotonic time, in seconds."""
        return self._monotonic_ns / _NS

    def monotonic_ns(self) -> int:
        """Monotonic time, in ns."""
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._wall_ns += round(seconds * _NS)
            self._monotonic_ns += round(seconds * _NS)

    def sleep(self, seconds: float) -> None:
        """Let time pass as a sleeper sees it; `slept` records it."""
        self.slept.append(seconds)
        self.advance(seconds)
