"""The environment as the user gave it: what this process needs for itself is not for the commands that it runs."""

from __future__ import annotations

import os

__all__ = ["as_given", "set_default"]

_ours: set[str] = set()
_LOCALE = "LC_CTYPE"


def set_default(name: str, value: str) -> None:
    """Set a variable for this process, unless the user has."""
    if name not in os.environ:
        os.environ[name] = value
        _ours.add(name)


def as_given() -> dict[str, str]:
    """A copy without what was set here, and without what Python sets before anything runs (PEP 538)."""
    found = {name: value for name, value in os.environ.items() if name not in _ours}
    if found.get(_LOCALE, "").replace("-", "").lower().endswith("utf8") and not _was_given(_LOCALE):
        del found[_LOCALE]
    return found


def _was_given(name: str) -> bool:
    try:
        with open("/proc/self/environ", "rb") as file:
            return any(entry.startswith(f"{name}=".encode()) for entry in file.read().split(b"\0"))
    except OSError:
        return True
