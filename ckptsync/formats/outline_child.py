"""Reads pickles from stdin in a process of its own, and prints what is in each as JSON: kinds, names, sizes.

As in pickle_child.py, a pickle can only build stubs, containers and numbers here, and what it does by sheer size or
depth happens to this process, under limits. Started by path with `-I -S`: standard library only.

Each pickle comes with its length in 4 bytes (big-endian) before it. Arguments: address space in bytes, CPU seconds.
Prints a list with `{"outline": ...}` or `{"error": text}` for each. An outline is null, a bool, a number or a text; or
`["text", length]` or `["bytes", length]`, `["dict", length, {key: outline}]` (text keys), `["list", length,
[outlines]]`, `["class", name]`, `["stored", [outlines]]` (a persistent id), `["object", name, [arguments], state]`.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import resource
import sys
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Any, BinaryIO

__all__ = ["read_outline"]

_TEXT_MAX = 200
_ITEMS_MAX = 32
_DEPTH_MAX = 8
_PARTS_MAX = 5000
_NUMBER_MAX = 2**63
_LENGTH_BYTES = 4


class Stub:
    """Stands for every class and function: keeps what it is given, and does nothing."""

    where = ""
    arguments: tuple[object, ...]
    state: object

    def __new__(cls, *arguments: object, **_: object) -> Stub:  # noqa: PYI034 - Self needs Python 3.11
        """Accept the arguments of any constructor or function."""
        stub = object.__new__(cls)
        stub.arguments, stub.state = arguments, None
        return stub

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing is left to do."""

    def __setstate__(self, state: object) -> None:
        """Keep it."""
        self.state = state

    def _ignore(self, *_: object) -> None:
        """Items for a subclass of list, dict or set."""

    append = extend = add = __setitem__ = _ignore


class _Stored(Stub):
    """A persistent id: where torch keeps a tensor's numbers."""


class _Reader(pickle.Unpickler):
    """Imports nothing."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._classes: dict[str, type[Stub]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        where = f"{module}.{name}"[:_TEXT_MAX]
        if where not in self._classes:
            self._classes[where] = type("Stub", (Stub,), {"where": where})
        return self._classes[where]

    def persistent_load(self, pid: Any) -> Any:
        return _Stored(*pid) if isinstance(pid, tuple) else _Stored(pid)


def read_outline(data: bytes) -> object:
    """The outline of one pickle.

    Raises:
        Exception: whatever a damaged or hostile pickle provokes.
    """
    return _Outliner().outline(_Reader(io.BytesIO(data)).load())


class _Outliner:
    """Outlines one value; what is nested or shared without end is cut off, so that the answer stays small."""

    def __init__(self) -> None:
        self._left = _PARTS_MAX

    def outline(self, value: object, depth: int = 0) -> object:
        """See the module's docstring; below a depth only that there is something."""
        self._left -= 1
        if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
            return _plain(value)
        if isinstance(value, Stub):
            return self._stub(value, depth)
        if isinstance(value, dict):
            named = {key[:_TEXT_MAX]: item for key, item in value.items() if isinstance(key, str)}
            return ["dict", len(value), dict(zip(named, self._all(named.values(), depth)))]  # noqa: B905 - cut off
        if isinstance(value, (list, tuple, set, frozenset)):
            return ["list", len(value), self._all(value, depth)]
        return ["class", getattr(value, "where", type(value).__name__)]

    def _stub(self, value: Stub, depth: int) -> object:
        arguments = self._all(value.arguments, depth)
        if isinstance(value, _Stored):
            return ["stored", arguments]
        state = self._all((value.state,), depth)
        return ["object", value.where, arguments, state[0] if state else None]

    def _all(self, items: Iterable[object], depth: int) -> list[object]:
        found: list[object] = []
        for item in islice(items, _ITEMS_MAX if depth < _DEPTH_MAX else 0):
            if self._left <= 0:
                break
            found.append(self.outline(item, depth + 1))
        return found


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", len(value)]
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return ["text", len(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) > _NUMBER_MAX:
        return ["text", value.bit_length()]
    return value


def _pickles(stream: BinaryIO) -> list[bytes]:
    """All of stdin first: the parent writes everything before it reads."""
    found = []
    while head := stream.read(_LENGTH_BYTES):
        found.append(stream.read(int.from_bytes(head, "big")))
    return found


def _answer(data: bytes) -> dict[str, object]:
    try:
        return {"outline": read_outline(data)}
    except Exception as error:  # noqa: BLE001 - a pickle can provoke any
        return {"error": f"{type(error).__name__}: {error}"[:_TEXT_MAX]}


def _main() -> int:
    memory, cpu_s = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.write(json.dumps([_answer(data) for data in _pickles(sys.stdin.buffer)], allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
