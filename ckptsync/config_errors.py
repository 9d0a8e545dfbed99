"""From pydantic's findings to one line for people: where, what, and the nearest right word."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple, get_args

from pydantic import BaseModel

from ckptsync.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

__all__ = ["refusal"]

# Secrets first: they must not stay in the file whatever else is wrong. Then unknown keys: a misspelt one explains why
# another is missing.
_SECRET_RANK, _UNKNOWN_RANK = 0, 1
_SECRET = re.compile(r"secret|token|passw|credential|access_?key|private_?key|api_?key", re.IGNORECASE)


class _Place(NamedTuple):
    """Where a finding is: the deepest table, its dotted name, and the key in it ("" = the table itself)."""

    table: type[BaseModel]
    path: str
    key: str

    def __str__(self) -> str:
        return " ".join(part for part in (f"[{self.path}]" if self.path else "", self.key) if part)


class _Finding(NamedTuple):
    """What is wrong, and what to do; the lowest rank is told first."""

    place: _Place
    why: str
    remedy: str
    rank: int = 2


def refusal(root: type[BaseModel], error: ValidationError, where: str) -> ConfigError:
    """One ConfigError for everything pydantic found: the first finding in full, the places of the others."""
    found = sorted(_distinct(_finding(root, details) for details in error.errors()), key=lambda f: f.rank)
    first, others = found[0], found[1:]
    why = f"{first.place} {first.why}".strip()
    if others:
        why += f" (and {len(others)} more: {', '.join(str(other.place) for other in others)})"
    return ConfigError("the configuration is refused", where=where, why=why, remedy=first.remedy)


def _distinct(findings: Iterable[_Finding]) -> list[_Finding]:
    """One finding for each place: a union reports one for each of its branches, the most telling one last."""
    return list({str(finding.place): finding for finding in findings}.values())


def _finding(root: type[BaseModel], details: ErrorDetails) -> _Finding:
    place = _locate(root, details["loc"])
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown(root, place)
    if kind == "missing":
        return _Finding(place, "is missing", _MISSING.get(str(place), ""))
    if kind == "model_type":
        return _Finding(place, "is not a table", f"write it as [{place.path}]")
    if kind == "value_error":
        return _Finding(place, str(details["ctx"]["error"]), "")
    why = details["msg"].replace("Input should be", "must be", 1)
    shown = repr(details["input"])
    return _Finding(place, f"{why}, not {shown}" if len(shown) < _SHOWN_MAX else why, "")


_SHOWN_MAX = 60
_MISSING = {"[run] output_dir": "set it to the directory that holds the step directories, or give --output-dir"}


def _locate(root: type[BaseModel], location: tuple[int | str, ...]) -> _Place:
    table = root
    path: list[str] = []
    for part in map(str, location):
        field = table.model_fields.get(part)
        inner = _table_in(field.annotation if field else None)
        if inner is None:
            return _Place(table, ".".join(path), part)
        table = inner
        path.append(part)
    return _Place(table, ".".join(path), "")


def _table_in(annotation: object) -> type[BaseModel] | None:
    """The table that a field holds, also where it may be left out (`Table | None`)."""
    choices = (annotation, *get_args(annotation))
    return next((choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)), None)


def _unknown(root: type[BaseModel], place: _Place) -> _Finding:
    """An unknown key: a secret, a slip of the pen, or a key of another table."""
    if _SECRET.search(place.key):
        remedy = "use the environment, a profile or an instance role"
        return _Finding(place, "is refused: secrets do not belong in the configuration", remedy, _SECRET_RANK)
    what = "is not a known key" if place.path else "is not a known table"
    if near := get_close_matches(place.key, place.table.model_fields, n=1):
        return _Finding(place, what, f"did you mean {near[0] if place.path else f'[{near[0]}]'}?", _UNKNOWN_RANK)
    if home := _tables_with(root, place.key):
        return _Finding(place, what, f"it belongs in [{home}]", _UNKNOWN_RANK)
    known = ", ".join(place.table.model_fields)
    return _Finding(place, what, f"known: {known}", _UNKNOWN_RANK)


def _tables_with(table: type[BaseModel], key: str, path: str = "") -> str:
    """The dotted name of the first table that has `key`; "" if none has."""
    for name, field in table.model_fields.items():
        inner, dotted = field.annotation, f"{path}.{name}".lstrip(".")
        if name == key and path:
            return path
        if isinstance(inner, type) and issubclass(inner, BaseModel) and (found := _tables_with(inner, key, dotted)):
            return found
    return ""
