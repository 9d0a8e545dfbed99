"""Which of the saves that there are a resume takes. Pure: no store, no clock; candidates in, one of them out.

What a strategy prefers may not be there. Then the newest is taken instead, and that is said: a resume never fails
because nothing is a multiple, and never takes silently what was not asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

__all__ = [
    "NEWEST",
    "Candidate",
    "Selectable",
    "Selected",
    "Strategy",
    "not_committed",
    "parse_strategy",
    "reason_against",
    "select",
]

Kind = Literal["newest", "newest-committed", "multiple-of", "best"]
Mode = Literal["max", "min"]

_NUMBER_DIGITS_MAX = 12  # what a step's key can say
_METRIC_CHARS_MAX = 255
_MULTIPLE = re.compile(rf"multiple-of ([1-9][0-9]{{0,{_NUMBER_DIGITS_MAX - 1}}})")
_BEST = re.compile(rf"best (\S{{1,{_METRIC_CHARS_MAX}}})(?: (max|min))?")


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a step is selected. `str` gives the text that `parse_strategy` reads.

    Attributes:
        kind: which strategy.
        number: of multiple-of.
        metric: of best: the name of a tag, or a field of the step's JSON files (sync/metrics.py).
        mode: of best: whether the greatest or the least value is the best.
    """

    kind: Kind = "newest"
    number: int = 0
    metric: str = ""
    mode: Mode = "max"

    def __str__(self) -> str:
        if self.kind == "multiple-of":
            return f"multiple-of {self.number}"
        if self.kind == "best":
            return f"best {self.metric}{' min' if self.mode == 'min' else ''}"
        return self.kind

    @property
    def committed_only(self) -> bool:
        """Whether a save that is only on a disk is never taken."""
        return self.kind == "newest-committed"

    def prefers(self, step: int) -> bool:
        """Whether a step of this number is what it looks for; all others are looked at only if none of these is sound.

        Step 0 is no multiple: to go back to it is to begin again.
        """
        return self.kind != "multiple-of" or (step > 0 and step % self.number == 0)

    def score(self, value: float | None) -> float | None:
        """The greater, the better; None for what is no value, as a tag `nan` is none."""
        if value is None or not math.isfinite(value):
            return None
        return -value if self.mode == "min" else value


NEWEST = Strategy()
"""The save that ended last, in the store or whole on a disk."""


def parse_strategy(text: str) -> Strategy:
    """Read `newest`, `newest-committed`, `multiple-of 100`, `best METRIC`, `best METRIC min`. Raises ValueError."""
    if text == "newest":
        return NEWEST
    if text == "newest-committed":
        return Strategy("newest-committed")
    if match := _MULTIPLE.fullmatch(text):
        return Strategy("multiple-of", number=int(match[1]))
    if (match := _BEST.fullmatch(text)) and match[1].isprintable():
        return Strategy("best", metric=match[1], mode="min" if match[2] == "min" else "max")
    msg = (
        f'{text!r} selects nothing: write "newest", "newest-committed", "multiple-of 100", "best METRIC" or '
        '"best METRIC min"'
    )
    raise ValueError(msg)


class Selectable(Protocol):
    """What is looked at of a save."""

    @property
    def step(self) -> int:
        """Its number."""
        ...

    @property
    def end_ns(self) -> int:
        """When it ended, store time."""
        ...

    @property
    def committed(self) -> bool:
        """Whether it is in the store, committed and valid; else it is whole on the disks."""
        ...

    @property
    def value(self) -> float | None:
        """The metric of `best`; None = nobody has said it."""
        ...

    @property
    def out(self) -> str:
        """Why it must not be taken, whatever the strategy: broken, marked as bad, superseded; "" = it may."""
        ...

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Newest first, by save time before anything else; two that are equal are one."""
        ...


T = TypeVar("T", bound=Selectable)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A save, as far as one node needs it for selecting. `Selectable` says what the attributes mean.

    Besides:
        files: how many it has: of two commits of one save the fuller one counts.
        digest: of its commit, whether that is in the store or not.
    """

    step: int
    end_ns: int
    committed: bool = True
    value: float | None = None
    out: str = ""
    files: int = 0
    digest: str = ""

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Of equal times, what is in the store goes first: it is there for all nodes."""
        return self.end_ns, self.committed, self.files, self.digest


@dataclass(frozen=True, slots=True)
class Selected(Generic[T]):
    """What was selected.

    Attributes:
        candidate: one of those that were given.
        why: for people.
        fallback: why it is not what the strategy asks for; "" = it is.
    """

    candidate: T
    why: str
    fallback: str = ""


def select(strategy: Strategy, candidates: Iterable[T]) -> Selected[T] | None:
    """Take one of the sound candidates; None = there is none that may be taken.

    Args:
        strategy: what is asked for.
        candidates: in any order. Those that are out are never taken, nor is one that is not committed by
            `newest-committed`.
    """
    sound = [each for each in candidates if not each.out and (each.committed or not strategy.committed_only)]
    if not sound:
        return None
    newest = max(sound, key=_rank)
    if strategy.kind == "best":
        return _best(strategy, sound, newest)
    preferred = [each for each in sound if strategy.prefers(each.step)]
    if not preferred:
        fallback = f"no sound step is a multiple of {strategy.number}: the newest is taken instead"
        return Selected(newest, "the newest", fallback)
    if strategy.kind == "multiple-of":
        return Selected(max(preferred, key=_rank), f"the newest multiple of {strategy.number}")
    return Selected(newest, "the newest committed" if strategy.committed_only else "the newest")


def _best(strategy: Strategy, sound: Iterable[T], newest: T) -> Selected[T]:
    scored = [(score, each) for each in sound if (score := strategy.score(each.value)) is not None]
    if not scored:
        fallback = f"no sound step has a value of {strategy.metric}: the newest is taken instead"
        return Selected(newest, "the newest", fallback)
    _, best = max(scored, key=lambda pair: (pair[0], pair[1].rank))
    word = "least" if strategy.mode == "min" else "greatest"
    return Selected(best, f"{strategy.metric} = {best.value:g}, the {word} of {len(scored)}")


def _rank(candidate: Selectable) -> tuple[int, int, int, str]:
    return candidate.rank


def not_committed(strategy: Strategy, candidates: Iterable[T]) -> T | None:
    """The newest sound save that is passed over only because it is not committed; None = there is none.

    Where nothing else is there, that is no "nothing to resume from": who began from the start would lose it.
    """
    lost = [each for each in candidates if not each.out and not each.committed and strategy.committed_only]
    return max(lost, key=_rank, default=None)


def reason_against(strategy: Strategy, selected: Selected[T] | None, candidate: T) -> str:
    """Why a candidate was not selected, for people."""
    if candidate.out:
        return candidate.out
    if strategy.committed_only and not candidate.committed:
        return "it is not committed"
    if selected is None or selected.fallback:
        return "older"
    if not strategy.prefers(candidate.step):
        return f"no multiple of {strategy.number}"
    return "older" if strategy.kind != "best" else _worse(strategy, selected.candidate, candidate)


def _worse(strategy: Strategy, best: Selectable, candidate: Selectable) -> str:
    if strategy.score(candidate.value) is None:
        return f"no value of {strategy.metric}"
    older = ", older" if candidate.value == best.value else ""
    return f"{strategy.metric} = {candidate.value:g}{older}"
