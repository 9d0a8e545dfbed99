"""What the file system may answer, as this project says it; and the places where a test may kill the process."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from enum import Enum

from ckptsync.errors import CkptsyncError, ConfigError, NoSpaceError

__all__ = ["NO_SPACE", "LinkRefusal", "crash_point", "guarded", "link_refusal", "other_mount", "set_crash_hook"]

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LinkRefusal(Enum):
    """Why a hard link cannot be made; the message of each is its value."""

    OTHER_MOUNT = "the file is on another file system or mount"
    NOT_PERMITTED = "this file system or fs.protected_hardlinks forbids it"
    TOO_MANY = "the file has as many links as its file system allows"


_REFUSALS = {
    errno.EXDEV: LinkRefusal.OTHER_MOUNT,
    errno.EPERM: LinkRefusal.NOT_PERMITTED,
    errno.EACCES: LinkRefusal.NOT_PERMITTED,
    errno.ENOTSUP: LinkRefusal.NOT_PERMITTED,
    errno.ENOSYS: LinkRefusal.NOT_PERMITTED,
    errno.EMLINK: LinkRefusal.TOO_MANY,
}

_crash_hook: Callable[[str], None] | None = None


def set_crash_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook(label)` at every crash point of this process; None switches it off (`ckptsync.testing.crash`)."""
    global _crash_hook  # noqa: PLW0603 - one switch for the process, set before anything runs
    _crash_hook = hook


def crash_point(label: str) -> None:
    """A place where the order of two effects matters; does nothing unless a test asked to be killed here."""
    if _crash_hook is not None:
        _crash_hook(label)


@contextlib.contextmanager
def guarded(what: str, path: str) -> Iterator[None]:
    """Turn an OSError into its one-line error. FileNotFoundError passes: the caller knows what a vanished file means.

    Raises:
        NoSpaceError: the disk or the quota is full.
        ConfigError: this user may not do it.
        CkptsyncError: anything else the system reports (EIO, ...).
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        if error.errno in NO_SPACE:
            raise NoSpaceError(what, where=path, why=why, remedy="free some space, or raise the quota") from error
        if error.errno in _NO_ACCESS:
            remedy = "run as the user that owns output_dir, and list its parent in ReadWritePaths= of the unit"
            raise ConfigError(what, where=path, why=why, remedy=remedy) from error
        raise CkptsyncError(what, where=path, why=why) from error


def link_refusal(error: OSError) -> LinkRefusal | None:
    """Whether `error` says that hard links are refused here, and why; None for every other fault."""
    return _REFUSALS.get(error.errno or 0)


def other_mount(path: str, other: str) -> ConfigError:
    """The error for two places that link and rename cannot connect."""
    common = os.path.commonpath([os.path.abspath(path), os.path.abspath(other)])
    why = f"{other} is on another file system or mount"
    remedy = f"ckptsync needs both on one; under systemd name their common parent: ReadWritePaths={common}"
    what = "cannot move files between directories"
    return ConfigError(what, where=path, why=why, remedy=remedy)
