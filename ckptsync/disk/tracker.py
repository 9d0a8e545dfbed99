"""The trainer's own pointer file, as it is on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ckptsync.disk import durable
from ckptsync.disk.read import FileSource
from ckptsync.layouts.base import Layout

__all__ = ["TrackerState", "read_tracker", "write_tracker"]

_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class TrackerState:
    """A tracker as it is on disk: the step it names (None = nothing that can be read), and its mtime (ns)."""

    step: int | None
    mtime_ns: int


def read_tracker(output_dir: str, layout: Layout) -> TrackerState | None:
    """Read it; None if the layout has none, or there is no such file."""
    if layout.tracker is None:
        return None
    try:
        with FileSource(os.path.join(output_dir, layout.tracker.name)) as source:
            text = source.read(0, _BYTES_MAX).decode("utf-8", "replace")
            return TrackerState(layout.tracker.parse(text), source.opened.mtime_ns)
    except OSError:
        return None


def write_tracker(output_dir: str, layout: Layout, step: int, *, temp_dir: str) -> None:
    """Make it name `step`, all or nothing, durably; a layout without one has nothing to write.

    Args:
        output_dir: where it lies; the caller holds the run's lock.
        layout: of the run.
        step: whose directory is in place.
        temp_dir: of the staging directory.

    Raises:
        NoSpaceError, ConfigError, CkptsyncError: as `durable.publish`.
    """
    if layout.tracker is not None:
        path = os.path.join(output_dir, layout.tracker.name)
        durable.publish(path, layout.tracker.render(step).encode(), temp_dir=temp_dir)
