"""Documents as the store holds them: one Zstandard frame each, read with bounds, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import zstandard

from ckptsync.errors import CorruptObject

__all__ = ["DOCUMENT_BYTES_MAX", "in_threads", "pack", "unpack"]

_T = TypeVar("_T")
_R = TypeVar("_R")

DOCUMENT_BYTES_MAX = 256 * 1024 * 1024
_READERS = 16
_BATCH = 4 * _READERS


def pack(data: bytes) -> bytes:
    """The one frame that `unpack` reads."""
    return zstandard.compress(data)


def unpack(data: bytes, where: str) -> bytes:
    """One frame, bounded whatever it declares.

    Raises:
        CorruptObject: not exactly one frame, or more than DOCUMENT_BYTES_MAX in it.
    """
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj(read_across_frames=False)
        out = bytearray()
        view = memoryview(data)
        for start in range(0, len(view), 1 << 16):
            out += reader.decompress(view[start : start + (1 << 16)])
            if len(out) > DOCUMENT_BYTES_MAX:
                raise CorruptObject("document too large", where=where, why=f"more than {DOCUMENT_BYTES_MAX} bytes")
        if not reader.eof or reader.unused_data:
            raise CorruptObject("broken document", where=where, why="not exactly one zstd frame")
    except zstandard.ZstdError as error:
        raise CorruptObject("broken document", where=where, why=str(error)) from None
    return bytes(out)


def in_threads(work: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """What `work` makes of each item, in their order; few are in flight, so that any number costs bounded memory."""
    waiting = iter(items)
    with ThreadPoolExecutor(_READERS) as pool:
        while batch := list(islice(waiting, _BATCH)):
            yield from pool.map(work, batch)
