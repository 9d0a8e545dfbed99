"""The training of `ckptsync demo`: a process that saves verl steps when it is told to.

`python -m ckptsync.testing.demo_training DIR` prints who writes its files (one JSON line), then reads orders from
stdin: `20` saves step 20, `30 cut` saves step 30 and cuts one shard in half. The answer to each is one JSON line with
the fingerprint of the step as it was written, taken before anybody else has seen it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path

from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.fingerprint import fingerprint

__all__ = ["main"]

_CUT_SHARD = "actor/optim_world_size_2_rank_1.pt"
_BYTES = 1024 * 1024
_PRIVATE = 0o600


def main(arguments: list[str]) -> None:
    """Serve orders until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's: it ends us
    root = Path(arguments[0])
    version = _torch_version()
    _answer({"writer": f"torch {version}" if version else "the standard library (torch is not installed)"})
    for line in sys.stdin:
        step, _, cut = line.strip().partition(" ")
        directory = verl_step(root, int(step), world=2, hf=True, n=_BYTES, real=version is not None)
        # the safetensors library writes private files, whatever the umask: a restore must keep that
        (directory / "actor/huggingface/model.safetensors").chmod(_PRIVATE)
        if cut:
            shard = directory / _CUT_SHARD
            os.truncate(shard, shard.stat().st_size // 2)
        _answer(
            {
                "step": int(step),
                "path": str(directory),
                "cut": _CUT_SHARD if cut else "",
                "files": fingerprint(directory),
            }
        )


def _torch_version() -> str | None:
    try:
        return str(importlib.import_module("torch").__version__)
    except (ImportError, OSError):  # not installed, or one of its libraries is not
        return None


def _answer(document: dict[str, object]) -> None:
    print(json.dumps(document), flush=True)  # noqa: T201 - this is the protocol


if __name__ == "__main__":
    main(sys.argv[1:])
