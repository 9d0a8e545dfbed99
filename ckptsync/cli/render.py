"""What commands print: tables, progress, sizes, ages. Rich on a terminal (and only then imported), plain lines else."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

__all__ = ["human_age", "human_duration", "human_size", "is_terminal", "print_json", "printable", "progress", "table"]

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_LINE_SECONDS = 10.0
_KIBI = 1024


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person watches `stream` (stdout by default)."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM", "") != "dumb"


def printable(text: str) -> str:
    """`text` on one line and harmless to a terminal: control characters and undecodable bytes become escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def human_size(size: float) -> str:
    """Bytes for people: `512 B`, `1.2 GiB`."""
    unit = 0
    while round(size, 1 if unit else 0) >= _KIBI and unit < len(_SIZE_UNITS) - 1:
        size /= _KIBI
        unit += 1
    return f"{size:.1f} {_SIZE_UNITS[unit]}" if unit else f"{size:.0f} B"


def human_duration(seconds: float) -> str:
    """Seconds for people, in whole units of one kind: `45s`, `3m`, `7h`, `2d`."""
    whole = max(0, int(seconds))
    unit, length = next(((u, n) for u, n in _TIME_UNITS if whole >= n), _TIME_UNITS[-1])
    return f"{whole // length}{unit}"


def human_age(seconds: float) -> str:
    """How long ago, for people: `now`, `3m ago`; what lies ahead (clocks differ) is `now`, too."""
    return f"{human_duration(seconds)} ago" if seconds >= 1 else "now"


def print_json(document: Mapping[str, object] | Sequence[object]) -> None:
    """One JSON document on stdout, ASCII only."""
    print(json.dumps(document, indent=2))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text on stdout: a rich table on a terminal, aligned columns elsewhere (head first, no frame)."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(columns, cells)
        return
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # slow to load, only for terminals
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(*columns, box=SIMPLE_HEAD)
    for row in rows:
        view.add_row(*(Text(cell, overflow="fold") for cell in row))  # Text: names may look like markup
    Console().print(view)


@contextmanager
def progress(
    total: int | None, label: str, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Show how far long work is, on stderr: a bar on a terminal, a line every ten seconds elsewhere.

    Args:
        total: bytes to come; None = not known.
        label: what is being done ("pull step 120").
        clock: seconds, monotonic.

    Yields:
        advance(count): `count` more bytes are done. May be called from many threads.
    """
    if is_terminal(sys.stderr):
        with _bar(total, label) as advance:
            yield advance
    else:
        yield _Lines(total, label, clock).advance


@contextmanager
def _bar(total: int | None, label: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console  # slow to load, only for terminals
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(printable(label), total=total)
        yield lambda count: bars.advance(task, count)


class _Lines:
    """Progress as lines for logs."""

    def __init__(self, total: int | None, label: str, clock: Callable[[], float]) -> None:
        self._total, self._label, self._clock = total, printable(label), clock
        self._lock = threading.Lock()
        self._done = 0
        self._begun = self._said = clock()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = self._clock()
            if now - self._said >= _LINE_SECONDS:
                self._said = now
                print(self._line(now), file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        rate = f"{human_size(self._done / (now - self._begun))}/s"
        if not self._total:
            return f"{self._label}: {human_size(self._done)}, {rate}"
        share = f"{100 * self._done // self._total} %"
        return f"{self._label}: {human_size(self._done)} of {human_size(self._total)} ({share}), {rate}"
