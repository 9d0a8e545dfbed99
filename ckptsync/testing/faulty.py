"""A store that fails on purpose: by a script, or at random from a seed. Every fault that was planned must happen."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from ckptsync.errors import CkptsyncError, KeyMissing, NoSpaceError, StoreRefused, StoreUnavailable
from ckptsync.store.base import Blob, Capabilities, ObjectMeta, Store

__all__ = ["Fault", "FaultyStore", "Kind", "Operation"]

_T = TypeVar("_T")
Operation = Literal["put_new", "put", "get", "head", "list", "children", "delete", "*"]
Kind = Literal[
    "before", "after", "conflict", "refused", "full", "missing", "wrong bytes", "truncated", "cut list", "delay"
]
_ON_GET = frozenset({"wrong bytes", "truncated"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    Attributes:
        operation: the method it hits, "*" = any.
        kind: "before" = unavailable, nothing done; "after" = done, but the reply is lost; "conflict" = the store
            says 409; "refused"; "full" = no space; "missing" = as if absent (get); "wrong bytes", "truncated" (get);
            "cut list" = unavailable after half of the list was yielded; "delay" = `delay_s` later, else fine.
        key: pattern of the keys or prefixes it hits (fnmatch; `*` matches slashes, too).
        nth: counting from 1, the first matching call it hits.
        times: how many matching calls it hits from there on.
        delay_s: for "delay", in seconds.
    """

    operation: Operation
    kind: Kind
    key: str = "*"
    nth: int = 1
    times: int = 1
    delay_s: float = 0.0

    def matches(self, operation: str, key: str) -> bool:
        """Whether a call is one of those that are counted for this fault."""
        return self.operation in ("*", operation) and fnmatchcase(key, self.key)


class FaultyStore:
    """The Store protocol with faults. Safe to use from many threads.

    Args:
        inner: the store that would not fail.
        plan: scripted faults; of several that match, the first one happens.
        rates: probability of a random fault per call and kind, for the calls it makes sense for.
        seed: of the random faults.
        sleep: waits for seconds, for "delay".

    Attributes:
        calls: every call so far, (operation, key or prefix).
        hits: every fault so far, (kind, operation, key or prefix).
    """

    def __init__(
        self,
        inner: Store,
        plan: Sequence[Fault] = (),
        *,
        rates: Mapping[Kind, float] | None = None,
        seed: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner, self._plan, self._rates, self._sleep = inner, tuple(plan), dict(rates or {}), sleep
        self._seen = [0] * len(self._plan)
        self._random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []
        self.hits: list[tuple[str, str, str]] = []

    @property
    def url(self) -> str:
        """The inner store's."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The inner store's."""
        return self._inner.capabilities

    def assert_all_hit(self) -> None:
        """Raise AssertionError if a planned fault has not happened as often as planned, or a random kind never."""
        missed = [f for f, seen in zip(self._plan, self._seen, strict=True) if seen < f.nth + f.times - 1]
        kinds = {kind for kind, _, _ in self.hits}
        never = [kind for kind, rate in self._rates.items() if rate > 0 and kind not in kinds]
        if missed or never:
            msg = f"planned faults that never happened: {missed + never}"
            raise AssertionError(msg)

    def put_new(self, key: str, data: Blob) -> bool:
        """As the inner store's, with faults."""
        return self._call("put_new", key, lambda: self._inner.put_new(key, data))

    def put(self, key: str, data: Blob) -> None:
        """As the inner store's, with faults."""
        self._call("put", key, lambda: self._inner.put(key, data))

    def get(self, key: str, *, max_size: int) -> bytes:
        """As the inner store's, with faults."""
        fault = self._draw("get", key)
        data = self._run(fault, key, lambda: self._inner.get(key, max_size=max_size))
        if fault is not None and fault.kind == "wrong bytes":
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :] if data else b"\0"
        return data[: len(data) // 2] if fault is not None and fault.kind == "truncated" else data

    def head(self, key: str) -> ObjectMeta | None:
        """As the inner store's, with faults."""
        return self._call("head", key, lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """As the inner store's, with faults."""
        fault = self._draw("list", prefix)
        found = self._run(fault, prefix, lambda: tuple(self._inner.list(prefix)))
        if fault is not None and fault.kind == "cut list":
            return self._cut(prefix, found)
        return iter(found)

    def children(self, prefix: str) -> tuple[str, ...]:
        """As the inner store's, with faults."""
        return self._call("children", prefix, lambda: self._inner.children(prefix))

    def delete(self, key: str) -> None:
        """As the inner store's, with faults."""
        self._call("delete", key, lambda: self._inner.delete(key))

    def _cut(self, prefix: str, found: Sequence[ObjectMeta], kind: Kind = "cut list") -> Iterator[ObjectMeta]:
        yield from found[: len(found) // 2]
        raise self._error(kind, prefix)

    def _call(self, operation: str, key: str, request: Callable[[], _T]) -> _T:
        return self._run(self._draw(operation, key), key, request)

    def _run(self, fault: Fault | None, key: str, request: Callable[[], _T]) -> _T:
        if fault is None:
            return request()
        if fault.kind == "delay":
            self._sleep(fault.delay_s)
        if fault.kind in ("before", "conflict", "refused", "full", "missing"):
            raise self._error(fault.kind, key)
        reply = request()
        if fault.kind == "after":
            raise self._error(fault.kind, key)
        return reply

    def _draw(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            self.calls.append((operation, key))
            fault = self._scripted(operation, key) or self._chance(operation)
            if fault is not None:
                self.hits.append((fault.kind, operation, key))
            return fault

    def _scripted(self, operation: str, key: str) -> Fault | None:
        hit = None
        for index, fault in enumerate(self._plan):
            if not fault.matches(operation, key):
                continue
            if hit is not None and self._seen[index] + 1 >= fault.nth:
                continue  # another one happens now; this one waits for its turn
            self._seen[index] += 1
            if hit is None and fault.nth <= self._seen[index] < fault.nth + fault.times:
                hit = fault
        return hit

    def _chance(self, operation: str) -> Fault | None:
        for kind, rate in self._rates.items():
            fits = operation == "get" if kind in _ON_GET else operation == "list" if kind == "cut list" else True
            if kind == "conflict":
                fits = operation == "put_new"
            if fits and self._random.random() < rate:
                return Fault("*", kind)
        return None

    def _error(self, kind: Kind, key: str) -> CkptsyncError:
        where = f"{self.url}/{key}"
        if kind == "refused":
            return StoreRefused("request refused", where=where, why="a planned fault")
        if kind == "full":
            return NoSpaceError("no space", where=where, why="a planned fault")
        if kind == "missing":
            return KeyMissing("no such object", where=where, why="a planned fault")
        return StoreUnavailable("request failed", where=where, why=f"a planned fault ({kind})")
