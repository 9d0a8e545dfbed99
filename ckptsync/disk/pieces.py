"""Ranges of files, read together as one chunk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from ckptsync.disk.read import FileSource, WindowReader

__all__ = ["Piece", "read_into", "read_pieces"]

Piece = tuple[str, int, int]
"""(path, offset, length): a range of a file, bytes."""
_own = threading.local()


def read_pieces(root: str, pieces: Iterable[Piece]) -> bytes:
    """The concatenation of pieces of files below `root`; shorter if a file ends early. As `read_into`."""
    pieces = tuple(pieces)
    out = memoryview(bytearray(sum(length for _, _, length in pieces)))
    return bytes(out[: read_into(root, pieces, out)])


def read_into(root: str, pieces: Iterable[Piece], out: memoryview) -> int:
    """Fill `out` with the concatenation of pieces of files below `root`, without a copy on the way.

    The page cache is left as it was found (read.py).

    Returns:
        Bytes read: fewer than the pieces have if a file ends early.

    Raises:
        OSError: a file cannot be read.
    """
    reader: WindowReader | None = getattr(_own, "reader", None)
    if reader is None:
        reader = _own.reader = WindowReader()
    done = 0
    for path, offset, length in pieces:
        with FileSource(os.path.join(root, path)) as source:
            done += reader.fill(source, offset, out[done : done + length])
    return done
