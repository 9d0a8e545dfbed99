"""Reading the small JSON files whose content a layout judges."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ckptsync.model.step import Problem

__all__ = ["JSON_BYTES_MAX", "read_object"]

JSON_BYTES_MAX = 64 * 1024 * 1024
"""Larger files are not read: a trainer's state with RNG states and logs is a few MB."""


def read_object(path: str, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> dict[str, Any] | Problem:
    """The JSON object in `path`, or what keeps it from being one. Raises OSError from `read`."""
    if sizes[path] > JSON_BYTES_MAX:
        return Problem(path, "json", f"{sizes[path]} bytes are too many for a small JSON file")
    try:
        document = json.loads(read(path))
    except (ValueError, RecursionError) as error:
        return Problem(path, "json", f"not valid JSON: {error}")
    if not isinstance(document, dict):
        return Problem(path, "json", "not a JSON object")
    return document
