"""What asks for a save to be kept: the policies of `[retention.*]`, small pure functions; any of them suffices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

from ckptsync.units import format_duration

__all__ = ["Best", "Policies", "Reason", "Saved", "Weight", "Wishes", "wishes_of"]

_NS = 10**9


class Weight(IntEnum):
    """What a reason weighs against a disk that fills up; the lightest gives way first."""

    AGAINST = 0  # a reason to go
    UNASKED = 1  # there is no policy
    WITHIN = 2
    LAST = 3
    EVERY = 4
    BEST = 5
    UNSENT = 6  # its upload is to come: gives way only before the training dies
    FLOOR = 7  # never gives way


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a save is kept or goes: a line for people, and how much it weighs."""

    weight: Weight
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Best:
    """`keep_best`: the `count` saves with the greatest or least value of a metric."""

    metric: str
    mode: Literal["max", "min"] = "max"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Policies:
    """`[retention.*]`: saves, steps, seconds, a metric; None = off."""

    last: int | None = None
    every: int | None = None
    within_s: float | None = None
    best: Best | None = None

    @property
    def named(self) -> bool:
        """Whether any policy is on. Where none is, nothing is deleted."""
        return self != Policies()


class Saved(Protocol):
    """What the policies look at."""

    @property
    def step(self) -> int:
        """Its number."""
        ...

    @property
    def save(self) -> str:
        """Its identity: a digest. The number is none, a rolled-back run writes it again."""
        ...

    @property
    def end_ns(self) -> int:
        """When it was saved, in one clock for all."""
        ...

    @property
    def metric(self) -> float | None:
        """The value of keep_best's metric; None = it has none."""
        ...

    @property
    def unread(self) -> bool:
        """That value could not be found out yet."""
        ...


Wishes = dict[str, list[Reason]]
"""save -> why it is kept."""


def wishes_of(saves: Sequence[Saved], policies: Policies, now_ns: int) -> Wishes:
    """What the policies want of `saves`, which come by time, all in the clock of `now_ns`."""
    found: Wishes = {}

    def want(save: Saved, weight: Weight, text: str) -> None:
        found.setdefault(save.save, []).append(Reason(weight, text))

    if policies.last is not None:
        _keep_last(saves, policies.last, want)
    if policies.every is not None:
        _keep_every(saves, policies.every, want)
    if policies.within_s is not None:
        _keep_within(saves, policies.within_s, now_ns, want)
    if policies.best is not None:
        _keep_best(saves, policies.best, want)
    return found


_Want = Callable[[Saved, Weight, str], None]


def _keep_last(saves: Sequence[Saved], count: int, want: _Want) -> None:
    for rank, save in enumerate(reversed(saves[-count:]), 1):
        want(save, Weight.LAST, f"keep_last: {rank} of {count}")


def _keep_every(saves: Sequence[Saved], every: int, want: _Want) -> None:
    """The first save from each multiple on, as `due` counts; a roll-back begins a new line.

    What the line before it left is kept until the new line has reached the same multiple.
    """
    line: list[int] = []  # the multiples that the current line has reached
    holder: dict[int, Saved] = {}
    last = -1
    for save in saves:
        multiple = save.step // every
        if save.step <= last:  # rolled back: what lies at or after this number is of the old line
            line = [each for each in line if holder[each].step < save.step]
        last = save.step
        exact = save.step % every == 0
        if multiple not in line and (multiple > 0 or exact):
            line.append(multiple)
            holder[multiple] = save
    for multiple, save in holder.items():
        want(save, Weight.EVERY, f"keep_every: the first from {multiple * every} on")


def _keep_within(saves: Sequence[Saved], within_s: float, now_ns: int, want: _Want) -> None:
    """Counted back from the newest save, or from now where that is earlier: a run that rests loses nothing to time."""
    if not saves:
        return
    since_ns = min(saves[-1].end_ns, now_ns) - int(within_s * _NS)
    for save in saves:
        if save.end_ns >= since_ns:
            want(save, Weight.WITHIN, f"keep_within: {format_duration(within_s)}")


def _keep_best(saves: Sequence[Saved], best: Best, want: _Want) -> None:
    """Equal values: the newer one. What has no value is not ranked; what may have one that is not known yet is kept."""
    sign = 1 if best.mode == "max" else -1
    ranked = [
        (sign * save.metric, save.end_ns, save.save, save)
        for save in saves
        if save.metric is not None and math.isfinite(save.metric)
    ]
    ranked.sort(key=lambda each: each[:3], reverse=True)
    for rank, (_, _, _, save) in enumerate(ranked[: best.count], 1):
        want(save, Weight.BEST, f"keep_best: {best.metric} = {save.metric:g}, {rank} of {best.count}")
    for save in saves:
        if save.unread:
            want(save, Weight.BEST, f"keep_best: {best.metric} is not known yet")
