"""Files of `torch.save`: zips with stored entries, a CRC-32 each, written front to back, the directory last.

Source of facts: measured on torch 2.13. Entries tile the file from offset 0: local header, name,
padding to 64 bytes, data, and for entries with flag bit 3 a descriptor of 16 or 24 bytes that repeats CRC and sizes.
"""

from __future__ import annotations

import struct

from ckptsync.formats.base import Format, Inspection, Record, Source
from ckptsync.formats.reading import Blocks, Defect, exactly, failed, refuse_empty
from ckptsync.formats.zip_directory import END_BYTES, Entry, ends_like_zip, read_directory

__all__ = ["TORCH_SUFFIXES", "ZIP_MAGIC", "TorchZip", "zip_records"]

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
ZIP_MAGIC = b"PK\3\4"

_LOCAL = struct.Struct("<4s5H3L2H")
_DESCRIPTORS = {16: struct.Struct("<4s3L"), 24: struct.Struct("<4sL2Q")}
_MAX32 = 0xFFFFFFFF
_ENCRYPTED, _DESCRIBED, _TORCH_FLAGS = 0x1, 0x8, 0x808
_HEAD_BYTES = 16


class TorchZip(Format):
    """Zips that torch wrote, whatever their name; and files with torch's usual suffixes, whatever their content."""

    name = "torch_zip"

    def claims(self, path: str, head: bytes) -> bool:
        """By magic or suffix."""
        return head.startswith(ZIP_MAGIC) or path.endswith(TORCH_SUFFIXES)

    def inspect(self, path: str, source: Source) -> Inspection:
        """Problems: `empty`, `zeros`, `truncated`, `malformed`, `compressed`, `limit`.

        The legacy format of torch.save and foreign zips are opaque: nothing is known to check.
        """
        try:
            _check_head(source)
            if not _is_torch_zip(path, source):
                return Inspection("opaque")
            return Inspection(self.name, zip_records(source))
        except Defect as defect:
            return failed(self.name, path, defect)


def zip_records(source: Source) -> tuple[Record, ...]:
    """The non-empty entries of a zip that fills `source` exactly, each with its CRC (None: the writer made none).

    Raises:
        Defect: `truncated`, `malformed`, `compressed`, `limit`.
        OSError: from the source.
    """
    blocks = Blocks(source)
    entries, end = read_directory(blocks)
    stops = [entry.offset for entry in entries[1:]] + [end]
    starts = [_data_offset(blocks, entry, stop) for entry, stop in zip(entries, stops, strict=True)]
    if not entries or entries[0].offset != 0:
        msg = "its first zip entry is not at the start of the file: bytes are missing or were added"
        raise Defect(msg)
    unchecked = all(entry.crc32 == 0 for entry in entries if entry.size)
    return tuple(
        Record(_text(entry.name), start, entry.size, crc32=None if unchecked else entry.crc32)
        for entry, start in zip(entries, starts, strict=True)
        if entry.size
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _check_head(source: Source) -> None:
    """Refuse what no writer leaves behind: nothing, a hole, a zip whose magic is gone."""
    refuse_empty(source)
    head = source.read(0, _HEAD_BYTES)
    if not any(head):
        msg = "starts with zeros: the data never reached the disk"
        raise Defect(msg, "zeros")
    if not head.startswith(ZIP_MAGIC) and ends_like_zip(source.read(max(0, source.size - END_BYTES), END_BYTES)):
        msg = "ends like a zip but does not start like one"
        raise Defect(msg)


def _is_torch_zip(path: str, source: Source) -> bool:
    """Not every zip in a step is torch's (`.npz`, archives of code); by name, else by the first entry."""
    head = source.read(0, _LOCAL.size)
    if not head.startswith(ZIP_MAGIC):
        return False
    if path.endswith(TORCH_SUFFIXES) or len(head) < _LOCAL.size:
        return True
    _, _, flags, method, *_, length, _ = _LOCAL.unpack(head)
    return method == 0 and (flags == _TORCH_FLAGS or source.read(_LOCAL.size, length).endswith(b"/data.pkl"))


def _data_offset(source: Source, entry: Entry, stop: int) -> int:
    """Where the entry's data start; checks that header, data and descriptor fill [entry.offset, stop)."""
    if entry.method != 0 or entry.flags & _ENCRYPTED:
        msg = f"zip entry {_text(entry.name)} is compressed or encrypted; torch stores"
        raise Defect(msg, "compressed")
    if entry.offset + _LOCAL.size + len(entry.name) + entry.size > stop:
        msg = f"zip entry {_text(entry.name)} overlaps what follows"
        raise Defect(msg)
    header = exactly(source, entry.offset, _LOCAL.size + len(entry.name))
    name: int
    extra: int  # unpacked as lengths in bytes
    magic, _, flags, method, _, _, crc, packed, size, name, extra = _LOCAL.unpack_from(header)
    same = (magic, flags, method, name) == (ZIP_MAGIC, entry.flags, 0, len(entry.name))
    if not same or header[_LOCAL.size :] != entry.name or not _repeats(entry, crc, packed, size):
        msg = f"the local header of zip entry {_text(entry.name)} contradicts the zip directory"
        raise Defect(msg)
    start = entry.offset + _LOCAL.size + name + extra
    _check_descriptor(source, entry, start + entry.size, stop)
    return start


def _repeats(entry: Entry, crc: int, packed: int, size: int) -> bool:
    """Whether a local header's numbers fit; they may be left to the descriptor, sizes also to a zip64 field."""
    if entry.flags & _DESCRIBED and crc == packed == size == 0:
        return True
    return crc == entry.crc32 and {packed, size} <= {entry.size, _MAX32}


def _check_descriptor(source: Source, entry: Entry, start: int, stop: int) -> None:
    layout = _DESCRIPTORS.get(stop - start)
    if entry.flags & _DESCRIBED and layout is not None:
        if layout.unpack(exactly(source, start, layout.size)) == (b"PK\7\10", entry.crc32, entry.size, entry.size):
            return
    elif start == stop and not entry.flags & _DESCRIBED:
        return
    msg = f"zip entry {_text(entry.name)} is not followed by what its header announces"
    raise Defect(msg)
