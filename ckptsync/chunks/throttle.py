"""A bandwidth limit shared by the threads of one transfer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Throttle"]


class Throttle:
    """Lets `bytes_per_s` through on average; 0 = no limit."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int) -> None:
        """Account for `size` bytes, and wait until the link would have carried all that was taken before."""
        if self._rate <= 0 or size <= 0:
            return
        with self._lock:
            start = max(self._free_at, self._clock())
            self._free_at = start + size / self._rate
            wait = start - self._clock()
        if wait > 0:
            self._sleep(wait)
