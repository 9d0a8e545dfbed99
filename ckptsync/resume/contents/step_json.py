"""The small JSON files of a step, and of a model's directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ckptsync.disk.read import read_file
from ckptsync.layouts.smallfiles import JSON_BYTES_MAX
from ckptsync.resume.context import Resumed

__all__ = ["named", "object_at", "object_in"]


def named(resumed: Resumed, name: str) -> tuple[str, ...]:
    """The step's files of this name, the actor's first (paths relative to the step)."""
    found = (path for path in resumed.listing.files if path == name or path.endswith(f"/{name}"))
    return tuple(sorted(found, key=lambda path: (not path.startswith("actor/"), path.count("/"), path)))


def object_in(resumed: Resumed, path: str) -> Mapping[str, Any] | None:
    """The JSON object in a file of the step; None if it cannot be read as one: the check `integrity` says why."""
    return object_at(os.path.join(resumed.path, path))


def object_at(path: str) -> Mapping[str, Any] | None:
    """The JSON object in a file of at most `JSON_BYTES_MAX`; None if there is none that can be read."""
    try:
        if os.stat(path).st_size > JSON_BYTES_MAX:
            return None
        document = json.loads(b"".join(bytes(view) for _, view in read_file(path)))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
