"""How long a step directory has been quiet, on our own monotonic clock. An mtime's age proves nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ckptsync.model.step import Listing

__all__ = ["Quiet", "observe"]


@dataclass(frozen=True, slots=True)
class Quiet:
    """A listing, and since when (monotonic seconds) the directory has looked like it."""

    listing: Listing
    since: float

    def seconds(self, now: float) -> float:
        """How long nothing has changed."""
        return now - self.since


def observe(earlier: Quiet | None, listing: Listing, now: float) -> Quiet:
    """Compare a new listing with what was seen before; any change starts the quiet time again."""
    if earlier is not None and listing.unchanged_since(earlier.listing):
        return Quiet(listing, earlier.since)
    return Quiet(listing, now)
