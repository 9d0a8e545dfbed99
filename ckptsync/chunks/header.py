"""The header of a stored chunk (docs/format.md, "Chunks"): which codec wrote it, and how many bytes it holds."""

from __future__ import annotations

import struct
from typing import Literal, NoReturn

from ckptsync.errors import CorruptObject
from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR

__all__ = [
    "FLOATS",
    "HEADER",
    "HEADER_MAX",
    "PLANES",
    "RAW",
    "ROOM",
    "ZSTD",
    "Compression",
    "codec_of",
    "damaged",
    "encoded_max",
    "frame",
    "read_header",
    "write_header",
]

Compression = Literal["auto", "zstd", "none"]
MAGIC = b"CKSC"
RAW, ZSTD, PLANES, FLOATS = 0, 1, 2, 3
_NAMES = ("raw", "zstd", "planes", "floats")
HEADER = struct.Struct("<4sBBBBHHI")  # magic, major, minor, codec, item size, flags, header bytes, raw bytes
ROOM = HEADER.size  # bytes before the raw ones that `frame` fills
HEADER_MAX = 4096  # what later minor versions may add


def encoded_max(size: int) -> int:
    """The most bytes that a stored chunk of `size` raw bytes may have, whichever 1.x version wrote it."""
    return size + HEADER_MAX


def codec_of(blob: bytes | memoryview) -> str:
    """The codec that wrote a stored chunk, for people."""
    return _NAMES[memoryview(blob)[6]]


def frame(roomy: memoryview) -> memoryview:
    """Make `ROOM` bytes and the raw bytes behind them the stored form as it is (codec raw), without a copy."""
    roomy[:ROOM] = write_header(RAW, 1, len(roomy) - ROOM)
    return roomy


def write_header(codec: int, itemsize: int, size: int, table: bytes = b"") -> bytes:
    """What stands before the payload of a chunk of `size` raw bytes; `table` is the codec's own."""
    fixed = HEADER.pack(
        MAGIC, FORMAT_MAJOR, FORMAT_MINOR, codec, itemsize, 0, HEADER.size + len(table), size
    )  # no flags are defined yet
    return fixed + table


def read_header(view: memoryview, size: int) -> tuple[int, int, int]:
    """Codec, item size, and where the payload begins, of what should hold `size` raw bytes. Raises CorruptObject."""
    if view[: len(MAGIC)] != MAGIC:
        damaged("it does not begin like a chunk")
    if len(view) > len(MAGIC) and view[len(MAGIC)] > FORMAT_MAJOR:
        _too_new(f"written in format {view[len(MAGIC)]}, this version reads up to {FORMAT_MAJOR}")
    if len(view) < HEADER.size:
        damaged("it ends within its header")
    _, major, _, codec, itemsize, flags, start, raw_size = HEADER.unpack_from(view)
    if flags:
        _too_new(f"it needs features that this version does not know (flags {flags:#06x})")
    if not major or codec > FLOATS or not HEADER.size <= start <= min(len(view), HEADER_MAX):
        damaged("its header is damaged")
    if raw_size != size:
        damaged(f"its header says {raw_size} bytes where the manifest says {size}")
    return codec, itemsize, start


def damaged(why: str, cause: Exception | None = None) -> NoReturn:
    """Raise CorruptObject; `where` is left to the caller, who knows the key."""
    what = "damaged chunk"
    raise CorruptObject(what, why=why) from cause


def _too_new(why: str) -> NoReturn:
    what = "cannot read chunk"
    raise CorruptObject(what, why=why, remedy="upgrade ckptsync")
