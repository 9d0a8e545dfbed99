"""Segments of POSIX shared memory that nobody uses any more.

A process that is killed cannot unlink what it made in /dev/shm; the next start then finds the file system full, and
dies of a bus error. Names: Python `psm_*` and `sem.mp-*`, `sem.loky-*`; torch `torch_*`; NCCL `nccl-*`; vLLM `vllm*`;
SGLang `sgl_shm_*`, `sglang_*`; CUDA `cuda.shm.*`; Ray `plasma*`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Segment", "segments", "used"]

_NAMES = re.compile(
    r"(?:psm_|sem\.|torch_|nccl-|vllm|sgl_shm_|sglang_|multi_tokenizer_args_|cuda\.shm\.|plasma)", re.IGNORECASE
)
_ENTRIES_MAX = 100_000
_DELETED = " (deleted)"
_INIT = "1"
"""Of the processes that nobody may look into, the one of which it is known that it trains nothing."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment.

    Attributes:
        name: its file name.
        size: bytes that it takes.
        uid: of its owner.
    """

    name: str
    size: int
    uid: int


def segments(root: str = "/dev/shm") -> tuple[Segment, ...]:  # noqa: S108 - the place that the system has for it
    """The segments below `root` whose names are those of a training or an engine. Raises OSError."""
    found = []
    with os.scandir(root) as entries:
        for count, entry in enumerate(entries):
            if count >= _ENTRIES_MAX:
                break
            if not _NAMES.match(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # its owner has just gone, and cleaned up
            if stat.S_ISREG(status.st_mode):
                found.append(Segment(entry.name, status.st_blocks * 512, status.st_uid))
    return tuple(sorted(found, key=lambda each: each.name))


def used(root: str = "/dev/shm", proc: str = "/proc") -> tuple[frozenset[str], frozenset[int]]:  # noqa: S108 - as above
    """What of `root` some process has open or mapped; and the users with a process that we may not look into."""
    names: set[str] = set()
    hidden: set[int] = set()
    for pid in filter(str.isdecimal, os.listdir(proc)):
        directory = os.path.join(proc, pid)
        try:
            names.update(_held(directory, f"{root.rstrip('/')}/"))
        except PermissionError:
            hidden.update(() if pid == _INIT else (_owner(directory),))
        except OSError:
            continue  # it has ended
    return frozenset(names), frozenset(hidden)


def _held(directory: str, prefix: str) -> Iterator[str]:
    """Base names of what one process maps or has open below `prefix`. Raises OSError."""
    with open(os.path.join(directory, "maps"), encoding="utf-8", errors="surrogateescape") as file:
        maps = file.read()
    for line in maps.splitlines() if prefix in maps else ():  # most processes have none, and thousands of lines
        at = line.find(prefix)
        if at >= 0:
            yield line[at + len(prefix) :].removesuffix(_DELETED)
    descriptors = os.path.join(directory, "fd")
    for name in os.listdir(descriptors):
        try:
            target = os.readlink(os.path.join(descriptors, name))
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith(prefix):
            yield target[len(prefix) :].removesuffix(_DELETED)


def _owner(directory: str) -> int:
    try:
        return os.stat(directory).st_uid
    except OSError:
        return -1
