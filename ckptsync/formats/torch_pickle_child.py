"""Reads the pickle of a torch file from stdin in a process of its own, and prints it as JSON: see torch_pickle.py.

A pickle is a program. Here it can only build stubs, containers and numbers, under limits of memory and time (as in
pickle_child.py). Started by path with `-I -S`: standard library only, nothing of ours is imported.

Arguments: address space in bytes, CPU seconds. Prints `{"object": ...}`, or `{"error": text}` with exit code 1.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
from collections import OrderedDict
from typing import Any, BinaryIO

__all__ = ["read_plain"]

_TEXT_MAX = 200
_DEPTH_MAX = 40
_ITEMS_MAX = 1_000_000


class Stub:
    """Stands for every class and function: takes anything, does nothing, keeps what it was given."""

    __slots__ = ("arguments", "items", "known_as", "state")
    name = "?"

    def __new__(cls, *arguments: object, **_: object) -> Stub:  # noqa: PYI034 - Self needs Python 3.11
        """Accept the arguments of any constructor or function."""
        stub = object.__new__(cls)
        stub.arguments, stub.state, stub.items, stub.known_as = arguments, None, [], cls.name
        return stub

    def __setstate__(self, state: object) -> None:
        """Keep it."""
        self.state = state

    def append(self, item: object) -> None:
        """An item of a subclass of list."""
        self.items.append(item)

    def extend(self, items: object) -> None:
        """Several of them."""
        self.items.extend(items if isinstance(items, (list, tuple)) else ())

    def add(self, item: object) -> None:
        """An item of a subclass of set."""
        self.items.append(item)

    def __setitem__(self, key: object, value: object) -> None:
        """An entry of a subclass of dict."""
        self.items.append((key, value))

    arguments: tuple[object, ...]
    state: object
    items: list[object]
    known_as: str


class _Reader(pickle.Unpickler):
    """Never imports; a persistent id is a storage, whose data lies in another record of the zip."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return type("Stub", (Stub,), {"__slots__": (), "name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        stub = Stub(*(pid if isinstance(pid, tuple) else (pid,)))
        stub.known_as = "storage"
        return stub


def read_plain(stream: BinaryIO) -> object:
    """The object that a pickle on `stream` builds, as JSON can have it.

    Raises:
        Exception: whatever a damaged or hostile pickle provokes.
    """
    return _Plain().of(_Reader(stream).load(), 0)


class _Plain:
    """Turns an object into plain values, bounded in depth and number."""

    def __init__(self) -> None:
        self._left = _ITEMS_MAX

    def of(self, value: object, depth: int) -> object:
        self._left -= 1
        if depth > _DEPTH_MAX or self._left < 0:
            msg = f"nested deeper than {_DEPTH_MAX}, or more than {_ITEMS_MAX} values"
            raise ValueError(msg)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": len(value)}
        if isinstance(value, dict):
            return {str(key): self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.of(item, depth + 1) for item in value]
        return self._object(value, depth)

    def _object(self, value: object, depth: int) -> object:
        if isinstance(value, type) and issubclass(value, Stub):
            return {"class": value.name}
        if not isinstance(value, Stub):
            return {"class": type(value).__name__}
        found = {"class": value.known_as, "args": self.of(value.arguments, depth + 1)}
        for name, more in (("state", value.state), ("items", value.items)):
            if more:
                found[name] = self.of(more, depth + 1)
        return found


def _main() -> int:
    memory, cpu_s = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer, code = json.dumps({"object": read_plain(sys.stdin.buffer)}), 0
    except Exception as error:  # noqa: BLE001 - a pickle can provoke any
        answer, code = json.dumps({"error": f"{type(error).__name__}: {error}"[:_TEXT_MAX]}), 1
    sys.stdout.write(answer)
    return code


if __name__ == "__main__":
    sys.exit(_main())
