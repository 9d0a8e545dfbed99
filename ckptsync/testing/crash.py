"""Kill a process at a labelled place: `python -m ckptsync.testing.crash LABEL [--nth K] -- pull --config ...`.

Runs the command line as `ckptsync` would, with a hook that sends SIGKILL to itself at the K-th passage of LABEL.
Nothing is cleaned up, just as after a power button or the kernel's OOM killer. `--list` prints every label.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ckptsync.disk.faults import set_crash_hook

__all__ = ["arm", "labels", "main"]

_CALL = re.compile(r"""\bcrash_point\(\s*["']([a-z0-9.-]+)["']\s*\)""")


def labels() -> tuple[str, ...]:
    """Every crash point of the installed package, read from its source, sorted."""
    package = Path(__file__).parents[1]
    found = (label for path in package.rglob("*.py") for label in _CALL.findall(path.read_text(encoding="utf-8")))
    return tuple(sorted(set(found)))


def arm(label: str, nth: int = 1) -> None:
    """Kill this process when it passes `label` for the `nth` time.

    Raises:
        ValueError: no such label; a test that can never fire proves nothing.
    """
    if label not in labels():
        msg = f"no such crash point: {label!r}"
        raise ValueError(msg)
    passages = 0

    def hook(passed: str) -> None:
        nonlocal passages
        passages += passed == label
        if passages == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    set_crash_hook(hook)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m ckptsync.testing.crash")
    parser.add_argument("label", nargs="?")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the labels and exit")
    parser.add_argument("command", nargs="*", metavar="-- ckptsync arguments")
    chosen = parser.parse_args(arguments)
    if chosen.list or not chosen.label:
        sys.stdout.write("".join(f"{label}\n" for label in labels()))
        return
    arm(chosen.label, chosen.nth)
    sys.argv = ["ckptsync", *chosen.command]
    importlib.import_module("ckptsync.cli.main").main()  # the layer above everything, loaded only to be killed


if __name__ == "__main__":
    main()
