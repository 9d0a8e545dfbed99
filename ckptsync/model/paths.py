"""Paths inside a step: validated at the border, byte-exact in manifests. Pure functions on strings."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from itertools import pairwise
from urllib.parse import quote_from_bytes, unquote_to_bytes

__all__ = ["PATH_BYTES_MAX", "check_relative", "check_target", "inside", "quote", "rebased", "tree_clash", "unquote"]

PATH_BYTES_MAX = 4096
_SAFE = "/ !#$&'()*+,-.:;<=>?@[]^_`{|}~"
_PLAIN = re.compile(f"[A-Za-z0-9{re.escape(_SAFE)}]*")
"""What is its own quoted spelling: nearly every path there is."""


def check_relative(path: str) -> str:
    """Return `path` if it stays inside its directory, in exactly one spelling.

    Raises:
        ValueError: absolute, empty, with an empty, `.` or `..` component, a NUL, or too long.
    """
    raw = os.fsencode(path)
    if not raw or len(raw) > PATH_BYTES_MAX:
        msg = "is empty" if not raw else f"is longer than {PATH_BYTES_MAX} bytes"
        raise ValueError(msg)
    if b"\0" in raw:
        msg = "holds a NUL byte"
        raise ValueError(msg)
    if path.startswith("/"):
        msg = "is absolute"
        raise ValueError(msg)
    for part in path.split("/"):
        if part in ("", ".", ".."):
            msg = f"has the component {part!r}"
            raise ValueError(msg)
    return path


def inside(directory: str, target: str) -> str | None:
    """`target` (a link's text) seen from `directory`, as a path inside the step; None if it leaves the step.

    Both are relative to the step directory; "" is the step directory itself.
    """
    if not target or target.startswith("/"):
        return None
    parts = [part for part in directory.split("/") if part]
    for part in target.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def check_target(directory: str, target: str) -> str:
    """Return `target`, the text of a link in `directory`, if it stays inside the step, in its one spelling.

    One spelling means: as many `..` as needed, then names. A `..` behind a name could climb through a second link.

    Raises:
        ValueError: it is absolute, leaves the step, is spelled otherwise, holds a NUL, or is too long.
    """
    resolved = inside(directory, target)
    if resolved is None:
        msg = "leaves the step"
        raise ValueError(msg)
    if "\0" in target or len(os.fsencode(target)) > PATH_BYTES_MAX:
        msg = f"holds a NUL byte, or is longer than {PATH_BYTES_MAX} bytes"
        raise ValueError(msg)
    if target != _relative(directory, resolved):
        msg = "is not spelled as simply as it could be"
        raise ValueError(msg)
    return target


def _relative(directory: str, path: str) -> str:
    """`path` seen from `directory`, both inside the step (posixpath.relpath would ask for the working directory)."""
    start, end = ([part for part in text.split("/") if part] for text in (directory, path))
    shared = next((i for i, (a, b) in enumerate(zip(start, end, strict=False)) if a != b), min(len(start), len(end)))
    return "/".join([".."] * (len(start) - shared) + end[shared:]) or "."


def tree_clash(leaves: Iterable[str], directories: Iterable[str]) -> str | None:
    """A path that cannot be in one tree with the others; None = they form a tree.

    Args:
        leaves: files and links: each path once, nothing below them.
        directories: may hold others; "" is the step itself.
    """
    # component by component, so that whatever lies below a leaf follows it; linear after the sort, for any depth
    entries = [
        (path.replace("/", "\0"), leaf) for leaf, paths in ((False, directories), (True, leaves)) for path in paths
    ]
    entries.sort()
    for (path, leaf), (following, second_leaf) in pairwise(entries):
        if (path == following and (leaf or second_leaf)) or (leaf and following.startswith(path + "\0")):
            return following.replace("\0", "/")
    return None


def quote(path: str) -> str:
    """A path as manifests write it: all but printable ASCII is percent-encoded, and so are %, quote, backslash."""
    return path if _PLAIN.fullmatch(path) else quote_from_bytes(os.fsencode(path), safe=_SAFE)


def unquote(text: str) -> str:
    """The inverse of `quote`. Raises ValueError for a spelling that `quote` would not have produced."""
    if _PLAIN.fullmatch(text):
        return text
    path = os.fsdecode(unquote_to_bytes(text.encode("ascii")))
    if quote(path) != text:
        msg = f"is not in canonical spelling: {text!r}"
        raise ValueError(msg)
    return path


def rebased(path: str, old: str, new: str) -> str:
    """An absolute path below `old` (or `old` itself) as the same path below `new`; any other as it is, normalised.

    So a path in a container and the same on its host are turned into each other.
    """
    path = posixpath.normpath(path)
    below = posixpath.relpath(path, old)
    return path if below == ".." or below.startswith("../") else posixpath.normpath(posixpath.join(new, below))
