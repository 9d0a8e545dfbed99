"""Nested settings by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["flatten"]

_DEPTH_MAX = 60
_NAMES_MAX = 100_000


def flatten(nested: Mapping[object, object]) -> dict[str, object]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`. Lists and empty dicts are values; what is nested too deeply is left out."""
    found: dict[str, object] = {}
    for name, value in _leaves(nested, "", 0):
        found[name] = value
        if len(found) >= _NAMES_MAX:
            break
    return found


def _leaves(nested: Mapping[object, object], prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    if depth > _DEPTH_MAX:
        return
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.", depth + 1)
        else:
            yield name, value
