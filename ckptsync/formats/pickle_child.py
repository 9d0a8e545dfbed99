"""Reads one DCP `.metadata` pickle from stdin in a process of its own, and prints its file table as JSON.

A pickle is a program. Here it can only build stubs, containers and numbers; and what those can do by sheer size or
depth (a memo index of 2**31, a dict key nested a million deep, which crashes CPython) happens to this process, under
limits, not to the daemon. Started by path with `-I -S`: standard library only, nothing of ours is imported.

Arguments: address space in bytes, CPU seconds. Prints `{"files": {path: [[offset, length], ...]}}`, or
`{"error": text}` with exit code 1.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
from collections import OrderedDict
from typing import Any, BinaryIO

__all__ = ["read_files"]

_TEXT_MAX = 200


class Stub:
    """Stands for every class and function: takes anything, does nothing, keeps only a state that is a dict."""

    __slots__ = ("state",)

    def __new__(cls, *_: object, **__: object) -> Stub:  # noqa: PYI034 - Self needs Python 3.11
        """Accept the arguments of any constructor or function."""
        stub = object.__new__(cls)
        stub.state = {}
        return stub

    def __setstate__(self, state: object) -> None:
        """Keep a dict; (dict, slots) of classes with slots too."""
        if isinstance(state, tuple):
            state = next((item for item in state if isinstance(item, dict)), None)
        if isinstance(state, dict):
            self.state = state

    def _ignore(self, *_: object) -> None:
        """Items for a subclass of list, dict or set."""

    append = extend = add = __setitem__ = _ignore

    state: dict[Any, Any]


class _Reader(pickle.Unpickler):
    """Refuses persistent ids (the base class does) and never imports."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else Stub


def read_files(stream: BinaryIO) -> dict[str, list[list[int]]]:
    """The (offset, length) of every item in every data file, as a `.metadata` pickle on `stream` has them.

    Raises:
        Exception: whatever a damaged or hostile pickle provokes.
    """
    root = _Reader(stream).load()
    if stream.read(1):
        msg = "bytes follow the pickle's end"
        raise ValueError(msg)
    storage = root.state["storage_data"]
    files: dict[str, list[list[int]]] = {}
    for info in storage.values() if storage is not None else ():
        path, offset, length = (info.state[name] for name in ("relative_path", "offset", "length"))
        if not isinstance(path, str) or type(offset) is not int or type(length) is not int:
            msg = "an item is not a path, an offset and a length"
            raise TypeError(msg)
        files.setdefault(path, []).append([offset, length])
    return files


def _main() -> int:
    memory, cpu_s = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer, code = json.dumps({"files": read_files(sys.stdin.buffer)}), 0
    except Exception as error:  # noqa: BLE001 - a pickle can provoke any
        answer, code = json.dumps({"error": f"{type(error).__name__}: {error}"[:_TEXT_MAX]}), 1
    sys.stdout.write(answer)
    return code


if __name__ == "__main__":
    sys.exit(_main())
