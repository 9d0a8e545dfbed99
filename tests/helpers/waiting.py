"""Waiting for what other processes do, and whether they live."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

PATIENCE_S = 60.0


def until(seen, what="it"):
    """Wait for something that must come; the limit only ends a test that has failed."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := seen()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)
    return found


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
