"""A bandwidth limit for everything that a process sends to its store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from ckptsync.errors import Interrupted
from ckptsync.store.base import Blob, Capabilities, ObjectMeta, Store
from ckptsync.store.traffic import Traffic

__all__ = ["Throttle", "ThrottledStore"]

_NAP_S = 0.2


class Throttle:
    """Whoever sends waits for its turn first; all threads share the one limit.

    In any stretch of t seconds, `bytes_per_s * t` bytes and one object more begin to be sent: an object is one request,
    and goes as fast as the link allows.

    Args:
        bytes_per_s: the limit; above 0.
        clock: monotonic seconds.
        sleep: waits for seconds.
        traffic: told of the waiting.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        traffic: Traffic | None = None,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._traffic = traffic or Traffic()

    def take(self, size: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until `size` bytes may be sent.

        Raises:
            Interrupted: `stopped` said so meanwhile; nothing is to be sent.
        """
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now)
            self._free_at = start + size / self._rate
        self._traffic.throttled(start - now)
        while (left := start - self._clock()) > 0:
            if stopped():
                raise Interrupted("stopped", why="while waiting for [upload] bandwidth")
            self._sleep(min(left, _NAP_S))


class ThrottledStore:
    """The Store protocol, with a limit on what is put. Reading is free: a resume waits for it.

    Args:
        inner: the store, below the retries: what is sent again counts again.
        throttle: the limit.
        stopped: asked while waiting; True gives up with Interrupted.
    """

    def __init__(self, inner: Store, throttle: Throttle, *, stopped: Callable[[], bool] = lambda: False) -> None:
        self._inner, self._throttle, self._stopped = inner, throttle, stopped

    def __repr__(self) -> str:
        return f"ThrottledStore({self._inner!r})"

    @property
    def url(self) -> str:
        """The inner store's."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The inner store's."""
        return self._inner.capabilities

    def put_new(self, key: str, data: Blob) -> bool:
        """As the inner store's, when it is this object's turn."""
        self._throttle.take(len(data), self._stopped)
        return self._inner.put_new(key, data)

    def put(self, key: str, data: Blob) -> None:
        """As the inner store's, when it is this object's turn."""
        self._throttle.take(len(data), self._stopped)
        self._inner.put(key, data)

    def get(self, key: str, *, max_size: int) -> bytes:
        """As the inner store's."""
        return self._inner.get(key, max_size=max_size)

    def head(self, key: str) -> ObjectMeta | None:
        """As the inner store's."""
        return self._inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """As the inner store's."""
        return self._inner.list(prefix)

    def children(self, prefix: str) -> tuple[str, ...]:
        """As the inner store's."""
        return self._inner.children(prefix)

    def delete(self, key: str) -> None:
        """As the inner store's."""
        self._inner.delete(key)
