"""How much an upload takes while the trainer is busy: less while somebody is held up, never nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Allowance", "Stalls", "parse_stalled_us"]

_SOME = re.compile(r"^some .*\btotal=(\d{1,20})$", re.ASCII | re.MULTILINE)
_LIMITS = (0.5, 0.4, 0.1)
"""Shares of cpu, io, memory. Our own threads count in the first two, and are no reason to stop; whoever waits for
memory waits for pages that were taken from it."""
_CALM = 0.5  # of these limits: between calm and high nothing changes


@dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds, or shares of a time, in which at least one task waited for processor, disk or memory."""

    cpu: float = 0.0
    io: float = 0.0
    memory: float = 0.0

    def since(self, before: Stalls, seconds: float) -> Stalls:
        """The shares of the time between two readings."""
        return Stalls(
            max(0.0, self.cpu - before.cpu) / seconds,
            max(0.0, self.io - before.io) / seconds,
            max(0.0, self.memory - before.memory) / seconds,
        )


def parse_stalled_us(text: str) -> int | None:
    """Microseconds in which some task was held up, from a pressure file; None = it is none.

    https://docs.kernel.org/accounting/psi.html: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
    """
    match = _SOME.search(text)
    return int(match[1]) if match else None


@dataclass(slots=True)
class Allowance:
    """How many chunks may be worked on at once, and whether to rest between them.

    Half as many with each look that finds pressure, one more with each that finds calm. Below one there are rests as
    long as the work, so that an upload always gets on, at half the speed of a single worker or better.

    Attributes:
        most: workers when nobody is held up.
        idle: the scheduler gives us only what nobody else wants: then pressure on the processor is no sign, since it
            is we who wait.
        workers: how many are allowed now.
        resting: whether each chunk is followed by a rest.
    """

    most: int
    idle: bool = False
    workers: int = 0
    resting: bool = False

    def __post_init__(self) -> None:
        self.workers = self.workers or self.most

    def told(self, stalls: Stalls) -> None:
        """Take note of what the kernel says."""
        shares = (0.0 if self.idle else stalls.cpu, stalls.io, stalls.memory)
        worst = max(share / limit for share, limit in zip(shares, _LIMITS, strict=True))
        if worst >= 1:
            self.resting = self.workers == 1
            self.workers = max(1, self.workers // 2)
        elif worst < _CALM:
            self.workers = min(self.most, self.workers + (not self.resting))
            self.resting = False
