"""Files -> chunks: where to cut, and the digests of the pieces.

Deduplication lives on chunks that do not change while their neighbours do. So every large record (a tensor) has
chunks of its own, cut relative to its own beginning; and what lies between (zip headers, small tensors, small files:
"glue") is gathered, so that tens of thousands of small things do not become as many objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from ckptsync.errors import StepChanged
from ckptsync.formats.base import Record
from ckptsync.model.manifest import Extent

__all__ = ["CHUNK_CUT", "GLUE_MAX", "OWN_CHUNK_MIN", "ChunkDigests", "FileShape", "Plan", "Range", "split"]

OWN_CHUNK_MIN = 128 * 1024
"""Bytes from which a record (or a stretch without records) has chunks of its own."""
CHUNK_CUT = 8 * 1024 * 1024
"""Bytes at which it is cut: half of what the format allows, for the sake of memory in flight."""
GLUE_MAX = 4 * 1024 * 1024
"""Bytes of a glue chunk: what one changed byte in a small file costs."""


@dataclass(frozen=True, slots=True)
class FileShape:
    """What the splitter needs to know of a file: its size in bytes, and its records, ascending, not overlapping."""

    path: str
    size: int
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [offset, offset + length) of a file."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How files become chunks, and chunks become files again.

    Attributes:
        chunks: the ranges whose concatenation is the chunk's content, in the order of the files.
        extents: path -> where its bytes are, in order; empty for an empty file.
        itemsizes: for each chunk the bytes of one number, 0 = unknown or mixed.
    """

    chunks: tuple[tuple[Range, ...], ...]
    extents: Mapping[str, tuple[Extent, ...]]
    itemsizes: tuple[int, ...]

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each chunk."""
        return tuple(sum(piece.length for piece in chunk) for chunk in self.chunks)


def split(files: Sequence[FileShape]) -> Plan:
    """Cut files into chunks, in path order. The same shapes give the same plan, always.

    Glue of at least 128 KiB in one file stays among itself, so that a large file's chunks do not depend on its
    neighbours; smaller amounts run on from file to file.

    Raises:
        ValueError: records that overlap, leave their file, or do not ascend; a path given twice.
    """
    builder = _Builder()
    shared = _Glue(builder)
    for file in sorted(files, key=lambda file: file.path):
        builder.open(file.path)
        segments = tuple(_segments(file))
        small = sum(segment.length for segment in segments if segment.length < OWN_CHUNK_MIN)
        glue = _Glue(builder) if small >= OWN_CHUNK_MIN else shared
        for segment in segments:
            if segment.length < OWN_CHUNK_MIN:
                glue.add(file.path, segment)
            else:
                _own(builder, file.path, segment)
    return builder.plan()


class ChunkDigests:
    """The BLAKE3 of every chunk of a plan, from one pass over the files.

    Files come in path order, each from its first byte on, in pieces of any size. A file that could not be read to
    its end is no error here: its chunks have no digest, and `digests` says so.
    """

    def __init__(self, plan: Plan) -> None:
        self._extents = plan.extents
        self._sizes = plan.sizes()
        self._digests: list[str | None] = [None] * len(plan.chunks)
        self._open: dict[int, tuple[blake3, int]] = {}
        self._path = ""
        self._offset = 0
        self._rest: list[Extent] = []

    def feed(self, path: str, offset: int, data: bytes | memoryview) -> None:
        """Take bytes [offset, offset + len(data)) of a file.

        Raises:
            StepChanged: the file is longer than planned.
            ValueError: not the bytes that come next.
        """
        if path != self._path:
            self._path, self._offset, self._rest = path, 0, list(reversed(self._extents[path]))
        if offset != self._offset:
            msg = f"{path}: bytes at {offset} where those at {self._offset} come next"
            raise ValueError(msg)
        view = memoryview(data).cast("B")
        self._offset += len(view)
        while view:
            view = view[self._take(view) :]

    def digests(self) -> tuple[str, ...]:
        """64 hex digits for each chunk. Raises StepChanged if bytes are missing."""
        done = tuple(digest for digest in self._digests if digest is not None)
        if len(done) < len(self._digests):
            what = "a step was not read to its end"
            raise StepChanged(what, why=f"{len(self._digests) - len(done)} chunks are incomplete")
        return done

    def _take(self, view: memoryview) -> int:
        if not self._rest:
            what = "a file grew while it was read"
            raise StepChanged(what, where=self._path)
        extent = self._rest.pop()
        taken = min(extent.length, len(view))
        self._update(extent, view[:taken])
        if taken < extent.length:
            self._rest.append(Extent(extent.chunk, extent.offset + taken, extent.length - taken))
        return taken

    def _update(self, extent: Extent, data: memoryview) -> None:
        hasher, hashed = self._open.pop(extent.chunk) if extent.chunk in self._open else (blake3(), 0)
        if hashed != extent.offset:
            return  # bytes before these are missing: this chunk will not get a digest
        hasher.update(data)
        hashed += len(data)
        if hashed == self._sizes[extent.chunk]:
            self._digests[extent.chunk] = hasher.hexdigest()
        else:
            self._open[extent.chunk] = (hasher, hashed)


def _segments(file: FileShape) -> Iterator[Record]:
    """The whole file as records and, without a name, what lies between them; empty ones left out."""
    position = 0
    for record in file.records:
        if record.offset < position or record.length < 0 or record.offset + record.length > file.size:
            msg = f"record {record.name} does not fit into {file.path}"
            raise ValueError(msg)
        if record.offset > position:
            yield Record("", position, record.offset - position)
        if record.length:
            yield record
        position = record.offset + record.length
    if position < file.size:
        yield Record("", position, file.size - position)


def _own(builder: _Builder, path: str, segment: Record) -> None:
    """Chunks for one large segment; a last piece too small for a chunk stays with the one before it."""
    begin, end = segment.offset, segment.offset + segment.length
    while begin < end:
        length = CHUNK_CUT if end - begin >= CHUNK_CUT + OWN_CHUNK_MIN else end - begin
        builder.append(builder.new(segment.itemsize), Range(path, begin, length))
        begin += length


@dataclass(slots=True)
class _Builder:
    """Chunks in the making, in the order of their first bytes."""

    chunks: list[list[Range]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    itemsizes: list[int] = field(default_factory=list)
    extents: dict[str, list[Extent]] = field(default_factory=dict)

    def open(self, path: str) -> None:
        if path in self.extents:
            msg = f"{path} is given twice"
            raise ValueError(msg)
        self.extents[path] = []

    def new(self, itemsize: int) -> int:
        self.chunks.append([])
        self.sizes.append(0)
        self.itemsizes.append(itemsize)
        return len(self.chunks) - 1

    def append(self, chunk: int, piece: Range) -> None:
        """Add a piece to a chunk; one that continues the piece before it becomes part of it."""
        pieces, extents = self.chunks[chunk], self.extents[piece.path]
        last = pieces[-1] if pieces else None
        if last and (last.path, last.offset + last.length) == (piece.path, piece.offset):
            pieces[-1] = Range(last.path, last.offset, last.length + piece.length)
            extents[-1] = Extent(chunk, extents[-1].offset, extents[-1].length + piece.length)
        else:
            pieces.append(piece)
            extents.append(Extent(chunk, self.sizes[chunk], piece.length))
        self.sizes[chunk] += piece.length

    def plan(self) -> Plan:
        return Plan(
            tuple(tuple(pieces) for pieces in self.chunks),
            {path: tuple(extents) for path, extents in self.extents.items()},
            tuple(self.itemsizes),
        )


@dataclass(slots=True)
class _Glue:
    """Small segments gathered into chunks of at most GLUE_MAX bytes; a segment is never cut."""

    builder: _Builder
    chunk: int | None = None

    def add(self, path: str, segment: Record) -> None:
        if self.chunk is None or self.builder.sizes[self.chunk] + segment.length > GLUE_MAX:
            self.chunk = self.builder.new(0)
        self.builder.append(self.chunk, Range(path, segment.offset, segment.length))
