"""How fast the store gives chunks here, and so how long it makes sense to wait for a peer."""

from __future__ import annotations

from ckptsync.peers.limits import Limits

__all__ = ["Pace"]

_WEIGHT = 0.2  # of the newest chunk in the averages


class Pace:
    """Deterministic, without a clock of its own; a race of two threads costs it one of two samples."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slowest_s = 0.0
        self._s_per_byte = 0.0

    def fetched(self, took_s: float, size: int) -> None:
        """The store gave a chunk of `size` raw bytes."""
        self._slowest_s = max(self._slowest_s, took_s)
        rate = took_s / max(size, 1)
        self._s_per_byte += (rate - self._s_per_byte) * (_WEIGHT if self._s_per_byte else 1.0)

    @property
    def limit_s(self) -> float:
        """How long to wait for a chunk of a peer: it may be fetching it from the same store just now."""
        return self._limits.chunk_s + self._limits.factor * self._slowest_s

    def is_slow(self, took_s: float, size: int) -> bool:
        """Whether a chunk took a peer clearly longer than it would have taken the store."""
        usual = self._s_per_byte * size
        return usual > 0 and took_s > self._limits.slow_s and took_s > self._limits.factor * usual
