"""What a node can give to others: chunks by digest, and where their bytes lie on its disk."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from blake3 import blake3

from ckptsync.disk.pieces import Piece, read_pieces

__all__ = ["Holdings"]

Place = tuple[str, Sequence[Piece]]
"""(root, pieces below it): the chunk is their concatenation."""


class Holdings:
    """Safe for threads. Nothing is believed of a disk: what is read is compared with its digest each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verified: Mapping[str, Place] | None = None
        self._names: bytes | None = None
        self._placed: dict[str, Place] = {}
        self._expected: set[str] | None = None
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._open: list[int] = []

    def verified(self, places: Mapping[str, Place]) -> None:
        """Chunks of the verified saves on this disk, instead of those named before."""
        self._verified = places
        self._names = b"".join(map(bytes.fromhex, places))

    def names(self) -> bytes | None:
        """The digests of these, 32 bytes each; None = nobody has said yet which there are."""
        return self._names

    def root(self, path: str) -> str:
        """A name for a directory that stays good when the directory is renamed, until `close`. Raises OSError."""
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with self._lock:
            self._open.append(descriptor)
        return f"/proc/self/fd/{descriptor}"

    def close(self) -> None:
        """Nothing is given any more."""
        self.nothing_more()
        with self._lock:
            self._verified, self._placed, descriptors, self._open = {}, {}, self._open, []
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def expect(self, digests: Iterable[str]) -> None:
        """All the chunks that this node is about to get. Until this is said, it may be any."""
        with self._lock:
            self._expected = set(digests)
            others = [digest for digest in self._waiting if digest not in self._expected]
            waiting = [call for digest in others for call in self._waiting.pop(digest)]
        for call in waiting:
            call()

    def placed(self, digest: str, root: str, pieces: Sequence[Piece]) -> None:
        """A chunk has come; () = it is not kept as a whole, and cannot be given."""
        with self._lock:
            if pieces:
                self._placed[digest] = (root, pieces)
            if self._expected is not None:
                self._expected.discard(digest)
            waiting = self._waiting.pop(digest, ())
        for call in waiting:
            call()

    def nothing_more(self) -> None:
        """What has not come yet will not come any more."""
        self.expect(())

    def await_chunk(self, digest: str, call: Callable[[], None]) -> bool:
        """Have `call` called, from any thread, when the chunk has come. False = it is not about to come."""
        with self._lock:
            if digest in (self._verified or ()) or digest in self._placed:
                return False
            if self._expected is not None and digest not in self._expected:
                return False
            self._waiting.setdefault(digest, []).append(call)
            return True

    def forget(self, digest: str, call: Callable[[], None]) -> None:
        """Nobody waits any more."""
        with self._lock:
            calls = self._waiting.get(digest, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._waiting.pop(digest, None)

    def read(self, digest: str) -> bytes | None:
        """The chunk, if it lies here as its name says; reads the disk."""
        for place in ((self._verified or {}).get(digest), self._placed.get(digest)):
            if place is None:
                continue
            try:
                raw = read_pieces(*place)
            except OSError:
                continue  # deleted, or replaced by something that is no file
            if blake3(raw).hexdigest() == digest:
                return raw
        return None
