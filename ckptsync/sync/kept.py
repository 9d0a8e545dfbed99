"""Parts and commits kept in memory: a document never changes, and a daemon sees many of them for months."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from ckptsync.model.manifest import Commit, Part

__all__ = ["Kept"]

_K = TypeVar("_K")
_V = TypeVar("_V", Part, Commit)

_ROWS_MAX = 250_000
"""Files and chunks of the documents kept, some 100 MB."""


class Kept(Generic[_K, _V]):
    """Documents by name, up to a size: the oldest go first. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_K, _V] = {}
        self._rows = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: _K) -> _V | None:
        """The document, None if it is not kept (any more)."""
        return self._known.get(key)

    def keep(self, key: _K, document: _V) -> None:
        """Keep a document, and let others go for it."""
        with self._lock:
            if key in self._known:
                return
            self._known[key] = document
            self._rows += _rows(document)
            while len(self._known) > 1 and self._rows > _ROWS_MAX:
                self._rows -= _rows(self._known.pop(next(iter(self._known))))


def _rows(document: Part | Commit) -> int:
    return len(document.files) + len(document.chunks) if isinstance(document, Part) else len(document.parts)
