"""Ranges of files, read together as one chunk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from ckptsync.disk.read import FileSource, WindowReader

__all__ = ["Piece", "read_pieces"]

Piece = tuple[str, int, int]
"""(path, offset, length): a range of a file, bytes."""
_own = threading.local()


def read_pieces(root: str, pieces: Iterable[Piece]) -> bytes:
    """The concatenation of pieces of files below `root`; shorter if a file ends early.

    The page cache is left as it was found (read.py).

    Raises:
        OSError: a file cannot be read.
    """
    reader: WindowReader | None = getattr(_own, "reader", None)
    if reader is None:
        reader = _own.reader = WindowReader()
    out = bytearray()
    for path, offset, length in pieces:
        with FileSource(os.path.join(root, path)) as source:
            for _, window in reader.windows(source, ((offset, length),)):
                out += window
    return bytes(out)
