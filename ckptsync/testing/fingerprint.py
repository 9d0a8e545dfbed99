"""What a directory tree is, in a form that survives the tree: for comparing a step before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["differences", "fingerprint"]

_WORDS = ("content", "size", "mode", "mtime")


def fingerprint(root: Path) -> dict[str, list[str | int]]:
    """Path -> [SHA-256 in hex ("" for a directory), bytes, permission bits, mtime in ns]; "." is the root itself."""
    found: dict[str, list[str | int]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        stat = path.lstat()
        digest, size = ("", 0) if path.is_dir() else (hashlib.sha256(path.read_bytes()).hexdigest(), stat.st_size)
        found[path.relative_to(root).as_posix()] = [digest, size, stat.st_mode & 0o7777, stat.st_mtime_ns]
    return found


def differences(before: Mapping[str, Sequence[str | int]], after: Mapping[str, Sequence[str | int]]) -> list[str]:
    """How two fingerprints differ, one line per path; [] = not at all."""
    lines = [f"{path} is missing" for path in sorted(before.keys() - after.keys())]
    lines += [f"{path} is new" for path in sorted(after.keys() - before.keys())]
    for path in sorted(before.keys() & after.keys()):
        changed = [word for word, old, new in zip(_WORDS, before[path], after[path], strict=True) if old != new]
        if changed:
            lines.append(f"{path}: other {', '.join(changed)}")
    return lines
