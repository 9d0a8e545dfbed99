"""How long, how much, how many: the bounds of what nodes do for and expect of each other."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, where nothing else is said.

    Attributes:
        silence_s: a peer that cannot be connected to, or says nothing, for so long is dropped; more than `hold_s`.
        chunk_s: a peer that has not given a chunk after so long, and `factor` times what the store's slowest chunk took
            here, is dropped.
        slow_s, factor, strikes: a peer is dropped after so many chunks one after the other, each of which took
            longer to arrive than `slow_s` and `factor` times what the store took on average.
        hold_s: a server lets a request wait so long for a chunk that is about to come, then says "not yet".
        sends: chunks that a server reads and sends at the same time.
        send_s: a client that has not taken a chunk after so long is cut off.
        idle_s: a connection without a complete request for so long is closed.
        connections: more are closed at once.
        asked: peers that are asked for one chunk before the store.
        linger_idle_s, linger_s: a finished pull goes on giving until all peers have finished; until nobody asked for so
            long; until so long after its end.
    """

    silence_s: float = 5.0
    chunk_s: float = 10.0
    slow_s: float = 1.0
    factor: float = 4.0
    strikes: int = 3
    hold_s: float = 2.0
    sends: int = 8
    send_s: float = 60.0
    idle_s: float = 30.0
    connections: int = 256
    asked: int = 3
    linger_idle_s: float = 10.0
    linger_s: float = 600.0
