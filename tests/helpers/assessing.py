"""Step directories whose files are dated to the second, and what they are found to be."""

from __future__ import annotations

import os
from pathlib import Path

from ckptsync.disk.assess import Around, assess, look_around
from ckptsync.disk.scan import list_step
from ckptsync.layouts.verl import Verl

NS = 10**9
BASE = 1_800_000_000
WINDOW = 3600
VERL = Verl()


def date_files(directory: Path, seconds: float, *names: str) -> None:
    """Give the files (all, or those whose path has one of `names` in it) this time."""
    ns = int((BASE + seconds) * NS)
    for top, _, files in os.walk(directory):
        for name in files:
            path = Path(top, name)
            if not names or any(part in str(path.relative_to(directory)) for part in names):
                os.utime(path, ns=(ns, ns))


def at_ns(seconds: float) -> int:
    return int((BASE + seconds) * NS)


def assessed(directory: Path, around: Around | None = None, layout=VERL, window=WINDOW):
    return assess(list_step(str(directory)), layout, around or Around(), window_ns=window * NS)


def codes_of(verdict) -> list[tuple[str, str]]:
    return [(problem.path, problem.code) for problem in verdict.problems]


def around_of(root: Path, name: str, layout=VERL, **options) -> Around:
    listings = [list_step(str(path)) for path in sorted(root.iterdir()) if path.is_dir()]
    index = [listing.name for listing in listings].index(name)
    return look_around(listings, index, layout, **{"seen": {}, **options})
