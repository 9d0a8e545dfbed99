"""The object store protocol: what ckptsync needs of a store, and nothing more.

Of every store: a put happens wholly or not at all, a read sees what was written, a list is complete.
Create-if-absent must be atomic for anything that several nodes share. `ckptsync.testing.store` is this page as an
executable contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Blob", "Capabilities", "ObjectMeta", "Store"]

Blob = bytes | memoryview
"""An object's content on its way out. Nobody changes it once it has been handed over."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """One object: key, size in bytes, and the store's own modification time (ns since the epoch; None = unknown)."""

    key: str
    size: int
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the minimum.

    Attributes:
        atomic_create: `put_new` has exactly one winner, whoever races.
    """

    atomic_create: bool


class Store(Protocol):
    """Object storage, rooted at the configured prefix. Keys are relative, `/`-separated, validated by `keys.check`.

    Every method may raise StoreUnavailable (outcome unknown, retryable), StoreRefused, or StoreError.
    All methods are safe to call from many threads.
    """

    @property
    def url(self) -> str:
        """The store as the user wrote it, without secrets, for messages."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do beyond the minimum."""
        ...

    def put_new(self, key: str, data: Blob) -> bool:
        """Create `key` if it is absent, all or nothing. True = created, False = something is there already."""
        ...

    def put(self, key: str, data: Blob) -> None:
        """Create or replace `key`, all or nothing."""
        ...

    def get(self, key: str, *, max_size: int) -> bytes:
        """The whole object. Raises KeyMissing; CorruptObject if it is larger than `max_size` bytes."""
        ...

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, None if absent."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every object below `prefix + "/"`, in key order. Raises instead of truncating."""
        ...

    def children(self, prefix: str) -> tuple[str, ...]:
        """The distinct next path components below `prefix + "/"` that have something below them, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove `key`; absent is success."""
        ...
