"""A store that retries, and finds out what became of a request whose reply was lost.

Unknown is not failure: after an unavailable create the object is read back. Absent = try again; equal bytes = it is
created, by us or by an equal writer; other bytes = somebody else was first.
"""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ckptsync.errors import CorruptObject, Interrupted, KeyMissing, StoreUnavailable
from ckptsync.store.base import Blob, Capabilities, ObjectMeta, Store
from ckptsync.store.traffic import Traffic

__all__ = ["RetryingStore"]

_T = TypeVar("_T")
_NAP_S = 0.5


class RetryingStore:
    """Exponential backoff with full jitter around another store.

    Args:
        inner: the store that fails.
        attempts: how often a request is sent at most.
        base_s: upper bound of the first pause, in seconds; doubles with each attempt.
        cap_s: upper bound of any pause, in seconds.
        deadline_s: no new attempt begins later than this after the first, in seconds.
        sleep: waits for seconds.
        random: uniform in [0, 1).
        clock: monotonic seconds.
        stopped: asked before and during each pause; True gives up with Interrupted.
        traffic: told of the retries.
    """

    def __init__(
        self,
        inner: Store,
        *,
        attempts: int = 8,
        base_s: float = 0.25,
        cap_s: float = 20.0,
        deadline_s: float = 300.0,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random_module.random,
        clock: Callable[[], float] = time.monotonic,
        stopped: Callable[[], bool] = lambda: False,
        traffic: Traffic | None = None,
    ) -> None:
        self._inner = inner
        self._attempts, self._base_s, self._cap_s, self._deadline_s = attempts, base_s, cap_s, deadline_s
        self._sleep, self._random, self._clock, self._stopped = sleep, random, clock, stopped
        self._traffic = traffic or Traffic()

    def __repr__(self) -> str:
        return f"RetryingStore({self._inner!r})"

    @property
    def url(self) -> str:
        """The inner store's."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The inner store's."""
        return self._inner.capabilities

    def put_new(self, key: str, data: Blob) -> bool:
        """Create `key` if it is absent. After a lost reply, an object with equal bytes counts as created."""
        unknown = False

        def once() -> bool:
            nonlocal unknown
            if unknown:
                found = self._holds(key, data)
                if found is not None:
                    return found
            retried, unknown = unknown, True
            created = self._inner.put_new(key, data)
            if created or not retried:
                return created
            found = self._holds(key, data)  # perhaps the earlier request has landed late
            if found is None:
                what = "an object came and went"
                raise StoreUnavailable(what, where=f"{self.url}/{key}")
            return found

        return self._retry(once)

    def put(self, key: str, data: Blob) -> None:
        """Create or replace `key`; doing it twice is doing it once."""
        self._retry(lambda: self._inner.put(key, data))

    def get(self, key: str, *, max_size: int) -> bytes:
        """The whole object. Raises KeyMissing, CorruptObject at once."""
        return self._retry(lambda: self._inner.get(key, max_size=max_size))

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, None if absent."""
        return self._retry(lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every object below `prefix + "/"`: all or an error. A list that breaks off starts again."""
        return iter(self._retry(lambda: tuple(self._inner.list(prefix))))

    def children(self, prefix: str) -> tuple[str, ...]:
        """The next path components below `prefix + "/"`: all or an error."""
        return self._retry(lambda: self._inner.children(prefix))

    def delete(self, key: str) -> None:
        """Remove `key`; absent is success."""
        self._retry(lambda: self._inner.delete(key))

    def _holds(self, key: str, data: Blob) -> bool | None:
        """Whether `key` holds exactly `data`; None = absent."""
        try:
            return self._inner.get(key, max_size=len(data)) == data
        except KeyMissing:
            return None
        except CorruptObject:  # larger
            return False

    def _retry(self, request: Callable[[], _T]) -> _T:
        started = self._clock()
        attempt = 1
        while True:
            try:
                return request()
            except StoreUnavailable as error:
                pause = self._random() * min(self._cap_s, self._base_s * 2.0 ** (attempt - 1))
                if attempt >= self._attempts or self._clock() + pause - started > self._deadline_s:
                    raise _final(error, attempt) from error
            self._traffic.retried(pause)
            self._pause(pause)
            attempt += 1

    def _pause(self, seconds: float) -> None:
        """Sleep in naps, so that a stop is noticed soon."""
        while True:
            if self._stopped():
                what = "stopped"
                raise Interrupted(what, where=self.url, why="while waiting to retry")
            if seconds <= 0:
                return
            nap = min(seconds, _NAP_S)
            self._sleep(nap)
            seconds -= nap


def _final(error: StoreUnavailable, attempts: int) -> StoreUnavailable:
    why = f"{error.why}, {attempts} attempts" if attempts > 1 else error.why
    remedy = error.remedy or "check that the store is up; nothing is lost, the work can be repeated"
    return StoreUnavailable(error.what, where=error.where, why=why, remedy=remedy)
