"""Raw bytes of a chunk <-> the object that is stored (docs/format.md, "Chunks").

Which codec wrote an object is in its header and nowhere else: chunks are named by the digest of their raw bytes, so
two nodes, or two versions, may encode one chunk differently and still mean the same thing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ckptsync.chunks import floats, frames, planes
from ckptsync.chunks.choice import Choice, Floats, Packer, Planes, Zstd, choose
from ckptsync.chunks.floats import Coding
from ckptsync.chunks.frames import Buffer, FrameError
from ckptsync.chunks.header import FLOATS, HEADER, PLANES, RAW, ZSTD, Compression, damaged, read_header, write_header
from ckptsync.chunks.planes import Words
from ckptsync.model.manifest import CHUNK_BYTES_MAX

__all__ = ["decode", "encode"]

CODING = struct.Struct("<BB")  # rotation, base: behind the table of lengths of a chunk of floats


def encode(raw: Buffer, *, compression: Compression, itemsize: int = 0) -> bytes:
    """The stored form of a chunk; never more than a few bytes larger than `raw`.

    Args:
        raw: up to 16 MiB.
        compression: "auto" chooses by a sample; "zstd" never splits numbers into planes; "none" stores as is.
        itemsize: bytes of one number where the file's format tells (2, 4, 8), else 0: then the sample tells.

    Raises:
        ValueError: more than 16 MiB.
    """
    view = memoryview(raw).cast("B")
    if len(view) > CHUNK_BYTES_MAX:
        msg = f"a chunk of {len(view)} bytes is larger than the format allows"
        raise ValueError(msg)
    choice = _choose(view, compression, itemsize)
    blob = _encode(view, choice) if choice else None
    return (
        blob
        if blob is not None and len(blob) < HEADER.size + len(view)
        else b"".join((write_header(RAW, 1, len(view)), view))
    )


def decode(blob: Buffer, size: int) -> bytes | memoryview:
    """The raw bytes of a stored chunk. Nothing larger than a few times `size` is ever allocated.

    Args:
        blob: the stored object.
        size: raw bytes the manifest says it has.

    Raises:
        CorruptObject: with the reason; `where` is left to the caller, who knows the key.
    """
    view = memoryview(blob).cast("B")
    codec, itemsize, start = read_header(view, size)
    try:
        if codec == PLANES:
            return _decode_planes(view, start, itemsize, size)
        if codec == FLOATS:
            return _decode_floats(view, start, itemsize, size)
        return frames.unpack(view[start:], size) if codec == ZSTD else _exactly(view[start:], size)
    except FrameError as error:
        damaged(str(error), error)


# --- codecs ---


def _exactly(payload: memoryview, size: int) -> memoryview:
    if len(payload) != size:
        damaged(f"it holds {len(payload)} bytes instead of {size}")
    return payload


def _choose(view: memoryview, compression: Compression, hint: int) -> Choice | None:
    """How to encode; None = as it is."""
    if compression == "none" or not view:
        return None
    return Zstd() if compression == "zstd" else choose(view, hint)


def _encode(view: memoryview, choice: Choice) -> bytes:
    if isinstance(choice, Planes):
        return _encode_planes(view, choice)
    if isinstance(choice, Floats):
        return _encode_floats(view, choice)
    return b"".join((write_header(ZSTD, 1, len(view)), frames.pack(view)))


def _encode_planes(view: memoryview, choice: Planes) -> bytes:
    whole = len(view) - len(view) % choice.itemsize
    stored = _pack(planes.split(view[:whole], choice.itemsize), choice.packers)
    header = write_header(PLANES, choice.itemsize, len(view), _table(stored))
    return b"".join((header, *stored, view[whole:]))


def _encode_floats(view: memoryview, choice: Floats) -> bytes:
    coding = choice.coding
    whole = len(view) - len(view) % (2 * coding.itemsize)
    others, pairs, outliers = floats.split(view[:whole], coding)
    stored = _pack([*others, pairs, outliers], (*choice.packers, frames.pack_numbers, frames.pack))
    table = _table(stored) + CODING.pack(coding.rotation, coding.base)
    return b"".join((write_header(FLOATS, coding.itemsize, len(view), table), *stored, view[whole:]))


def _pack(parts: Sequence[Words], packers: Iterable[Packer | None]) -> list[Buffer]:
    stored: list[Buffer] = []
    for part, pack in zip(parts, packers, strict=True):
        data = part.data.cast("B") if len(part) else b""
        packed = pack(data) if pack and data else data
        # Equal lengths mean "as it is" to the reader.
        stored.append(packed if len(packed) < len(data) else data)
    return stored


def _table(stored: Sequence[Buffer]) -> bytes:
    return struct.pack(f"<{len(stored)}I", *map(len, stored))


def _decode_planes(view: memoryview, start: int, itemsize: int, size: int) -> bytes | memoryview:
    widths = planes.WIDTHS.get(itemsize, ())
    if not widths or size < itemsize or start < HEADER.size + 4 * len(widths):
        damaged("its table of planes is damaged")
    count, tail = divmod(size, itemsize)
    pieces = _pieces(view, start, len(widths), tail)
    stored = [_unpack(piece, count * width) for piece, width in zip(pieces, widths, strict=True)]
    return _with_tail(planes.join(stored, itemsize), view, tail)


def _decode_floats(view: memoryview, start: int, itemsize: int, size: int) -> bytes | memoryview:
    widths = floats.WIDTHS.get(itemsize, ())
    lengths = 4 * (len(widths) + 2)
    if not widths or size < 2 * itemsize or start < HEADER.size + lengths + CODING.size:
        damaged("its table of planes is damaged")
    rotation, base = CODING.unpack_from(view, HEADER.size + lengths)
    if rotation > 1:
        damaged("its table of planes is damaged")
    pairs_count, tail = divmod(size, 2 * itemsize)
    *others, pairs, outliers = _pieces(view, start, len(widths) + 2, tail)
    stored = [_unpack(piece, 2 * pairs_count * width) for piece, width in zip(others, widths, strict=True)]
    places = _unpack(pairs, pairs_count)
    exponents = _unpack(outliers, floats.outliers_in(places))
    return _with_tail(floats.join(stored, places, exponents, Coding(itemsize, rotation, base)), view, tail)


def _pieces(view: memoryview, start: int, count: int, tail: int) -> list[memoryview]:
    """What the lengths in the table cut the payload into."""
    lengths = struct.unpack_from(f"<{count}I", view, HEADER.size)
    if start + sum(lengths) + tail != len(view):
        damaged("its planes do not fill it")
    pieces = []
    for length in lengths:
        pieces.append(view[start : start + length])
        start += length
    return pieces


def _unpack(piece: memoryview, size: int) -> bytes | memoryview:
    return piece if len(piece) == size else frames.unpack(piece, size)


def _with_tail(joined: Words, view: memoryview, tail: int) -> bytes | memoryview:
    return b"".join((joined.data, view[len(view) - tail :])) if tail else joined.data
