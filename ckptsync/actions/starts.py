"""Starting again after a crash: how long to wait, and when a step is to blame. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptsync.errors import CkptsyncError

__all__ = ["FIRST_PAUSE_S", "NotAgain", "Starts", "pause_s"]

FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_FAILURES = 2


class NotAgain(CkptsyncError):
    """The command is not started again, though restarts are left."""


def pause_s(number: int, first_s: float = FIRST_PAUSE_S) -> float:
    """Seconds before restart `number`, from 1: 5, 10, 20, ... at most five minutes."""
    return min(first_s * 2.0 ** min(number - 1, 30), _LONGEST_PAUSE_S)


@dataclass
class Starts:
    """What became of the starts so far.

    A start that ended without a newer verified save may have failed to load its step; nothing that ckptsync sees tells
    that from another fault. So a step is given up only after two such starts, and only once: if the step before fails
    twice, too, then it is hardly the steps.

    Attributes:
        began_ns: when the last one began, by this node's clock.
        avoid: the step that is given up, until a newer save is there.
        progressed: a start has left a newer save behind.
    """

    began_ns: int = 0
    avoid: tuple[int, ...] = ()
    progressed: bool = False
    _failed: dict[int, int] = field(default_factory=dict)
    _stepped_back: bool = False

    def crashed(self, step: int | None, newest_ns: int) -> bool:
        """A start from `step` (None = from nothing) has crashed.

        Args:
            step: that it resumed from.
            newest_ns: when the newest verified save here ended.

        Returns:
            Whether the step has just been given up.

        Raises:
            NotAgain: a second step would have to be.
        """
        if newest_ns > self.began_ns:
            self._failed.clear()
            self.avoid, self.progressed = (), True
            return False
        if step is None:
            return False
        self._failed[step] = self._failed.get(step, 0) + 1
        if self._failed[step] < _FAILURES:
            return False
        if self._stepped_back:
            raise NotAgain(
                "not started again",
                where=f"step {step}",
                why="no start from it gets to a save, as from the one before it: it is hardly the steps",
                remedy="look at the trainer's last lines",
            )
        self._stepped_back = True
        self.avoid = (step,)
        return True
