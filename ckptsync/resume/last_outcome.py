"""The last outcome of a confirmation on this node, for `status`, which loads nothing else of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["FILE", "kept"]

FILE = "confirm.json"
_BYTES_MAX = 1024 * 1024


def kept(state_dir: str) -> Mapping[str, Any] | None:
    """The document; it has `ok`, `message` and `at_s`. None = there is none that can be read."""
    try:
        with open(os.path.join(state_dir, FILE), "rb") as file:
            document = json.loads(file.read(_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    sound = type(document.get("ok")) is bool and isinstance(document.get("message"), str)
    return document if sound and isinstance(document.get("at_s"), float) else None
