"""The central directory of a stored zip, read so that nothing unexplained is left in the file.

Source of facts: PKWARE APPNOTE 6.3 (record layouts). Python's `zipfile` finds a directory behind trailing bytes and
before concatenations; torch never writes either, so here the last byte of the file must be the last of the end record.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ckptsync.formats.base import Source
from ckptsync.formats.reading import Defect, exactly

__all__ = ["DIRECTORY_BYTES_MAX", "END_BYTES", "ENTRIES_MAX", "Entry", "ends_like_zip", "read_directory"]

ENTRIES_MAX = 500_000
DIRECTORY_BYTES_MAX = 64 * 1024 * 1024

_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_REST = _END64.size - 12  # the record's own size field does not count its first 12 bytes
_TAIL = _END64.size + _LOCATOR.size + _END.size
_ZIP64_EXTRA = 1
_IS_DIRECTORY = 0x10
"""An attribute that makes torch's reader return no data at all: uninitialised memory becomes the tensor (seen)."""
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
END_BYTES = _END.size


class Entry(NamedTuple):
    """One entry as the central directory describes it; `size` in bytes, stored and raw alike."""

    name: bytes
    offset: int
    size: int
    crc32: int
    flags: int
    method: int


def ends_like_zip(tail: bytes) -> bool:
    """Whether `tail`, the last `END_BYTES` of a file, is a zip end record without a comment."""
    return len(tail) == _END.size and tail[:4] == b"PK\5\6" and tail[-2:] == b"\0\0"


def read_directory(source: Source) -> tuple[list[Entry], int]:
    """All entries, ascending by offset, and where the central directory starts.

    Raises:
        Defect: `truncated`, `malformed`, `limit`.
        OSError: from the source.
    """
    start, length, count = _locate(source)
    if count > ENTRIES_MAX or length > DIRECTORY_BYTES_MAX:
        msg = f"has {count} zip entries in a directory of {length} bytes; the limits are {ENTRIES_MAX} and "
        raise Defect(msg + str(DIRECTORY_BYTES_MAX), "limit")
    return sorted(_parse(exactly(source, start, length), count), key=lambda entry: entry.offset), start


def _locate(source: Source) -> tuple[int, int, int]:
    """Start and length in bytes of the directory, and the number of its entries."""
    size = source.size
    tail = exactly(source, max(0, size - _TAIL), min(size, _TAIL))
    if not ends_like_zip(tail[-_END.size :]):
        msg = "does not end with a zip end record: the write was cut short, or bytes were added"
        raise Defect(msg, "truncated")
    _, disk, start_disk, here, total, length, start, _ = _END.unpack(tail[-_END.size :])
    end = size - _END.size
    if tail[-_END.size - _LOCATOR.size :][:4] == b"PK\6\7":
        here, total, length, start = _zip64(tail, size, (here, total, length, start))
        end = size - _TAIL
    if disk or start_disk or here != total or start + length != end:
        msg = "its zip end record contradicts the file's size: joined, cut or damaged"
        raise Defect(msg)
    return start, length, total


def _zip64(tail: bytes, size: int, short: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The four numbers of the end record in full width; `short` are those of the old record."""
    if len(tail) != _TAIL:
        msg = "its zip64 end record is cut"
        raise Defect(msg)
    _, disk, at, disks = _LOCATOR.unpack_from(tail, _END64.size)
    magic, rest, _, _, disk64, start_disk64, *numbers = _END64.unpack_from(tail)
    here, total, length, start = numbers
    clipped = (min(here, _MAX16), min(total, _MAX16), min(length, _MAX32), min(start, _MAX32))
    sound = magic == b"PK\6\6" and rest == _END64_REST and (disk, disk64, start_disk64, disks) == (0, 0, 0, 1)
    if (
        not sound
        or at != size - _TAIL
        or any(a not in (b, c) for a, b, c in zip(short, clipped, _CLIPPED, strict=True))
    ):
        msg = "its zip64 end record contradicts the zip end record"
        raise Defect(msg)
    return here, total, length, start


_CLIPPED = (_MAX16, _MAX16, _MAX32, _MAX32)


def _parse(data: bytes, count: int) -> list[Entry]:
    entries, at = [], 0
    for index in range(count):
        if at + _CENTRAL.size > len(data):
            break
        fields = _CENTRAL.unpack_from(data, at)
        magic, _, _, flags, method, _, _, crc, packed, size, name, extra, comment, disk, _, attributes, offset = fields
        at += _CENTRAL.size
        tail = data[at : at + name + extra]
        at += name + extra + comment
        if magic != b"PK\1\2" or disk or attributes & _IS_DIRECTORY or at > len(data):
            msg = f"entry {index} of its zip directory is damaged"
            raise Defect(msg)
        size, packed, offset = _widen(tail[name:], size, packed, offset)
        if method == 0 and size != packed:
            msg = f"entry {index} of its zip directory has two sizes"
            raise Defect(msg)
        entries.append(Entry(tail[:name], offset, packed, crc, flags, method))
    if len(entries) != count or at != len(data):
        msg = f"its zip directory does not hold the {count} entries it announces"
        raise Defect(msg)
    return entries


def _widen(extra: bytes, *numbers: int) -> tuple[int, ...]:
    """Sizes and offset in full width: the zip64 field holds, in this order, those that did not fit."""
    if _MAX32 not in numbers:
        return numbers
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64_EXTRA:
            field = extra[at + 4 : at + 4 + length]
            wide = iter([int.from_bytes(field[i : i + 8], "little") for i in range(0, len(field) - 7, 8)])
            return tuple(next(wide, number) if number == _MAX32 else number for number in numbers)
        at += 4 + length
    return numbers
