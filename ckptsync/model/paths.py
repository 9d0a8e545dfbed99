"""Paths inside a step: validated at the border, byte-exact in manifests. Pure functions on strings."""

from __future__ import annotations

import os
from urllib.parse import quote_from_bytes, unquote_to_bytes

__all__ = ["PATH_BYTES_MAX", "check_relative", "inside", "quote", "unquote"]

PATH_BYTES_MAX = 4096
_SAFE = "/ !#$&'()*+,-.:;<=>?@[]^_`{|}~"


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


def quote(path: str) -> str:
    """A path as manifests write it: all but printable ASCII is percent-encoded, and so are %, quote, backslash."""
    return quote_from_bytes(os.fsencode(path), safe=_SAFE)


def unquote(text: str) -> str:
    """The inverse of `quote`. Raises ValueError for a spelling that `quote` would not have produced."""
    path = os.fsdecode(unquote_to_bytes(text.encode("ascii")))
    if quote(path) != text:
        msg = f"is not in canonical spelling: {text!r}"
        raise ValueError(msg)
    return path
