"""A bounded pipeline: many items, few threads, a cap on the bytes in flight."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ckptsync.errors import Interrupted

__all__ = ["run_bounded"]

T = TypeVar("T")
R = TypeVar("R")


def run_bounded(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    workers: int,
    budget_bytes: int,
    cost: Callable[[T], int],
    stop: Callable[[], bool],
    done: Callable[[T, R], None] | None = None,
    limit: Callable[[], int] | None = None,
) -> None:
    """Call `work` on every item, in threads; return when all is done.

    Args:
        items: taken one by one, only when there is room for the next; may be endless until `stop`.
        work: called in a worker thread.
        workers: threads at most.
        budget_bytes: cap on the summed cost of the items in flight; an item that costs more runs alone.
        cost: bytes an item needs while in flight.
        stop: asked before each item.
        done: called in the caller's thread with each result, in the order of completion; also for items that
            succeed after another one failed.
        limit: threads at most for now; asked before each item. At least one works whatever it says.

    Raises:
        Interrupted: `stop` said so; nothing was in flight any more.
        Exception: the first one of `work`, `done`, `cost` or `items`. Nothing new is started after it, and what was
            running has ended.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="chunks") as pool:
        flight = _Flight(work, workers, budget_bytes, done, pool, limit or (lambda: workers))
        try:
            for item in items:
                price = cost(item)
                flight.make_room(price)
                _heed(stop)
                flight.start(item, price)
            flight.make_room(None)
        except BaseException:
            flight.abandon()
            raise


@dataclass(slots=True)
class _Flight(Generic[T, R]):
    """What is in the air. Never more than `workers` futures, so that none ever waits for a thread."""

    work: Callable[[T], R]
    workers: int
    budget: int
    done: Callable[[T, R], None] | None
    pool: ThreadPoolExecutor
    limit: Callable[[], int]
    running: dict[Future[R], tuple[T, int]] = field(default_factory=dict)

    def start(self, item: T, price: int) -> None:
        self.running[self.pool.submit(self.work, item)] = (item, price)

    def make_room(self, price: int | None) -> None:
        """Land items until one of this price may start; None = until all are down."""
        while self.running and (price is None or self._full(price)):
            self._land()

    def abandon(self) -> None:
        """Let all land. The error that led here is the one to raise; those that follow are its echo."""
        wait(self.running)
        for future, (item, _) in self.running.items():
            if self.done is not None and future.exception() is None:
                with contextlib.suppress(Exception):
                    self.done(item, future.result())

    def _full(self, price: int) -> bool:
        spent = sum(cost for _, cost in self.running.values())
        return len(self.running) >= min(self.workers, self.limit()) or spent + price > self.budget

    def _land(self) -> None:
        finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
        for future in finished:
            item, _ = self.running.pop(future)
            result = future.result()
            if self.done is not None:
                self.done(item, result)


def _heed(stop: Callable[[], bool]) -> None:
    if stop():
        what = "interrupted"
        raise Interrupted(what)
