"""Many small waits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

__all__ = ["call_each"]

T = TypeVar("T")
_BATCH = 4096  # futures at a time


def call_each(act: Callable[[T], object], items: Iterable[T], *, threads: int, after: Callable[[], None]) -> None:
    """Call `act` on every item, in threads, and `after` in the caller's when each is done, in their order.

    Raises:
        Exception: the first one of `act` by the items' order; nothing runs any more then.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - many commands never come here

    left = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        while batch := list(islice(left, _BATCH)):
            for _ in pool.map(act, batch):
                after()
