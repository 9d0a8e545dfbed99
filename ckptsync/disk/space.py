"""How much room there is, and how much a deletion would really give back."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ckptsync.disk.faults import guarded

__all__ = ["Disk", "disk_of", "given_back"]

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's blocks are (stat(2))


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that this user may still write to a file system (by its quota, where statvfs shows it), and its size."""

    free: int
    total: int


def disk_of(path: str) -> Disk:
    """The file system of `path`. Raises FileNotFoundError, and as `guarded`."""
    with guarded("cannot tell the free space", path):
        found = os.statvfs(path)
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def given_back(roots: Iterable[str]) -> int:
    """Bytes that the file system gets back if these trees are deleted together.

    A file counts only if all of its names are among them: a hard link elsewhere keeps the bytes. Extents that a
    file system shares between files (reflinks) count as if they were not shared. What vanishes meanwhile is left out.
    """
    total = 0
    names: dict[tuple[int, int], int] = {}
    for found in (each for root in roots for each in _walk(root)):
        if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
            total += found.st_blocks * _BLOCK_BYTES
            continue
        identity = (found.st_dev, found.st_ino)
        names[identity] = names.get(identity, 0) + 1
        if names[identity] == found.st_nlink:
            total += found.st_blocks * _BLOCK_BYTES
    return total


def _walk(root: str) -> Iterator[os.stat_result]:
    """The stat of everything in a tree; links are not followed."""
    pending = [root]
    with contextlib.suppress(OSError):
        yield os.lstat(root)
    while pending:
        directory = pending.pop()
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
