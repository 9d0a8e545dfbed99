"""Which node fetches a chunk from the store: decided by everyone alike, without a word."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

__all__ = ["Ranking"]


class Ranking:
    """Rendezvous hashing: each chunk has an order of the nodes, and losing a node moves that node's chunks alone.

    Args:
        members: addresses of all nodes of the pull, in any order.
    """

    def __init__(self, members: Iterable[str]) -> None:
        self._keys = {member: blake3(member.encode()).digest() for member in sorted(set(members))}

    def order(self, digest: str) -> list[str]:
        """The members; the first is to fetch the chunk from the store, the others are to ask it, then the second."""
        name = digest.encode()
        return sorted(self._keys, key=lambda member: blake3(name, key=self._keys[member]).digest())
