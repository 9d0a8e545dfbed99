"""The processes below one of ours, as /proc has them: their command lines, directories and environments."""

from __future__ import annotations

import os

from ckptsync.resume.running.guard import descendants, parents
from ckptsync.resume.sources.trainer_process import Process

__all__ = ["environment_of", "processes_below"]

_WORDS_BYTES_MAX = 1024 * 1024
_ENVIRONMENT_BYTES_MAX = 4 * 1024 * 1024


def processes_below(root: int) -> dict[int, Process]:
    """All that live below `root`, by pid. What ends meanwhile, is another user's, or says too much, has no words."""
    all_parents = dict(parents())
    found: dict[int, Process] = {}
    for pid in descendants(root, among=all_parents):
        directory = _directory(pid)
        found[pid] = Process(pid, all_parents[pid], _words(pid) if directory else (), directory)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """With what a process was started; empty if it is gone, or another user's."""
    entries = _read(f"/proc/{pid}/environ", _ENVIRONMENT_BYTES_MAX).split(b"\0")
    pairs = [os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry]
    return {name: value for name, _, value in pairs}


def _words(pid: int) -> tuple[str, ...]:
    data = _read(f"/proc/{pid}/cmdline", _WORDS_BYTES_MAX)
    return tuple(map(os.fsdecode, data.removesuffix(b"\0").split(b"\0"))) if data else ()


def _directory(pid: int) -> str:
    """Where it works; empty = not known: it has ended, or is another user's."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _read(path: str, bytes_max: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except OSError:
        return b""
    return data if len(data) <= bytes_max else b""
