"""What a restore needs of the other nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ckptsync.model.manifest import ChunkRef
from ckptsync.peers.holdings import Holdings

__all__ = ["Peers"]


class Peers(Protocol):
    """As `exchange.Exchange`, which is only imported where peers are configured. Safe for threads."""

    @property
    def holdings(self) -> Holdings:
        """What this node gives."""

    @property
    def alone(self) -> bool:
        """Whether there is nobody to take from."""

    def learn(self, wanted: Collection[str]) -> None:
        """Ask who has which of these chunks on their disks already. Waits for a bounded time, and raises nothing."""

    def mine(self, digest: str) -> bool:
        """Whether this node is the one to fetch a chunk from the store."""

    def get(self, ref: ChunkRef) -> bytes | None:
        """A chunk from a peer, checked; None = take it from the store. Waits for a bounded time, and raises nothing."""

    def fetched(self, took_s: float, size: int) -> None:
        """The store gave a chunk of `size` raw bytes: what peers are measured by."""
