"""Which verified saves are due for upload, and why. Pure: the time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Cadence", "SavePoint", "due", "idle_after_s"]

_NS = 10**9
_IDLE_SPACINGS = 3
_IDLE_S_MIN = 600.0
_SPACING_SAVES_MIN = 3


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
        saves: this run's verified saves, by the time they ended.
        cadence: when to upload.
        now_ns: now, in the clock of the saves.
        stopping: the daemon stops: the newest save is due, whatever its number.
    """
    found: dict[int, str] = {}
    for index, save in enumerate(saves):
        if save.step < cadence.since:
            continue
        reason = "found due before" if save.due else _regular(save, [saves[i] for i in found], cadence)
        if not reason and _breaks_spacing(saves[: index + 1]):
            reason = "its number breaks the usual spacing"
        if reason:
            found[index] = reason
    newest = len(saves) - 1
    if saves and newest not in found and saves[newest].step >= cadence.since:
        if stopping:
            found[newest] = "the daemon stops"
        elif (now_ns - saves[newest].end_ns) / _NS > idle_after_s(saves, cadence):
            found[newest] = "no newer save came"
    return found


def _regular(save: SavePoint, earlier: Sequence[SavePoint], cadence: Cadence) -> str:
    """By time since the last due save, or by number: past the next multiple above the due step below this one.

    "Below this one" and not "the last": after a roll-back the numbers of the new line are due like those of the old.
    """
    if cadence.every_s:
        waited_s = min(((save.end_ns - other.end_ns) / _NS for other in earlier), default=cadence.every_s)
        return f"every {cadence.every_s:g} s" if waited_s >= cadence.every_s else ""
    base = max((other.step // cadence.every_steps for other in earlier if other.step < save.step), default=0)
    return f"every {cadence.every_steps} steps" if save.step // cadence.every_steps > base else ""


def _breaks_spacing(saves: Sequence[SavePoint]) -> bool:
    """The newest step's distance differs from the distance that all but rare earlier saves had (a pre-emption save)."""
    steps = [save.step for save in saves]
    gaps = [b - a for a, b in pairwise(steps)]
    if len(gaps) < _SPACING_SAVES_MIN:
        return False
    usual, count = Counter(gaps[:-1]).most_common(1)[0]
    return count * 2 > len(gaps[:-1]) and 0 < gaps[-1] < usual


def idle_after_s(saves: Sequence[SavePoint], cadence: Cadence) -> float:
    """How long after the newest save its upload is due although its number is not (seconds)."""
    if cadence.idle_s is not None:
        return cadence.idle_s
    spacings = [(b.end_ns - a.end_ns) / _NS for a, b in pairwise(saves)]
    usual = sorted(spacings)[len(spacings) // 2] if spacings else 0.0
    return max(_IDLE_S_MIN, _IDLE_SPACINGS * usual)
