"""Raw bytes of a chunk <-> the object that is stored (docs/format.md, "Chunks").

Which codec wrote an object is in its header and nowhere else: chunks are named by the digest of their raw bytes, so
two nodes, or two versions, may encode one chunk differently and still mean the same thing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from ckptsync.chunks import frames, planes
from ckptsync.chunks.frames import Buffer, FrameError
from ckptsync.errors import CorruptObject
from ckptsync.model.manifest import CHUNK_BYTES_MAX, FORMAT_MAJOR, FORMAT_MINOR

__all__ = ["ROOM", "Compression", "decode", "encode", "encoded_max", "frame"]

Compression = Literal["auto", "zstd", "none"]
Packer = Callable[[Buffer], bytes]

MAGIC = b"CKSC"
RAW, ZSTD, PLANES = 0, 1, 2
HEADER = struct.Struct("<4sBBBBHHI")  # magic, major, minor, codec, item size, flags, header bytes, raw bytes
ROOM = HEADER.size  # bytes before the raw ones that `frame` fills
HEADER_MAX = 4096  # what later minor versions may add

WINDOW, WINDOWS = 4096, 8  # the sample: 32 KiB, spread over the chunk; a multiple of every item size
WORTHWHILE = 0.97  # below this share of its size, compressing pays for the time of a restore


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
    blob = choice and (_encode_planes(view, choice) if choice.itemsize > 1 else _encode_zstd(view))
    return blob if blob and len(blob) < HEADER.size + len(view) else b"".join((_header(RAW, 1, len(view)), view))


def frame(roomy: memoryview) -> memoryview:
    """Make `ROOM` bytes and the raw bytes behind them the stored form as it is (codec raw), without a copy."""
    roomy[:ROOM] = _header(RAW, 1, len(roomy) - ROOM)
    return roomy


def decode(blob: Buffer, size: int) -> bytes:
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
        return frames.unpack(view[start:], size) if codec == ZSTD else _exactly(view[start:], size)
    except FrameError as error:
        _damaged(str(error), error)


# --- header ---


def _header(codec: int, itemsize: int, size: int, lengths: Sequence[int] = ()) -> bytes:
    table = struct.pack(f"<{len(lengths)}I", *lengths)
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
    if not major or codec > PLANES or not HEADER.size <= start <= min(len(view), HEADER_MAX):
        _damaged("its header is damaged")
    if raw_size != size:
        _damaged(f"its header says {raw_size} bytes where the manifest says {size}")
    return codec, itemsize, start


# --- codecs ---


def _exactly(payload: memoryview, size: int) -> bytes:
    if len(payload) != size:
        _damaged(f"it holds {len(payload)} bytes instead of {size}")
    return bytes(payload)


def _encode_zstd(view: memoryview) -> bytes:
    return b"".join((_header(ZSTD, 1, len(view)), frames.pack(view)))


def _encode_planes(view: memoryview, choice: _Choice) -> bytes:
    whole = len(view) - len(view) % choice.itemsize
    stored: list[Buffer] = []
    for plane, pack in zip(planes.split(view[:whole], choice.itemsize), choice.packers, strict=True):
        data = plane.data.cast("B")
        packed = pack(data) if pack else data
        # Equal lengths mean "as it is" to the reader.
        stored.append(packed if len(packed) < len(data) else data)
    header = _header(PLANES, choice.itemsize, len(view), [len(data) for data in stored])
    return b"".join((header, *stored, view[whole:]))


def _decode_planes(view: memoryview, start: int, itemsize: int, size: int) -> bytes:
    widths = planes.WIDTHS.get(itemsize, ())
    if not widths or size < itemsize or start < HEADER.size + 4 * len(widths):
        _damaged("its table of planes is damaged")
    lengths = struct.unpack_from(f"<{len(widths)}I", view, HEADER.size)
    count, tail = divmod(size, itemsize)
    if start + sum(lengths) + tail != len(view):
        _damaged("its planes do not fill it")
    stored: list[bytes | memoryview] = []
    for length, width in zip(lengths, widths, strict=True):
        piece = view[start : start + length]
        stored.append(piece if length == count * width else frames.unpack(piece, count * width))
        start += length
    joined = planes.join(stored, itemsize)
    return joined.tobytes() if not tail else b"".join((joined.data, view[start:]))


# --- choice ---


@dataclass(frozen=True, slots=True)
class _Choice:
    """Item size 1 is plain zstd; else how to compress each plane, None = not at all."""

    itemsize: int
    packers: tuple[Packer | None, ...] = ()
    estimate: int = 0


def _choose(view: memoryview, compression: Compression, hint: int) -> _Choice | None:
    """How to encode; None = as it is."""
    if compression == "none" or not view:
        return None
    if compression == "zstd":
        return _Choice(1)
    sample = _sample(view)
    choices = [_Choice(1, estimate=len(frames.pack(sample)))]
    choices += [_try(sample, size) for size in _candidates(hint) if size <= len(sample)]
    best = min(choices, key=lambda choice: choice.estimate)
    return best if best.estimate < WORTHWHILE * len(sample) else None


def _candidates(hint: int) -> tuple[int, ...]:
    """Formats that name their item size are believed (trying all costs a tenth of the time), others are tried."""
    return (hint,) if hint in planes.WIDTHS else tuple(planes.WIDTHS)


def _sample(view: memoryview) -> memoryview:
    if len(view) <= WINDOW * WINDOWS:
        return view
    # Multiples of the window keep every number whole: a chunk begins with one.
    step = (len(view) // WINDOW - 1) / (WINDOWS - 1)
    starts = (int(i * step) * WINDOW for i in range(WINDOWS))
    return memoryview(b"".join(view[start : start + WINDOW] for start in starts))


def _try(sample: memoryview, itemsize: int) -> _Choice:
    whole = len(sample) - len(sample) % itemsize
    found = [_best_packer(plane.data.cast("B")) for plane in planes.split(sample[:whole], itemsize)]
    return _Choice(itemsize, tuple(packer for packer, _ in found), sum(size for _, size in found))


def _best_packer(plane: memoryview) -> tuple[Packer | None, int]:
    """The packer for a plane like this, and the bytes it makes of it."""
    size = len(frames.pack_numbers(plane))
    if size >= WORTHWHILE * len(plane):
        return None, len(plane)
    size_of_runs = len(frames.pack_runs(plane))
    return (frames.pack_runs, size_of_runs) if WORTHWHILE * size_of_runs < size else (frames.pack_numbers, size)


# --- faults ---


def _damaged(why: str, cause: Exception | None = None) -> NoReturn:
    what = "damaged chunk"
    raise CorruptObject(what, why=why) from cause


def _too_new(why: str) -> NoReturn:
    what = "cannot read chunk"
    raise CorruptObject(what, why=why, remedy="upgrade ckptsync")
