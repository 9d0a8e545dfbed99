"""Which node fetches a chunk from the store: decided by everyone alike, without a word."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

__all__ = ["Ranking"]

_SLOT_DIGITS = 3


class Ranking:
    """Rendezvous hashing: each chunk has an order of the nodes, and losing a node moves that node's chunks alone.

    Args:
        members: addresses of all nodes of the pull, in any order.

    Chunks share orders, 4096 of them: enough to spread evenly, and a restore has far more chunks than those.
    """

    def __init__(self, members: Iterable[str]) -> None:
        self._keys = {member: blake3(member.encode()).digest() for member in sorted(set(members))}
        self._orders: dict[str, tuple[str, ...]] = {}

    def order(self, digest: str) -> tuple[str, ...]:
        """The members; the first is to fetch the chunk from the store, the others are to ask it, then the second."""
        slot = digest[:_SLOT_DIGITS]
        if slot not in self._orders:
            name = slot.encode()
            self._orders[slot] = tuple(sorted(self._keys, key=lambda m: blake3(name, key=self._keys[m]).digest()))
        return self._orders[slot]
