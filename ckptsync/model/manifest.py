"""Parts and commits: the immutable documents that make a step exist in the store (docs/format.md).

A document is canonical JSON (sorted keys, no white space, ASCII, no fractions); its name is the BLAKE3 of those
bytes. `parse.py` reads them back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from blake3 import blake3

from ckptsync.model.paths import quote
from ckptsync.model.step import Expectation, Level

__all__ = [
    "CHUNK_BYTES_MAX",
    "FORMAT_MAJOR",
    "FORMAT_MINOR",
    "MODE_MASK",
    "ChunkRef",
    "Commit",
    "DirEntry",
    "DocumentT",
    "Extent",
    "FileEntry",
    "LinkEntry",
    "ManifestError",
    "Part",
    "PartId",
    "canonical",
    "digest_of",
    "pieces_of",
]

FORMAT_MAJOR = 1
FORMAT_MINOR = 0
CHUNK_BYTES_MAX = 16 * 1024 * 1024
MODE_MASK = 0o777
_MESSAGE_CHARS_MAX = 500

DocumentT = TypeVar("DocumentT", bound="Document")


class ManifestError(ValueError):
    """A document is not what its format says. `too_new` = a newer major version wrote it."""

    def __init__(self, message: str, *, too_new: bool = False) -> None:
        if len(message) > _MESSAGE_CHARS_MAX:  # it may quote a hostile field
            half = _MESSAGE_CHARS_MAX // 2 - 3
            message = f"{message[:half]} ... {message[-half:]}"
        super().__init__(message)
        self.too_new = too_new


def canonical(document: Mapping[str, object]) -> bytes:
    """The one spelling of a document."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest_of(data: bytes | memoryview) -> str:
    """BLAKE3, 64 hex digits."""
    return blake3(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Document:
    """What parts and commits share: one spelling, and the name that follows from it. `replace` makes a new document."""

    _raw: bytes = field(default=b"", init=False, repr=False, compare=False)
    _digest: str = field(default="", init=False, repr=False, compare=False)

    def to_bytes(self) -> bytes:
        """Canonical JSON: as it was read, else as this version writes it."""
        return self._raw or canonical(self._fields())

    @property
    def digest(self) -> str:
        """BLAKE3 of `to_bytes`."""
        if not self._digest:
            object.__setattr__(self, "_digest", digest_of(self.to_bytes()))
        return self._digest

    def read_from(self: DocumentT, data: bytes) -> DocumentT:  # noqa: PYI019 - typing.Self is not in Python 3.10
        """This document with the bytes it was read from, where a newer minor version put more into them."""
        document = replace(self)
        object.__setattr__(document, "_raw", data)
        return document

    def spelled(self: DocumentT, data: bytes) -> DocumentT:  # noqa: PYI019 - as above
        """This document, whose `to_bytes` is known to be `data`: it need not be spelled again for its digest."""
        object.__setattr__(self, "_digest", digest_of(data))
        return self

    def _fields(self) -> dict[str, object]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk by the key it is stored under: BLAKE3 of its raw bytes, plus ".suffix" after a condemned namesake."""

    key: str
    size: int

    @property
    def digest(self) -> str:
        """64 hex digits."""
        return self.key.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of a chunk (index in the part's table): bytes [offset, offset + length)."""

    chunk: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its content is the concatenation of its extents. mtime in ns, in the writing node's own clock."""

    path: str
    size: int
    mode: int
    mtime_ns: int
    digest: str
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A symbolic link whose (relative) target is inside the step."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class DirEntry:
    """A directory ("" = the step itself) with its mode and mtime."""

    path: str
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """A part's name in the store: `<node>@<digest>`."""

    node: str
    digest: str

    def __str__(self) -> str:
        return f"{self.node}@{self.digest}"


@dataclass(frozen=True, slots=True)
class Part(Document):
    """What one node holds of a save that it verified, file by file.

    Attributes:
        run, run_id: the run's name and its random id (run.json).
        step: global step number.
        name: the step directory's name ("global_step_120"): a restore makes it again.
        below: where the step directory lay below the configured output_dir ("" = directly in it).
        node, node_id: the node's name and the random id of its state directory.
        layout: name of the layout that judged the save.
        level: verification level it passed.
        saved_ns: when the save ended, store time (ns): the closing file's mtime, else the newest shard's.
        closed: this node holds the save's closing file.
        previous_ns: the end of this run's previous save (or the start of the attempt) as far as this node
            knows, store time; 0 = unknown.
        offset_ns: store time minus this node's time when the part was made.
        files, links, dirs: the content, each sorted by path.
        expects: files that this part's files vouch for, wherever they lie.
        chunks: the table the extents point into.
    """

    run: str
    run_id: str
    step: int
    name: str
    below: str
    node: str
    node_id: str
    layout: str
    level: Level
    saved_ns: int
    closed: bool
    previous_ns: int
    offset_ns: int
    files: tuple[FileEntry, ...]
    links: tuple[LinkEntry, ...] = ()
    dirs: tuple[DirEntry, ...] = ()
    expects: tuple[Expectation, ...] = ()
    chunks: tuple[ChunkRef, ...] = field(default=())

    def _fields(self) -> dict[str, object]:
        return {
            "kind": "part",
            "format": [FORMAT_MAJOR, FORMAT_MINOR],
            "run": self.run,
            "run_id": self.run_id,
            "step": self.step,
            "name": quote(self.name),
            "below": quote(self.below),
            "node": self.node,
            "node_id": self.node_id,
            "layout": self.layout,
            "level": self.level.value,
            "saved_ns": self.saved_ns,
            "closed": self.closed,
            "previous_ns": self.previous_ns,
            "offset_ns": self.offset_ns,
            "files": [
                {
                    "path": quote(f.path),
                    "size": f.size,
                    "mode": f.mode,
                    "mtime_ns": f.mtime_ns,
                    "blake3": f.digest,
                    "extents": [[e.chunk, e.offset, e.length] for e in f.extents],
                }
                for f in self.files
            ],
            "links": [{"path": quote(x.path), "target": quote(x.target)} for x in self.links],
            "dirs": [{"path": quote(d.path), "mode": d.mode, "mtime_ns": d.mtime_ns} for d in self.dirs],
            "expects": [
                {"path": quote(x.path), "size": -1 if x.size is None else x.size, "voucher": quote(x.voucher)}
                for x in self.expects
            ],
            "chunks": [[c.key, c.size] for c in self.chunks],
        }

    @property
    def id(self) -> PartId:
        """`<node>@<digest of the canonical JSON>`."""
        return PartId(self.node, self.digest)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)


@dataclass(frozen=True, slots=True)
class Commit(Document):
    """What a step in the store consists of: run, step and sorted part digests determine every byte of it."""

    run: str
    run_id: str
    step: int
    parts: tuple[PartId, ...]

    def _fields(self) -> dict[str, object]:
        return {
            "kind": "commit",
            "format": [FORMAT_MAJOR, FORMAT_MINOR],
            "run": self.run,
            "run_id": self.run_id,
            "step": self.step,
            "parts": [str(part) for part in sorted(self.parts)],
        }


def pieces_of(part: Part) -> list[tuple[tuple[str, int, int], ...]]:
    """For each chunk of a part, the (path, offset, length) pieces that make it; () if its files are not all here."""
    covered = [0] * len(part.chunks)
    pieces: list[list[tuple[str, int, int]]] = [[] for _ in part.chunks]
    for file in part.files:
        offset = 0
        for extent in file.extents:
            if extent.offset == covered[extent.chunk]:  # a second file with the same chunk adds nothing
                pieces[extent.chunk].append((file.path, offset, extent.length))
                covered[extent.chunk] += extent.length
            offset += extent.length
    return [tuple(found) if covered[i] == part.chunks[i].size else () for i, found in enumerate(pieces)]
