"""What the requests of a process cost beside their own time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """Counters, summed over all threads, growing for as long as the process lives.

    Attributes:
        retries: requests that were sent again.
        retry_s: seconds of pauses between the attempts.
        throttled_s: seconds of waiting for the bandwidth limit.
    """

    retries: int = 0
    retry_s: float = 0.0
    throttled_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def retried(self, pause_s: float) -> None:
        """A request is about to be sent again after a pause."""
        with self._lock:
            self.retries += 1
            self.retry_s += pause_s

    def throttled(self, wait_s: float) -> None:
        """A thread has to wait for its turn."""
        with self._lock:
            self.throttled_s += wait_s

    def now(self) -> tuple[int, float, float]:
        """(retries, retry_s, throttled_s) so far, to be subtracted later."""
        with self._lock:
            return self.retries, self.retry_s, self.throttled_s
