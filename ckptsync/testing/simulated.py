"""A store and its clients under the control of a test: one request at a time, in an order that the test chooses.

Each actor is a thread of real code with a client of its own. It stops before every request, and goes on when the test
says so: at once, days later, never, or with a fault. The same choices give the same history.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ckptsync.errors import CorruptObject, KeyMissing, StoreRefused, StoreUnavailable
from ckptsync.store import keys
from ckptsync.store.base import Blob, Capabilities, ObjectMeta

__all__ = ["Actor", "Client", "Crashed", "InlineExecutor", "Outcome", "SimulatedStore"]

_check = functools.lru_cache(4096)(keys.check)
_T = TypeVar("_T")
_R = TypeVar("_R")
Outcome = Literal["done", "lost request", "lost reply", "refused", "crash before", "crash after"]
"""What becomes of a request: the two losses look alike to the client; a crash ends it before or after the request."""
_START_NS = 1_800_000_000 * 10**9
_SECOND_NS = 10**9
_PATIENCE_S = 60.0


def _now() -> bool:
    return True


class Crashed(BaseException):
    """The actor's process has been killed; no code may handle this."""


@dataclass
class SimulatedStore:
    """Objects in memory, with a clock that only the test moves.

    Attributes:
        now_ns: the store's clock.
        objects: key -> (content, when it was put in whole seconds, as object stores have it).
        changed: counts what was put and deleted.
        on_delete: told each key that has just been deleted.
    """

    now_ns: int = _START_NS
    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    changed: int = 0
    on_delete: Callable[[str], None] = lambda _: None
    url: str = "memory://simulated"
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(atomic_create=True))

    def put_new(self, key: str, data: Blob) -> bool:
        """As the protocol has it."""
        if _check(key) in self.objects:
            return False
        self.put(key, data)
        return True

    def put(self, key: str, data: Blob) -> None:
        """As the protocol has it."""
        self.objects[_check(key)] = bytes(data), self.now_ns // _SECOND_NS * _SECOND_NS
        self.changed += 1

    def get(self, key: str, *, max_size: int) -> bytes:
        """As the protocol has it."""
        if _check(key) not in self.objects:
            what = "no such object"
            raise KeyMissing(what, where=key)
        data = self.objects[key][0]
        if len(data) > max_size:
            what = "object too large"
            raise CorruptObject(what, where=key)
        return data

    def head(self, key: str) -> ObjectMeta | None:
        """As the protocol has it."""
        found = self.objects.get(_check(key))
        return ObjectMeta(key, len(found[0]), found[1]) if found else None

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """As the protocol has it."""
        below = f"{_check(prefix)}/" if prefix else ""
        found = sorted(key for key in self.objects if key.startswith(below))
        return iter([ObjectMeta(key, len(self.objects[key][0]), self.objects[key][1]) for key in found])

    def children(self, prefix: str) -> tuple[str, ...]:
        """As the protocol has it."""
        skip = len(prefix) + 1
        names = {meta.key[skip:].partition("/") for meta in self.list(prefix)}
        return tuple(sorted({name for name, slash, _ in names if slash}))

    def delete(self, key: str) -> None:
        """As the protocol has it."""
        if self.objects.pop(_check(key), None) is not None:
            self.changed += 1
            self.on_delete(key)


class Actor:
    """A thread that runs `body` with a client of the store, and stands still before each of its requests.

    Args:
        name: for people.
        store: what its client asks.
        body: what it does. It returns when it is done; CkptsyncErrors are for it to handle.
    """

    def __init__(self, name: str, store: SimulatedStore, body: Callable[[Client], None]) -> None:
        self.name, self.done = name, False
        self.error: BaseException | None = None
        self.waits_for = ""
        self._outcome: Outcome = "done"
        self._until: Callable[[], bool] = _now
        self._go, self._stands = threading.Lock(), threading.Lock()  # each released by the other side
        self._go.acquire()
        self._stands.acquire()
        client = Client(store, self)
        self._thread = threading.Thread(target=self._run, args=(client, body), name=name, daemon=True)
        self._thread.start()
        self._stand()

    def __repr__(self) -> str:
        return f"{self.name} {'done' if self.done else self.waits_for}"

    def step(self, outcome: Outcome = "done") -> None:
        """Let the next request happen, and run to the one after that. Raises what the body did not handle."""
        self._resume(outcome, _now)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let at least one request happen, and then all until the condition holds before one. Raises as `step`."""
        self._resume("done", until)

    def _resume(self, outcome: Outcome, until: Callable[[], bool]) -> None:
        assert not self.done
        self._outcome, self._until = outcome, until
        self._go.release()
        self._stand()
        if self.error is not None:
            raise self.error

    def is_before(self, moment: str) -> bool:
        """Whether it stands before a request that changes something, and whose operation or key holds `moment`."""
        return self.waits_for.startswith(("put", "delete")) and moment in self.waits_for

    def crash(self) -> None:
        """Kill it where it stands."""
        if not self.done:
            self.step("crash before")

    def gate(self, operation: str, key: str) -> Outcome:
        """Called by the client's thread: stand still, and learn what is to become of the request."""
        if self._outcome.startswith("crash"):
            raise Crashed  # clean-up code of a dead process
        self.waits_for = f"{operation} {key}"
        if self._outcome != "done" or self._until():
            self._stands.release()
            self._go.acquire()
        return self._outcome

    def _stand(self) -> None:
        if not self._stands.acquire(timeout=_PATIENCE_S):
            msg = f"{self.name} hangs outside the store"
            raise AssertionError(msg)

    def _run(self, client: Client, body: Callable[[Client], None]) -> None:
        try:
            body(client)
        except Crashed:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again in the test's thread
            self.error = error
        self.done = True
        self._stands.release()


class Client:
    """The store protocol as one actor sees it."""

    def __init__(self, store: SimulatedStore, actor: Actor) -> None:
        self._store, self._actor = store, actor

    @property
    def url(self) -> str:
        """The store's."""
        return self._store.url

    @property
    def capabilities(self) -> Capabilities:
        """The store's."""
        return self._store.capabilities

    def put_new(self, key: str, data: Blob) -> bool:
        """As the store's."""
        return self._ask("put_new", key, lambda: self._store.put_new(key, data))

    def put(self, key: str, data: Blob) -> None:
        """As the store's."""
        self._ask("put", key, lambda: self._store.put(key, data))

    def get(self, key: str, *, max_size: int) -> bytes:
        """As the store's."""
        return self._ask("get", key, lambda: self._store.get(key, max_size=max_size))

    def head(self, key: str) -> ObjectMeta | None:
        """As the store's."""
        return self._ask("head", key, lambda: self._store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """As the store's; what is lost of it is its second half."""
        found: tuple[ObjectMeta, ...] = ()

        def request() -> None:
            nonlocal found
            found = tuple(self._store.list(prefix))

        try:
            self._ask("list", prefix, request)
        except StoreUnavailable:
            return self._cut(found[: len(found) // 2], prefix)
        return iter(found)

    def children(self, prefix: str) -> tuple[str, ...]:
        """As the store's."""
        return self._ask("children", prefix, lambda: self._store.children(prefix))

    def delete(self, key: str) -> None:
        """As the store's."""
        self._ask("delete", key, lambda: self._store.delete(key))

    def _cut(self, found: tuple[ObjectMeta, ...], prefix: str) -> Iterator[ObjectMeta]:
        yield from found
        raise StoreUnavailable("request failed", where=prefix, why="the list broke off")

    def _ask(self, operation: str, key: str, request: Callable[[], _T]) -> _T:
        outcome = self._actor.gate(operation, key)
        if outcome == "crash before":
            raise Crashed
        if outcome == "refused":
            raise StoreRefused("request refused", where=key)
        if outcome == "lost request":
            raise StoreUnavailable("request failed", where=key)
        reply = request()
        if outcome == "crash after":
            raise Crashed
        if outcome == "lost reply":
            raise StoreUnavailable("request failed", where=key)
        return reply


class InlineExecutor(Executor):
    """Stands in for a pool of threads: an actor makes one request after the other, always in the same order."""

    def __init__(self, *_: object, **__: object) -> None:
        """Takes what a ThreadPoolExecutor takes."""

    def submit(self, work: Callable[..., _R], /, *arguments: Any, **options: Any) -> Future[_R]:
        """Do it now."""
        future: Future[_R] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Crashed:
            raise
        except BaseException as error:  # noqa: BLE001 - as an executor has it
            future.set_exception(error)
        return future

    def map(
        self,
        fn: Callable[..., _R],
        *iterables: Iterable[Any],
        timeout: float | None = None,  # noqa: ARG002 - as below
        chunksize: int = 1,  # noqa: ARG002 - what a pool takes
    ) -> Iterator[_R]:
        """Do it now, one by one."""
        return iter([fn(*each) for each in zip(*iterables, strict=False)])
