"""What a file format tells about one file, without executing or unpickling anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ckptsync.model.step import Problem

__all__ = ["Format", "Inspection", "Record", "Reference", "Source"]


class Source(Protocol):
    """Random access to the bytes of one file (or of a window of it)."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length); shorter only where the file ends. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """A range of a file that is one thing to its format: a tensor, a zip entry, an item.

    Attributes:
        name: for messages ("archive/data/0").
        offset, length: bytes, in the file.
        itemsize: bytes of one number (1, 2, 4, 8), 0 where the format does not say.
        crc32: what the writer stored for these bytes, None where it stored nothing.
    """

    name: str
    offset: int
    length: int
    itemsize: int = 0
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Another file of the step that this file vouches for.

    Attributes:
        path: relative to the step directory, already joined with the voucher's directory and validated.
        size: exact size in bytes, None where unknown.
        items: (offset, length) of each item in it, ascending; empty where unknown.
    """

    path: str
    size: int | None = None
    items: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The outcome of looking at one file's structure.

    Attributes:
        format: the format's name, "opaque" for files of unknown format.
        records: ascending, not overlapping; where the splitter may cut and what has a CRC.
        problems: empty = structurally whole.
        references: files this one vouches for.
    """

    format: str
    records: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()


class Format(ABC):
    """One file format."""

    name: ClassVar[str]

    @abstractmethod
    def claims(self, path: str, head: bytes) -> bool:
        """Whether this format is responsible for `path` (relative), whose first 16 bytes are `head`."""

    @abstractmethod
    def inspect(self, path: str, source: Source) -> Inspection:
        """Look at the structure; every defect is a problem, never an exception (I/O errors pass through)."""
