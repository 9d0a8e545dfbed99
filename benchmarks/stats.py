"""Medians, spreads and ratios of a few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Spread", "ratios", "spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of one figure over the rounds."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> Spread:
        """The same figure in another unit; `factor` is greater than 0."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)

    def inverse(self, numerator: float) -> Spread:
        """`numerator` divided by the figure: GB/s from seconds."""
        return Spread(numerator / self.median, numerator / self.high, numerator / self.low)


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value. Raises ValueError if there is none."""
    if not values:
        msg = "no round was measured"
        raise ValueError(msg)
    return Spread(median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The spread of ours/theirs, paired by round: what makes one round slow, makes it slow for both.

    Raises:
        ValueError: different numbers of rounds, or none.
    """
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])
