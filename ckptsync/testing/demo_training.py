"""The training of `ckptsync demo`: a process that saves its share of verl steps when it is told to.

`python -m ckptsync.testing.demo_training DIR SHARE` prints who writes its files (one JSON line), then reads orders from
stdin, one JSON line each. SHARE is JSON, too: arguments of `verl_step`, say {"world": 8, "ranks": [0, 1]}.

- {"step": 20} saves step 20. More keys are arguments of `verl_step` for this step.
- {"step": 30, "cut": true} saves step 30 and cuts one shard in half.
- {"step": 40, "until": "actor/..."} stops after this file, in the middle of the save, and waits to be killed.

The answer to each is one JSON line with the fingerprint of the step as it was written, taken before anybody else has
seen it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.fingerprint import fingerprint

__all__ = ["main"]

_CUT_SHARD = "actor/optim_world_size_2_rank_1.pt"
_BYTES = 1024 * 1024
_PRIVATE = 0o600


def main(arguments: list[str]) -> None:
    """Serve orders until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's: it ends us
    root, share = Path(arguments[0]), json.loads(arguments[1])
    version = _torch_version()
    _answer({"writer": f"torch {version}" if version else "the standard library (torch is not installed)"})
    for line in sys.stdin:
        _save(root, {"n": _BYTES, "real": version is not None, **share, **json.loads(line)})


def _save(root: Path, order: dict[str, Any]) -> None:
    step, cut, until = order.pop("step"), order.pop("cut", False), order.pop("until", "")
    directory = root / f"global_step_{step}"

    def written(path: str) -> None:
        if until and path == f"{directory.name}/{until}":
            _tell(step, directory)
            signal.pause()

    verl_step(root, step, pause=written, **order)
    # the safetensors library writes private files, whatever the umask: a restore must keep that
    for exported in directory.glob("actor/huggingface/model.safetensors"):
        exported.chmod(_PRIVATE)
    if cut:
        shard = directory / _CUT_SHARD
        os.truncate(shard, shard.stat().st_size // 2)
    _tell(step, directory, _CUT_SHARD if cut else "")


def _tell(step: int, directory: Path, cut: str = "") -> None:
    _answer({"step": step, "path": str(directory), "cut": cut, "files": fingerprint(directory)})


def _torch_version() -> str | None:
    try:
        return str(importlib.import_module("torch").__version__)
    except (ImportError, OSError):  # not installed, or one of its libraries is not
        return None


def _answer(document: dict[str, object]) -> None:
    print(json.dumps(document), flush=True)  # noqa: T201 - this is the protocol


if __name__ == "__main__":
    main(sys.argv[1:])
