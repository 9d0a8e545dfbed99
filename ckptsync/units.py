"""Durations, sizes and rates as people write them: "1h30m", "16MiB", "500MB/s", "10%". Pure functions on strings."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FreeSpace", "format_duration", "parse_duration", "parse_free_space", "parse_rate", "parse_size"]

_NUMBER = r"\d+(?:\.\d+)?"
_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(ms|[wdhms])", re.ASCII)
_DURATION = re.compile(rf"({_DURATION_PART.pattern}\s*)+", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER})\s*([kKMGTP]i?)?B", re.ASCII)
_PERCENT = re.compile(rf"({_NUMBER})\s*%", re.ASCII)
_POWERS = "kMGTP"
_BYTES_MAX = 2**63 - 1
_SECONDS_MAX = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """How much of a disk must stay free: a fraction of it (0..1), or a number of bytes."""

    fraction: float = 0.0
    size: int = 0


def parse_duration(text: object) -> float:
    """Seconds of "30m", "1h30m", "10s", "2d"; each unit at most once, the largest first.

    Raises:
        ValueError: anything else, also a bare number: its unit would be a guess.
    """
    written = _text(text, '"30s" or "30m"')
    if _DURATION.fullmatch(written) is None:
        msg = f'{written!r} is not a duration: write it like "10s", "30m", "1h30m" or "2d"'
        raise ValueError(msg)
    parts = _DURATION_PART.findall(written)
    units = [unit for _, unit in parts]
    if units != sorted(set(units), key=list(_SECONDS).index):
        msg = f"{written!r} is not a duration: each unit once, the largest first"
        raise ValueError(msg)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _SECONDS_MAX:
        msg = f"{written!r} is more than a hundred years"
        raise ValueError(msg)
    return seconds


def format_duration(seconds: float) -> str:
    """Exact, to the millisecond, in the spelling that `parse_duration` reads: "1h30m", "250ms"."""
    left = round(seconds * 1000)
    written = ""
    for unit, length in _SECONDS.items():
        count, left = divmod(left, round(length * 1000))
        written += f"{count}{unit}" if count else ""
    return written or "0s"


def parse_size(text: object) -> int:
    """Bytes of "16MiB" (powers of 1024), "500MB" (powers of 1000), "0B".

    Raises:
        ValueError: anything else, also a bare number.
    """
    written = _text(text, '"500MB" or "16MiB"')
    match = _SIZE.fullmatch(written)
    if match is None:
        msg = f'{written!r} is not a size: write it like "500MB", "16MiB" or "2TB" (B is bytes)'
        raise ValueError(msg)
    size = round(float(match[1]) * _factor(match[2] or ""))
    if size > _BYTES_MAX:
        msg = f"{written!r} is more than any disk holds"
        raise ValueError(msg)
    return size


def _factor(prefix: str) -> int:
    if not prefix:
        return 1
    power = _POWERS.index(prefix[0].replace("K", "k")) + 1
    return int((1024 if prefix.endswith("i") else 1000) ** power)


def parse_rate(text: object) -> int:
    """Bytes per second of "500MB/s".

    Raises:
        ValueError: anything else, also a size without "/s", and nothing at all per second.
    """
    written = _text(text, '"500MB/s"')
    size, slash, unit = written.rpartition("/")
    if not slash or unit.strip() != "s" or _SIZE.fullmatch(size.strip()) is None:
        msg = f'{written!r} is not a rate: write it like "500MB/s" or "1GiB/s" (B is bytes)'
        raise ValueError(msg)
    rate = parse_size(size)
    if rate < 1:
        msg = f"{written!r} would never finish"
        raise ValueError(msg)
    return rate


def parse_free_space(text: object) -> FreeSpace:
    """`FreeSpace` of "10%" (below 100 %) or of a size.

    Raises:
        ValueError: anything else, also a bare number.
    """
    written = _text(text, '"10%" or "500GB"')
    match = _PERCENT.fullmatch(written)
    if match is None:
        if _SIZE.fullmatch(written) is None:
            msg = f'{written!r} is neither a share nor a size: write it like "10%" or "500GB"'
            raise ValueError(msg)
        return FreeSpace(size=parse_size(written))
    fraction = float(match[1]) / 100
    if fraction >= 1:
        msg = f"{written!r} leaves no room for a checkpoint"
        raise ValueError(msg)
    return FreeSpace(fraction=fraction)


def _text(value: object, example: str) -> str:
    """The text without outer blanks; refuses bare numbers with the remedy."""
    if not isinstance(value, str) or re.fullmatch(r"\s*[-+\d.]+\s*", value):
        msg = f"{str(value).strip()!r} has no unit: write it like {example}"
        raise ValueError(msg)
    return value.strip()
