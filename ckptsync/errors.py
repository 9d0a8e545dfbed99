"""Every error that ckptsync raises on purpose: with which code it exits, and if trying again may help.

CkptsyncError             1  anything unexpected
├── UsageError            2  the command line asks for something that cannot be
├── ConfigError           3  the configuration cannot be read, or contradicts itself
├── CheckpointError       4  a step is broken or incomplete
│   └── StepChanged       4  a step moved while it was read: take it again (retryable)
├── NothingToResume       5  no step to resume from
├── StoreError            6  the store is unreachable or refused
│   ├── StoreUnavailable  6  time-outs, throttling, 5xx: retryable
│   ├── StoreRefused      6  credentials or permissions
│   ├── KeyMissing        6  a key that should be there is not
│   └── CorruptObject     6  an object is not what its name says
├── ConflictError         7  nodes or stores disagree
├── NoSpaceError          8  not enough space
├── PreflightError        9  a resume would not continue the run
└── Interrupted           1  asked to stop; whatever was in flight was abandoned cleanly
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CheckpointError",
    "CkptsyncError",
    "ConfigError",
    "ConflictError",
    "CorruptObject",
    "Interrupted",
    "KeyMissing",
    "NoSpaceError",
    "NothingToResume",
    "PreflightError",
    "StepChanged",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "UsageError",
]


class CkptsyncError(Exception):
    """One line for the user: what happened, where, why, and what to do about it.

    Args:
        what: the fault in a few words ("cannot read the configuration").
        where: the path, key or URL it happened at.
        why: the reason as the system or the check gave it.
        remedy: what the user can do.
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.remedy = what, where, why, remedy

    def __str__(self) -> str:
        line = ": ".join(part for part in (self.what, self.where, self.why) if part)
        if self.remedy:
            line = f"{line} ({self.remedy})"
        return " ".join(line.split())


class UsageError(CkptsyncError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class ConfigError(CkptsyncError):
    """The configuration cannot be read, or contradicts itself or this machine."""

    exit_code = 3


class CheckpointError(CkptsyncError):
    """A step is broken or incomplete."""

    exit_code = 4


class StepChanged(CheckpointError):
    """A step moved while it was read; nothing read so far may be used."""

    retryable = True


class NothingToResume(CkptsyncError):
    """No step to resume from."""

    exit_code = 5


class StoreError(CkptsyncError):
    """The store is unreachable or refused a request."""

    exit_code = 6


class StoreUnavailable(StoreError):
    """A time-out, a throttled or failed request: the outcome may be unknown, a retry can help."""

    retryable = True


class StoreRefused(StoreError):
    """Credentials or permissions do not allow the request."""


class KeyMissing(StoreError):
    """An object that should be there is not."""


class CorruptObject(StoreError):
    """An object is not what its name, its header or its manifest says."""


class ConflictError(CkptsyncError):
    """Nodes or stores disagree; somebody has to look."""

    exit_code = 7


class NoSpaceError(CkptsyncError):
    """Not enough space for what was asked."""

    exit_code = 8


class PreflightError(CkptsyncError):
    """A resume would not continue the run."""

    exit_code = 9


class Interrupted(CkptsyncError):
    """Asked to stop; what was in flight has been abandoned cleanly."""
