"""Raw bytes of a chunk <-> the object that is stored (docs/format.md, "Chunks").

Which codec wrote an object is in its header and nowhere else: chunks are named by the digest of their raw bytes, so
two nodes, or two versions, may encode one chunk differently and still mean the same thing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Literal, NoReturn

from ckptsync.chunks import floats, frames, planes
from ckptsync.chunks.choice import Choice, Floats, Packer, Planes, Zstd, choose
from ckptsync.chunks.floats import Coding
from ckptsync.chunks.frames import Buffer, FrameError
from ckptsync.chunks.planes import Words
from ckptsync.errors import CorruptObject
from ckptsync.model.manifest import CHUNK_BYTES_MAX, FORMAT_MAJOR, FORMAT_MINOR

__all__ = ["ROOM", "Compression", "codec_of", "decode", "encode", "encoded_max", "frame"]

Compression = Literal["auto", "zstd", "none"]
MAGIC = b"CKSC"
RAW, ZSTD, PLANES, FLOATS = 0, 1, 2, 3
_NAMES = ("raw", "zstd", "planes", "floats")
HEADER = struct.Struct("<4sBBBBHHI")  # magic, major, minor, codec, item size, flags, header bytes, raw bytes
ROOM = HEADER.size  # bytes before the raw ones that `frame` fills
HEADER_MAX = 4096  # what later minor versions may add
CODING = struct.Struct("<BB")  # rotation, base: behind the table of lengths of a chunk of floats


def encoded_max(size: int) -> int:
    """The most bytes that a stored chunk of `size` raw bytes may have, whichever 1.x version wrote it."""
    return size + HEADER_MAX


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
        else b"".join((_header(RAW, 1, len(view)), view))
    )


def codec_of(blob: Buffer) -> str:
    """The codec that wrote a stored chunk, for people."""
    return _NAMES[memoryview(blob)[6]]


def frame(roomy: memoryview) -> memoryview:
    """Make `ROOM` bytes and the raw bytes behind them the stored form as it is (codec raw), without a copy."""
    roomy[:ROOM] = _header(RAW, 1, len(roomy) - ROOM)
    return roomy


def decode(blob: Buffer, size: int) -> bytes | memoryview:
    """The raw bytes of a stored chunk. Nothing larger than a few times `size` is ever allocated.

    Args:
        blob: the stored object.
        size: raw bytes the manifest says it has.

    Raises:
        CorruptObject: with the reason; `where` is left to the caller, who knows the key.
    """
    view = memoryview(blob).cast("B")
    codec, itemsize, start = _read_header(view, size)
    try:
        if codec == PLANES:
            return _decode_planes(view, start, itemsize, size)
        if codec == FLOATS:
            return _decode_floats(view, start, itemsize, size)
        return frames.unpack(view[start:], size) if codec == ZSTD else _exactly(view[start:], size)
    except FrameError as error:
        _damaged(str(error), error)


# --- header ---


def _header(codec: int, itemsize: int, size: int, table: bytes = b"") -> bytes:
    fixed = HEADER.pack(
        MAGIC, FORMAT_MAJOR, FORMAT_MINOR, codec, itemsize, 0, HEADER.size + len(table), size
    )  # no flags are defined yet
    return fixed + table


def _read_header(view: memoryview, size: int) -> tuple[int, int, int]:
    """Codec, item size, and where the payload begins."""
    if view[: len(MAGIC)] != MAGIC:
        _damaged("it does not begin like a chunk")
    if len(view) > len(MAGIC) and view[len(MAGIC)] > FORMAT_MAJOR:
        _too_new(f"written in format {view[len(MAGIC)]}, this version reads up to {FORMAT_MAJOR}")
    if len(view) < HEADER.size:
        _damaged("it ends within its header")
    _, major, _, codec, itemsize, flags, start, raw_size = HEADER.unpack_from(view)
    if flags:
        _too_new(f"it needs features that this version does not know (flags {flags:#06x})")
    if not major or codec > FLOATS or not HEADER.size <= start <= min(len(view), HEADER_MAX):
        _damaged("its header is damaged")
    if raw_size != size:
        _damaged(f"its header says {raw_size} bytes where the manifest says {size}")
    return codec, itemsize, start


# --- codecs ---


def _exactly(payload: memoryview, size: int) -> memoryview:
    if len(payload) != size:
        _damaged(f"it holds {len(payload)} bytes instead of {size}")
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
    return b"".join((_header(ZSTD, 1, len(view)), frames.pack(view)))


def _encode_planes(view: memoryview, choice: Planes) -> bytes:
    whole = len(view) - len(view) % choice.itemsize
    stored = _pack(planes.split(view[:whole], choice.itemsize), choice.packers)
    header = _header(PLANES, choice.itemsize, len(view), _table(stored))
    return b"".join((header, *stored, view[whole:]))


def _encode_floats(view: memoryview, choice: Floats) -> bytes:
    coding = choice.coding
    whole = len(view) - len(view) % (2 * coding.itemsize)
    others, pairs, outliers = floats.split(view[:whole], coding)
    stored = _pack([*others, pairs, outliers], (*choice.packers, frames.pack_numbers, frames.pack))
    table = _table(stored) + CODING.pack(coding.rotation, coding.base)
    return b"".join((_header(FLOATS, coding.itemsize, len(view), table), *stored, view[whole:]))


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
        _damaged("its table of planes is damaged")
    count, tail = divmod(size, itemsize)
    pieces = _pieces(view, start, len(widths), tail)
    stored = [_unpack(piece, count * width) for piece, width in zip(pieces, widths, strict=True)]
    return _with_tail(planes.join(stored, itemsize), view, tail)


def _decode_floats(view: memoryview, start: int, itemsize: int, size: int) -> bytes | memoryview:
    widths = floats.WIDTHS.get(itemsize, ())
    lengths = 4 * (len(widths) + 2)
    if not widths or size < 2 * itemsize or start < HEADER.size + lengths + CODING.size:
        _damaged("its table of planes is damaged")
    rotation, base = CODING.unpack_from(view, HEADER.size + lengths)
    if rotation > 1:
        _damaged("its table of planes is damaged")
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
        _damaged("its planes do not fill it")
    pieces = []
    for length in lengths:
        pieces.append(view[start : start + length])
        start += length
    return pieces


def _unpack(piece: memoryview, size: int) -> bytes | memoryview:
    return piece if len(piece) == size else frames.unpack(piece, size)


def _with_tail(joined: Words, view: memoryview, tail: int) -> bytes | memoryview:
    return b"".join((joined.data, view[len(view) - tail :])) if tail else joined.data


# --- faults ---


def _damaged(why: str, cause: Exception | None = None) -> NoReturn:
    what = "damaged chunk"
    raise CorruptObject(what, why=why) from cause


def _too_new(why: str) -> NoReturn:
    what = "cannot read chunk"
    raise CorruptObject(what, why=why, remedy="upgrade ckptsync")
