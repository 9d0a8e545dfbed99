"""`.distcp` files of torch.distributed.checkpoint: small torch zips (tensors) and raw bytes, one after the other.

The file does not say where one item ends; `.metadata` does. Without it the file is opaque.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckptsync.formats.base import Format, Inspection, Record, Source
from ckptsync.formats.reading import Blocks, BytesSource, Defect, Window, exactly, failed
from ckptsync.formats.torch_zip import ZIP_MAGIC, zip_records
from ckptsync.formats.zip_directory import END_BYTES, ends_like_zip
from ckptsync.model.step import Problem

__all__ = ["Distcp", "inspect_items"]

PROBLEMS_MAX = 20
_SMALL_ITEM = 1024 * 1024
_HEAD_BYTES = 16


class Distcp(Format):
    """Data files of DCP, seen alone."""

    name = "distcp"

    def claims(self, path: str, head: bytes) -> bool:  # noqa: ARG002 - an interface
        """By suffix: the magic is that of its first item."""
        return path.endswith(".distcp")

    def inspect(self, path: str, source: Source) -> Inspection:  # noqa: ARG002 - an interface
        """Opaque: see `inspect_items`."""
        return Inspection("opaque")


def inspect_items(path: str, source: Source, items: Sequence[tuple[int, int]]) -> Inspection:
    """Look at a file whose items (offset, length in bytes; ascending) another file of the step lists.

    Problems: `size` where the items do not end where the file ends, and those of each item that is a torch zip.
    """
    end = max(offset + length for offset, length in items)
    if source.size != end:
        why = f"has {source.size} bytes, but its metadata says {end}"
        return failed(Distcp.name, path, Defect(why, "size"))
    blocks = Blocks(source)
    records: list[Record] = []
    problems: list[Problem] = []
    for offset, length in items:
        found = _inspect_item(blocks, offset, length)
        if isinstance(found, Defect):
            problems.append(Problem(path, found.code, f"item at {offset} {found.message}"))
        else:
            records.extend(found)
    return Inspection(Distcp.name, tuple(records), tuple(problems[:PROBLEMS_MAX]))


def _inspect_item(source: Source, offset: int, length: int) -> list[Record] | Defect:
    try:
        return list(_item_records(source, offset, length))
    except Defect as defect:
        return defect


def _item_records(source: Source, offset: int, length: int) -> Iterator[Record]:
    name = f"item@{offset}"
    window: Source = Window(source, offset, length)
    if length <= _SMALL_ITEM:
        window = BytesSource(exactly(window, 0, length))
    head = window.read(0, min(length, _HEAD_BYTES))
    if head.startswith(ZIP_MAGIC):
        for record in zip_records(window):
            yield replace(record, name=f"{name}/{record.name}", offset=offset + record.offset)
        return
    _check_raw(window, head)
    if length:
        yield Record(name, offset, length)


def _check_raw(window: Source, head: bytes) -> None:
    """Raw bytes have no structure; but a tensor whose first bytes are gone must not pass for raw bytes."""
    if len(head) == _HEAD_BYTES and not any(head):
        msg = "starts with zeros: the data never reached the disk"
        raise Defect(msg, "zeros")
    if ends_like_zip(window.read(max(0, window.size - END_BYTES), END_BYTES)):
        msg = "ends like a zip but does not start like one"
        raise Defect(msg)
