"""How long nodes still wait for each other."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Timer"]

_PAUSE_S, _PAUSE_S_MAX = 0.1, 2.0


class Timer:
    """As long as something moves, it starts again. Pauses between looks grow.

    Args:
        clock: seconds that only grow.
        timeout_s: how long to wait for what does not move.
    """

    def __init__(self, clock: Callable[[], float], timeout_s: float) -> None:
        self._clock, self._timeout_s = clock, timeout_s
        self._end = clock() + timeout_s
        self._seen: object = None
        self._pause_s = _PAUSE_S

    @property
    def left_s(self) -> float:
        """Seconds; 0 = time is up."""
        return max(0.0, self._end - self._clock())

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.left_s <= 0

    def moved(self, seen: object) -> None:
        """What can be seen of others' work; something new = there is time again."""
        if seen != self._seen:
            self._seen = seen
            self._end = self._clock() + self._timeout_s
            self._pause_s = _PAUSE_S

    def next_pause(self) -> float:
        """Seconds until the next look."""
        pause, self._pause_s = self._pause_s, min(_PAUSE_S_MAX, 1.5 * self._pause_s)
        return min(pause, self.left_s)
