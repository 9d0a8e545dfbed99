"""Which saves a roll-back has left behind. Pure: a decision is a turn of the run, back to the save that it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Turn", "superseded"]


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """A decision of all nodes: made at `decided_ns`, for the save that ended at `saved_ns` (both store time)."""

    decided_ns: int
    saved_ns: int


def superseded(end_ns: int, turns: Iterable[Turn]) -> bool:
    """Whether a save lies on a line that a roll-back has left.

    The run's line is followed back from the newest turn: between the save that a turn names and the turn itself,
    nothing belongs to it. Turns that were made on a line which was left later say nothing.

    Args:
        end_ns: when the save ended, store time.
        turns: of all attempts, in any order.
    """
    bound_ns: int | None = None
    for turn in sorted(turns, reverse=True):
        if bound_ns is not None and turn.decided_ns >= bound_ns:
            continue
        if end_ns > turn.decided_ns:
            return False
        if end_ns > turn.saved_ns:
            return True
        bound_ns = turn.saved_ns
    return False
