"""JSON as the formats need it: bounded, UTF-8, every fault one kind of defect."""

from __future__ import annotations

import json
from typing import Any

from ckptsync.formats.reading import Defect

__all__ = ["check_json", "parse_json"]


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 JSON; a name given twice in one object is refused, as safetensors does.

    Raises:
        Defect: `malformed`.
    """
    return _load(data, json.JSONDecoder(object_pairs_hook=_unique))


def check_json(data: bytes) -> None:
    """Whether it parses; builds as little as it can.

    Raises:
        Defect: `malformed`.
    """
    _load(data, json.JSONDecoder(object_pairs_hook=_forget, parse_int=_forget, parse_float=_forget))


def _load(data: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        msg = f"is not valid JSON: {error}"
        raise Defect(msg) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        msg = "a name occurs twice"
        raise ValueError(msg)
    return result


def _forget(_: object) -> None:
    return None
