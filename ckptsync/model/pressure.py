"""What goes when the disk fills up, in which order, and whether the next save will fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptsync.model.policies import Reason, Weight
from ckptsync.model.retention import LocalFacts, Verdict
from ckptsync.model.step import LocalState
from ckptsync.units import FreeSpace

__all__ = ["Limits", "Shortage", "Space", "fits", "give_way", "next_save", "shortage"]

_RECENT = 3


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of the file system of output_dir.

    Attributes:
        free: what this user may still write, by its quota if the file system shows it.
        total: its size.
        returning: deleted already, on its way back.
        used: by this run's steps.
        next_save: what the next save will still write.
    """

    free: int
    total: int
    returning: int = 0
    used: int = 0
    next_save: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """`min_free` and `max_size` (bytes); None = off."""

    min_free: FreeSpace | None = None
    max_size: int | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Bytes that must go for `min_free` and for `max_size`; 0 = none."""

    free: int = 0
    size: int = 0


def shortage(space: Space, limits: Limits) -> Shortage:
    """How much must go so that both limits still hold after the next save."""
    free = size = 0
    if limits.min_free is not None:
        wanted = max(limits.min_free.size, int(limits.min_free.fraction * space.total))
        free = wanted + space.next_save - space.free - space.returning
    if limits.max_size is not None:
        size = space.used + space.next_save - limits.max_size
    return Shortage(max(0, free), max(0, size))


def next_save(steps: Sequence[LocalFacts], sizes: Sequence[int]) -> int:
    """Bytes that the next save will still write: the largest of the newest few, less what a growing one has already.

    Args:
        steps: what is on the disk.
        sizes: bytes of all files of each.
    """
    verified = sorted((f.end_ns, size) for f, size in zip(steps, sizes, strict=True) if f.state is LocalState.VERIFIED)
    expected = max((size for _, size in verified[-_RECENT:]), default=0)
    newest_ns = verified[-1][0] if verified else 0
    begun = [
        size for f, size in zip(steps, sizes, strict=True) if f.state is LocalState.GROWING and f.end_ns > newest_ns
    ]
    return max(0, expected - max(begun, default=0))


def fits(space: Space, coming: int = 0) -> bool:
    """Whether the next save will fit once `coming` bytes have been deleted."""
    return space.free + space.returning + coming >= space.next_save


def give_way(steps: Sequence[LocalFacts], verdicts: Sequence[Verdict], short: Shortage) -> tuple[Verdict, ...]:
    """The verdicts under pressure: what no policy keeps goes first, then the least useful until nothing is short.

    Saves that wait for their upload go last, loudly, and only for `min_free`: a full disk ends the training. What a
    floor holds never goes, nor what gives nothing back.

    Args:
        steps: see `judge_local`.
        verdicts: of the policies alone, in the same order.
        short: bytes that must go.
    """
    found = list(verdicts)
    gone = sum(fact.bytes for fact, verdict in zip(steps, verdicts, strict=True) if not verdict.keep)
    order = sorted(range(len(steps)), key=lambda i: _usefulness(steps[i], verdicts[i]))
    for index in order:
        fact, verdict = steps[index], verdicts[index]
        unsent = verdict.weight is Weight.UNSENT
        wanted = short.free if unsent else max(short.free, short.size)
        if verdict.keep and verdict.weight < Weight.FLOOR and fact.bytes and gone < wanted:
            found[index] = _gives_way(fact, verdict, "min_free" if gone < short.free else "max_size")
            gone += fact.bytes
    return tuple(found)


def _usefulness(fact: LocalFacts, verdict: Verdict) -> tuple[int, ...]:
    """Least useful first: husks and what the store has, then what it has not; in each by policy, then by age.

    What waits for its upload weighs most of what the store has not.
    """
    husk = fact.state is LocalState.PRUNED
    return (not husk and not fact.stored, not husk, verdict.weight, fact.end_ns, fact.step)


def _gives_way(fact: LocalFacts, verdict: Verdict, limit: str) -> Verdict:
    texts = (f"the disk fills up ({limit})", fact.whereabouts, *(f"despite: {reason}" for reason in verdict.reasons))
    return replace(
        verdict,
        keep=False,
        reasons=tuple(Reason(Weight.AGAINST, text) for text in texts),
        loud=verdict.weight is Weight.UNSENT,
    )
