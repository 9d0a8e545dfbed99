"""Level `deep`: load every file as a trainer would, in a child process, and look for NaN and Inf.

The daemon's process never imports torch: the child does (`deep_child.py`), under limits and without our environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ckptsync.errors import ConfigError
from ckptsync.formats.child import Outcome, run_child
from ckptsync.model.step import Problem

__all__ = ["check_deep"]

_OUTPUT_BYTES_MAX = 16 * 1024 * 1024
_COMMAND = (sys.executable, "-I", "-m", "ckptsync.formats.deep_child")


def check_deep(
    root: str,
    paths: Sequence[str],
    *,
    timeout_s: float,
    memory_bytes: int,
    go_on: Callable[[], bool] = lambda: True,
) -> tuple[Problem, ...]:
    """Load the torch zips and safetensors files among `paths` (relative to `root`); other files are passed over.

    Args:
        root: the step directory.
        paths: relative to it.
        timeout_s: wall clock for all files together; CPU time is limited to the same.
        go_on: asked twice a second; False ends the child, as running out of time does.
        memory_bytes: what the child may allocate beyond torch itself and the mapping of the file at hand.

    Returns:
        Problems with the codes `nan`, `inf` (the message names the tensor), `not-loadable`, `deep-limit` (the child
        ran out of time or memory, or died, at this file; files after it were not looked at), and `skipped`: a file
        that holds classes which loading with `weights_only=True` refuses. Callers treat `skipped` as a warning.

    Raises:
        ConfigError: torch is not installed, or the child cannot be started.
    """
    request = {"root": root, "paths": list(paths), "memory_bytes": memory_bytes, "cpu_s": max(1, int(timeout_s) + 1)}
    try:
        outcome = run_child(
            _COMMAND,
            [json.dumps(request).encode()],
            timeout_s=timeout_s,
            output_max=_OUTPUT_BYTES_MAX,
            go_on=go_on,
        )
    except OSError as error:
        what = "cannot start the process of level deep"
        raise ConfigError(what, where=_COMMAND[0], why=str(error)) from None
    return _read_report(outcome)


def _read_report(outcome: Outcome) -> tuple[Problem, ...]:
    """The child's lines: {"begin": path}, {"path", "code", "message"}, {"missing": package}, {"done": true}."""
    problems: list[Problem] = []
    current, done = "", False
    for line in _lines(outcome.output):
        if "missing" in line:
            what, why = "level deep needs torch", f"importing it failed: {line['missing']}"
            raise ConfigError(what, why=why, remedy="pip install 'ckptsync[torch]'")
        if "code" in line:
            problems.append(Problem(line["path"], line["code"], line["message"]))
        current, done = line.get("begin", current), done or "done" in line
    if not done:
        why = outcome.stopped or f"it ended with {outcome.code}"
        problems.append(Problem(current, "deep-limit", f"the process of level deep did not finish: {why}"))
    return tuple(problems)


def _lines(output: bytes) -> list[dict[str, Any]]:
    """All complete lines; the last one is cut where the child was killed."""
    return [json.loads(line) for line in output.split(b"\n")[:-1]]
