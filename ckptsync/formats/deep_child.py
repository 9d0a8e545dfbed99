"""The process of level `deep`: the only module that imports torch. Started by `deep.py` with `-I -m`.

Reads one JSON request from stdin, reports as JSON lines on stdout. Loads with `weights_only=True` and memory mapping,
so a file's content is data, never code; what it may allocate beyond its own mapping is limited all the same.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

Report = Callable[..., None]

PROBLEMS_PER_FILE_MAX = 20
_NICENESS = 10
_ZIP_MAGIC = b"PK\3\4"


def main() -> None:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.buffer.read())
    report = _reporter()
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"]))
    try:
        import torch  # noqa: PLC0415 - its absence is an answer, not a crash
    except ImportError as error:
        report(missing=str(error))
        return
    torch.set_num_threads(1)
    _allow_harmless_classes()
    for path in request["paths"]:
        report(begin=path)
        _check(os.path.join(request["root"], path), path, request["memory_bytes"], report)
    report(done=True)


def _reporter() -> Report:
    """Reports go to the real stdout; whatever a library prints does not."""
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def report(**line: object) -> None:
        channel.write(json.dumps(line) + "\n")
        channel.flush()

    return report


def _allow_harmless_classes() -> None:
    """Classes of real shards that only hold data: DTensor and its kin, and arrays (the RNG state of numpy)."""
    import numpy as np  # noqa: PLC0415 - only here
    import torch  # noqa: PLC0415 - only here

    if torch.distributed.is_available():
        import torch.distributed.tensor  # noqa: PLC0415 - registers its own classes
    reconstruct = np.zeros(1).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtypes = [type(np.dtype(code)) for code in "?bBhHiIlLqQefdFD"]
    allowed: list[Any] = [reconstruct, scalar, np.ndarray, np.dtype, *dtypes]
    allowed += [(reconstruct, "numpy.core.multiarray._reconstruct"), (scalar, "numpy.core.multiarray.scalar")]
    torch.serialization.add_safe_globals(allowed)


def _check(full: str, path: str, memory_bytes: int, report: Report) -> None:
    """Look at one file; every outcome is a report."""

    def problem(code: str, message: str) -> None:
        report(path=path, code=code, message=message)

    try:
        _limit_memory(memory_bytes + os.path.getsize(full))
        _dispatch(full, path, problem)
    except MemoryError:
        problem("deep-limit", f"needs more than {memory_bytes} bytes of memory beyond its own size")
    except pickle.UnpicklingError:
        problem("skipped", f"not looked into, it holds more than tensors and plain containers: {_foreign(full)}")
    except Exception as error:  # noqa: BLE001 - whatever torch raises, this file cannot be loaded
        code, why = _classify(error)
        problem(code, why)


def _limit_memory(more: int) -> None:
    """Limit the address space to what is in use now plus `more` bytes (a mapped file counts too)."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _classify(error: Exception) -> tuple[str, str]:
    text = " ".join(str(error).split())[:200]
    if "TorchScript" in text:
        return "skipped", "not looked into: a TorchScript archive"
    if re.search(r"allocate memory|bad_alloc|Cannot allocate", text):
        return "deep-limit", f"needs too much memory: {text}"
    return "not-loadable", f"cannot be loaded: {type(error).__name__}: {text}"


def _foreign(full: str) -> str:
    import torch  # noqa: PLC0415 - only here

    names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(full))
    return ", ".join(names[:5])[:200] or "instructions that weights_only refuses"


def _dispatch(full: str, path: str, problem: Callable[[str, str], None]) -> None:
    import torch  # noqa: PLC0415 - only here

    from ckptsync.formats import tensors  # noqa: PLC0415 - imports torch

    with open(full, "rb") as file:
        head = file.read(len(_ZIP_MAGIC))
    if path.endswith(".safetensors"):
        named = tensors.of_safetensors(full)
    elif head == _ZIP_MAGIC and not path.endswith(".distcp"):
        named = tensors.of_object(torch.load(full, weights_only=True, mmap=True, map_location="cpu"))
    else:
        return
    found = 0
    for name, slices in named:
        nan, inf = tensors.count_not_finite(slices)
        if (nan or inf) and found < PROBLEMS_PER_FILE_MAX:
            found += 1
            counts = [f"{count} {word}" for count, word in ((nan, "NaN"), (inf, "Inf")) if count]
            problem("nan" if nan else "inf", f"{name:.200}: {', '.join(counts)}")


if __name__ == "__main__":
    main()
