"""Which verified saves are due for upload, and why. Pure: the time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

__all__ = ["Cadence", "SavePoint", "due", "idle_after_s"]

_NS = 10**9
_IDLE_SPACINGS = 3
_IDLE_S_MIN = 600.0
_SPACING_GAPS_MIN = 2


@dataclass(frozen=True, slots=True)
class SavePoint:
    """A verified save: its step, when it ended (ns), and whether it was found due before."""

    step: int
    end_ns: int
    due: bool = False


@dataclass(frozen=True, slots=True)
class Cadence:
    """`[upload]`: `every_steps` or `every_s` (seconds; 0 = by steps), `idle_s` (None = automatic), `since` (a step)."""

    every_steps: int = 1
    every_s: float = 0.0
    idle_s: float | None = None
    since: int = 0


def due(saves: Sequence[SavePoint], cadence: Cadence, now_ns: int, *, stopping: bool = False) -> dict[int, str]:
    """The saves that are due: index into `saves` -> the reason, for people.

    Args:
        saves: this run's saves, by the time they ended; the newest that was due must be among them, however old.
        cadence: when to upload.
        now_ns: now, in the clock of the saves.
        stopping: the daemon stops: the newest save is due, whatever its number.
    """
    found: dict[int, str] = {}
    regular = _ByTime(saves, cadence.every_s) if cadence.every_s else _BySteps(saves, cadence.every_steps)
    spacing = _Spacing()
    for index, save in enumerate(saves):
        unusual = spacing.broken_by(save.step)
        reason = regular.reason(index)
        if unusual and not reason:
            reason = "its number breaks the usual spacing"
        if save.due:
            reason = "found due before"
        if reason and save.step >= cadence.since:
            regular.take(index)
            found[index] = reason
    newest = len(saves) - 1
    if saves and newest not in found and saves[newest].step >= cadence.since:
        if stopping:
            found[newest] = "the daemon stops"
        elif (now_ns - saves[newest].end_ns) / _NS > idle_after_s(saves, cadence):
            found[newest] = "no newer save came"
    return found


class _BySteps:
    """The first save past each multiple of `every` on a line; a roll-back begins a new line where it went back to."""

    def __init__(self, saves: Sequence[SavePoint], every: int) -> None:
        self._saves, self._every = saves, every
        self._line: list[int] = []  # steps of the due saves that the current one continues, ascending

    def reason(self, index: int) -> str:
        step = self._saves[index].step
        while self._line and self._line[-1] >= step:
            self._line.pop()
        # every_steps = 1 is each save, also that of step 0
        last = self._line[-1] // self._every if self._line else min(0, self._every - 2)
        if step // self._every <= last or self._taken_later(index):
            return ""
        return f"every {self._every} steps"

    def take(self, index: int) -> None:
        self._line.append(self._saves[index].step)

    def _taken_later(self, index: int) -> bool:
        """Steps that were there before us are verified newest first: a later one may already stand for this one."""
        step = self._saves[index].step
        for later in islice(self._saves, index + 1, None):
            if later.step <= step:
                return False
            if later.due and later.step // self._every == step // self._every:
                return True
        return False


class _ByTime:
    """The first save in each stretch of `every_s`, counted from the epoch.

    Not from the last save that was due: nodes whose clocks or files differ by a second would then drift apart, upload
    different saves for ever, and never commit one.
    """

    def __init__(self, saves: Sequence[SavePoint], every_s: float) -> None:
        self._stretches = [save.end_ns // max(1, int(every_s * _NS)) for save in saves]
        self._taken = {stretch for stretch, save in zip(self._stretches, saves, strict=True) if save.due}
        self._why = f"every {every_s:g} s"

    def reason(self, index: int) -> str:
        return "" if self._stretches[index] in self._taken else self._why

    def take(self, index: int) -> None:
        self._taken.add(self._stretches[index])


class _Spacing:
    """Whether a save's number breaks the usual spacing of the saves before it (a pre-emption save, the last one)."""

    def __init__(self) -> None:
        self._gaps: Counter[int] = Counter()
        self._last: int | None = None
        self._regular = 0  # the newest step that did not break the spacing

    def broken_by(self, step: int) -> bool:
        """Tell the next step; true if it lies off the grid that most earlier saves make."""
        broken = False
        if self._last is not None:
            gap, total = step - self._last, self._gaps.total()
            usual, count = self._gaps.most_common(1)[0] if total else (0, 0)
            if total >= _SPACING_GAPS_MIN and count * 2 > total and 0 < gap < usual:
                # the first regular save after an irregular one is nearer to it, too
                broken = (step - self._regular) % usual != 0
            self._gaps[gap] += 1
        self._last = step
        if not broken:
            self._regular = step
        return broken


def idle_after_s(saves: Sequence[SavePoint], cadence: Cadence) -> float:
    """How long after the newest save its upload is due although its number is not (seconds)."""
    if cadence.idle_s is not None:
        return cadence.idle_s
    spacings = [(b.end_ns - a.end_ns) / _NS for a, b in pairwise(saves)]
    usual = sorted(spacings)[len(spacings) // 2] if spacings else 0.0
    return max(_IDLE_S_MIN, _IDLE_SPACINGS * usual)
