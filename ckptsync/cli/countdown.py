"""What a pull waits for, and how much longer: a line that counts on a terminal, lines now and then in a journal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptsync.cli.render import is_terminal, printable
from ckptsync.sync.agree import Wait

__all__ = ["Counting", "Lines", "countdown"]

_LINE_SECONDS = 30.0
_CLEAR = "\r\033[K"


@contextmanager
def countdown(*, who: str = "", clock: Callable[[], float] = time.monotonic) -> Iterator[Counting | Lines]:
    """Show waits on stderr; yields what is to be told of each, and cleared before anything else is printed.

    `who`: begins each line, where others write between them.
    """
    shown = Counting(who) if is_terminal(sys.stderr) else Lines(clock, who)
    try:
        yield shown
    finally:
        shown.clear()


class Counting:
    """One line that is written over."""

    def __init__(self, who: str = "") -> None:
        self._there, self._who = False, who

    def tell(self, wait: Wait) -> None:
        """Show a wait."""
        sys.stderr.write(_CLEAR + self._who + _line(wait))
        sys.stderr.flush()
        self._there = True

    def clear(self) -> None:
        """Take the line away."""
        if self._there:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._there = False


class Lines:
    """A line when something changes, and every half minute."""

    def __init__(self, clock: Callable[[], float], who: str = "") -> None:
        self._clock, self._who, self._said, self._said_at = clock, who, "", 0.0

    def tell(self, wait: Wait) -> None:
        """Say a wait that is new, or lasts."""
        now = self._clock()
        if wait.what != self._said or now - self._said_at >= _LINE_SECONDS:
            self._said, self._said_at = wait.what, now
            print(self._who + _line(wait), file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Lines stay."""


def _line(wait: Wait) -> str:
    minutes, seconds = divmod(int(wait.left_s), 60)
    return printable(f"waiting: {wait.what} ({minutes}:{seconds:02} left)")
