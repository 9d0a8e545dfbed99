"""The settings that a command line gives: Hydra's overrides, and the flags of argparse (Transformers, DeepSpeed)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckptsync.resume.settings import Known, Settings
from ckptsync.resume.sources.command import UNKNOWN, read_command
from ckptsync.resume.sources.override import Unreadable, parse_override, parse_value

__all__ = ["COMMAND_LINE", "parse_arguments"]

COMMAND_LINE = "the command line"
_FLAG = re.compile(r"-{1,2}(?P<name>[A-Za-z][\w.-]*)(?P<equals>=)?(?P<value>.*)", re.DOTALL)
_NEGATIVE = re.compile(r"-(?:[0-9]|\.[0-9])[0-9._eE+-]*")
_NO_VALUE = object()


def parse_arguments(words: Sequence[str], source: str = COMMAND_LINE) -> Settings:
    """The settings of a whole command, or of its arguments alone.

    - `a.b=c`, `+a=c`, `++a=c`, `~a`: names as they are spelled, without `+` and `~`; values as Hydra reads them. What
      Hydra alone can make a value of (`${...}`, functions, sweeps) is named in `explicit`, and not known.
    - `--flag value`, `--flag=value`, `--flag` (True), several values (a list): values are text; the dashes in a name
      are written as underscores, as argparse and Transformers take both.

    The last of several words for one name counts.

    Args:
        words: as the shell hands them over.
        source: where the values were found, for people.
    """
    values: dict[str, Known] = {}
    explicit: set[str] = set()
    for name, value in _settings(read_command(words).arguments):
        explicit.add(name)
        values.pop(name, None)
        if value is not _NO_VALUE:
            values[name] = Known(value, source)
    return Settings(values, frozenset(explicit))


def _settings(words: Sequence[str]) -> Iterator[tuple[str, object]]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if (flag := _FLAG.fullmatch(word)) is not None:
            if flag["equals"]:
                yield _name(flag["name"]), _text(flag["value"])
                continue
            if flag["value"]:
                continue  # no flag of argparse
            end = next((i for i in range(at, len(words)) if not _is_value(words[i])), len(words))
            found = list(words[at:end])
            yield _name(flag["name"]), _text(found[0]) if len(found) == 1 else _texts(found)
            at = end
        elif (override := parse_override(word)) is not None:
            yield override.name, _value(override.text)


def _text(word: str) -> object:
    return word if UNKNOWN not in word else _NO_VALUE


def _texts(words: list[str]) -> object:
    if any(UNKNOWN in word for word in words):
        return _NO_VALUE
    return words or True


def _name(flag: str) -> str:
    return flag.replace("-", "_")


def _is_value(word: str) -> bool:
    """Whether a word after a flag belongs to it."""
    if word.startswith("-"):
        return _NEGATIVE.fullmatch(word) is not None
    return parse_override(word) is None


def _value(text: str | None) -> object:
    if text is None:
        return _NO_VALUE
    try:
        return parse_value(text)
    except Unreadable:
        return _NO_VALUE
