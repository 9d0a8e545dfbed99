"""Reading a file piecewise: windows, a small block cache, and the defect that ends an inspection early."""

from __future__ import annotations

from collections import OrderedDict

from ckptsync.formats.base import Inspection, Source
from ckptsync.model.step import Problem

__all__ = ["Blocks", "BytesSource", "Defect", "Window", "all_of", "exactly", "failed", "refuse_empty"]

BLOCK_BYTES = 32 * 1024
BLOCKS_KEPT = 8


class Defect(Exception):
    """Internal: the structure is not what the format says. `code` and `message` become a `Problem`."""

    def __init__(self, message: str, code: str = "malformed") -> None:
        super().__init__(message)
        self.code, self.message = code, message

    def problem(self, path: str) -> Problem:
        """The same, as callers see it."""
        return Problem(path, self.code, self.message)


def failed(name: str, path: str, defect: Defect) -> Inspection:
    """An inspection by format `name` that ended at `defect`."""
    return Inspection(name, problems=(defect.problem(path),))


def exactly(source: Source, offset: int, length: int) -> bytes:
    """Bytes [offset, offset + length).

    Raises:
        Defect: `truncated`, the file ends earlier.
        OSError: from the source.
    """
    data = source.read(offset, length)
    if len(data) != length:
        msg = f"ends within the {length} bytes at {offset}: truncated"
        raise Defect(msg, "truncated")
    return data


def all_of(source: Source) -> bytes:
    """The whole of a source whose size the caller has bounded.

    Raises:
        Defect: `empty`, `truncated`.
        OSError: from the source.
    """
    refuse_empty(source)
    return exactly(source, 0, source.size)


def refuse_empty(source: Source) -> None:
    """Raise Defect `empty` for a file of no bytes."""
    if source.size == 0:
        msg = "is empty"
        raise Defect(msg, "empty")


class BytesSource:
    """Bytes in memory, as a `Source`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length); shorter only where the data end."""
        return self._data[offset : offset + length]


class Window:
    """The range [offset, offset + length) of another source, as a `Source` of its own."""

    def __init__(self, source: Source, offset: int, length: int) -> None:
        self._source, self._offset, self._length = source, offset, length

    @property
    def size(self) -> int:
        """Bytes."""
        return self._length

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length), never beyond the window."""
        return self._source.read(self._offset + offset, max(0, min(length, self._length - offset)))


class Blocks:
    """A source read in aligned blocks, the last few kept: thousands of neighbouring headers cost few real reads.

    On a network disk the number of reads is what costs. A read longer than a block goes straight through.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes."""
        return self._source.size

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length); shorter only where the file ends."""
        if length > BLOCK_BYTES:
            return self._source.read(offset, length)
        first, last = offset // BLOCK_BYTES, max(offset, offset + length - 1) // BLOCK_BYTES
        data = b"".join(self._block(index) for index in range(first, last + 1))
        start = offset - first * BLOCK_BYTES
        return data[start : start + length]

    def _block(self, index: int) -> bytes:
        if index in self._blocks:
            self._blocks.move_to_end(index)
            return self._blocks[index]
        block = self._blocks[index] = self._source.read(index * BLOCK_BYTES, BLOCK_BYTES)
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return block
