"""Reading parts and commits back, trusting nothing.

Every field is typed and bounded, every path validated, and the bytes must be exactly what `to_bytes` would write. Only
a newer minor version may have put more fields into a document; what it wrote is kept, since the name depends on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ckptsync.model.manifest import (
    CHUNK_BYTES_MAX,
    FORMAT_MAJOR,
    FORMAT_MINOR,
    MODE_MASK,
    ChunkRef,
    Commit,
    DirEntry,
    DocumentT,
    Extent,
    FileEntry,
    LinkEntry,
    ManifestError,
    Part,
    PartId,
    canonical,
)
from ckptsync.model.paths import check_relative, check_target, tree_clash, unquote
from ckptsync.model.step import Expectation, Level

__all__ = ["Fields", "parse_canonical", "parse_commit", "parse_part", "parse_part_id"]

_INT_MAX = 2**63 - 1
_STEP_MAX = 10**12 - 1  # what a key can say
_TEXT_CHARS_MAX = 255
_TEXT = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{_TEXT_CHARS_MAX}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX_CHARS_MAX = 32


class Fields(dict[str, Any]):
    """A document, for who judges its fields himself: one that is missing makes it invalid, nothing else."""

    def __missing__(self, key: str) -> Any:
        msg = f"it has no {key}"
        raise ManifestError(msg)


def parse_canonical(data: bytes, kind: str, major: int = FORMAT_MAJOR) -> dict[str, Any]:
    """Parse a document of `kind`, insisting on the canonical spelling and a known major version.

    Args:
        data: the document.
        kind: what it must be.
        major: the greatest major version of this kind that is known.

    Raises:
        ManifestError: not JSON, not an object, another kind, not canonical, or a newer major version.
    """
    document = _parse(data, kind, major)
    _check_spelling(document, data)
    return document


def _parse(data: bytes, kind: str, major: int = FORMAT_MAJOR) -> dict[str, Any]:
    try:
        document = json.loads(data, parse_constant=_refuse, parse_float=_refuse)
    except (ValueError, RecursionError) as error:
        msg = f"not valid JSON: {error}"
        raise ManifestError(msg) from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        msg = f"not a {kind}"
        raise ManifestError(msg)
    _check_major(document, major)
    return document


def _check_spelling(document: Mapping[str, Any], data: bytes) -> None:
    try:
        spelled = canonical(document)
    except RecursionError as error:  # the writer's limit need not be the reader's
        msg = f"not valid JSON: {error}"
        raise ManifestError(msg) from None
    if spelled != data:
        msg = "not in canonical spelling"
        raise ManifestError(msg)


def _check_major(document: Mapping[str, Any], known: int) -> None:
    major, _ = _version(document)
    if major > known:
        msg = f"written in format {major}, this ckptsync reads up to {known}: upgrade ckptsync"
        raise ManifestError(msg, too_new=True)
    if major < FORMAT_MAJOR:
        msg = f"there is no format {major}"
        raise ManifestError(msg)


def _refuse(text: str) -> object:
    msg = f"number {text} not allowed"
    raise ValueError(msg)


def _version(document: Mapping[str, Any]) -> tuple[int, int]:
    version = document.get("format")
    if not (isinstance(version, list) and len(version) == 2 and all(type(v) is int and v >= 0 for v in version)):  # noqa: PLR2004 - [major, minor]
        msg = "no format version"
        raise ManifestError(msg)
    return version[0], version[1]


def _exactly(document: DocumentT, raw: Mapping[str, Any], data: bytes) -> DocumentT:
    """`document` if its spelling is `data`; with `data` kept if a newer minor version wrote more than we know."""
    if document.to_bytes() == data:
        return document.spelled(data)
    _check_spelling(raw, data)
    if _version(raw)[1] <= FORMAT_MINOR:
        msg = "it holds fields that its format does not have"
        raise ManifestError(msg)
    return document.read_from(data)


def parse_part(data: bytes) -> Part:
    """Parse and check a part.

    Raises:
        ManifestError: anything that is not exactly a part (see the module's docstring).
    """
    raw = _parse(data, "part")
    reader = _Reader(raw)
    chunks = tuple(_chunk(item) for item in reader.items("chunks"))
    part = Part(
        run=reader.text("run"),
        run_id=reader.text("run_id"),
        step=reader.number("step", high=_STEP_MAX),
        name=reader.component("name"),
        below=reader.path("below", root=True),
        node=reader.text("node"),
        node_id=reader.text("node_id"),
        layout=reader.text("layout"),
        level=reader.level(),
        saved_ns=reader.number("saved_ns"),
        closed=reader.flag("closed"),
        previous_ns=reader.number("previous_ns"),
        offset_ns=reader.number("offset_ns", low=-_INT_MAX),
        files=tuple(_file(item, chunks) for item in reader.items("files")),
        links=tuple(_link(item) for item in reader.items("links")),
        dirs=tuple(_dir(item) for item in reader.items("dirs")),
        expects=tuple(_expectation(item) for item in reader.items("expects")),
        chunks=chunks,
    )
    _check_tree(part)
    return _exactly(part, raw, data)


def parse_commit(data: bytes) -> Commit:
    """Raises ManifestError for anything that is not exactly a commit."""
    raw = _parse(data, "commit")
    reader = _Reader(raw)
    parts = tuple(parse_part_id(_str(item)) for item in reader.items("parts"))
    if not parts or list(parts) != sorted(set(parts)):
        msg = "parts are missing, repeated or not sorted"
        raise ManifestError(msg)
    step = reader.number("step", high=_STEP_MAX)
    return _exactly(Commit(reader.text("run"), reader.text("run_id"), step, parts), raw, data)


def parse_part_id(text: str) -> PartId:
    """Raises ManifestError for anything but `<node>@<64 hex digits>`."""
    node, sep, digest = text.rpartition("@")
    if not sep or not _is_text(node) or not _is_hex(digest):
        msg = f"not a part's name: {text!r}"
        raise ManifestError(msg)
    return PartId(node, digest)


class _Reader:
    """Typed access to a document's fields; every surprise is a ManifestError that names the field."""

    def __init__(self, raw: Any) -> None:
        if not isinstance(raw, dict):
            msg = "an entry is not an object"
            raise ManifestError(msg)
        self._raw: dict[str, Any] = raw

    def text(self, key: str) -> str:
        value = self._raw.get(key)
        if not isinstance(value, str) or not _is_text(value):
            msg = f"{key} is not a string of 1 to {_TEXT_CHARS_MAX} characters that can be shown"
            raise ManifestError(msg)
        return value

    def number(self, key: str, *, low: int = 0, high: int = _INT_MAX) -> int:
        value = self._raw.get(key)
        if type(value) is not int or not low <= value <= high:
            msg = f"{key} is not a number in range"
            raise ManifestError(msg)
        return value

    def flag(self, key: str) -> bool:
        value = self._raw.get(key)
        if not isinstance(value, bool):
            msg = f"{key} is not true or false"
            raise ManifestError(msg)
        return value

    def items(self, key: str) -> list[Any]:
        value = self._raw.get(key)
        if not isinstance(value, list):
            msg = f"{key} is not a list"
            raise ManifestError(msg)
        return value

    def path(self, key: str, *, root: bool = False) -> str:
        value = self._raw.get(key)
        if root and value == "":
            return ""
        try:
            return check_relative(unquote(_str(value)))
        except ValueError as error:
            msg = f"the path {value!r} {error}"
            raise ManifestError(msg) from None

    def component(self, key: str) -> str:
        name = self.path(key)
        if "/" in name:
            msg = f"{key} is not a single name: {name!r}"
            raise ManifestError(msg)
        return name

    def level(self) -> Level:
        try:
            return Level(self.text("level"))
        except ValueError:
            msg = "level is not a verification level"
            raise ManifestError(msg) from None

    def digest(self, key: str) -> str:
        value = self.text(key)
        if not _is_hex(value):
            msg = f"{key} is not a digest"
            raise ManifestError(msg)
        return value


def _str(value: object) -> str:
    if not isinstance(value, str):
        msg = f"{value!r} is not a string"
        raise ManifestError(msg)
    return value


def _is_text(text: str) -> bool:
    """Whether it can be a name: not empty, not long, no control characters, no half characters."""
    return _TEXT.fullmatch(text) is not None


def _is_hex(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _chunk(item: Any) -> ChunkRef:
    if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and type(item[1]) is int):  # noqa: PLR2004 - [key, size]
        msg = "a chunk is not [key, size]"
        raise ManifestError(msg)
    digest, dot, suffix = item[0].partition(".")
    if not _is_hex(digest) or (
        dot and not (0 < len(suffix) <= _SUFFIX_CHARS_MAX and suffix.isascii() and suffix.isalnum())
    ):
        msg = f"not a chunk's key: {item[0]!r}"
        raise ManifestError(msg)
    if not 0 < item[1] <= CHUNK_BYTES_MAX:
        msg = f"chunk size {item[1]} is out of range"
        raise ManifestError(msg)
    return ChunkRef(item[0], item[1])


def _file(item: Any, chunks: tuple[ChunkRef, ...]) -> FileEntry:
    reader = _Reader(item)
    extents = tuple(_extent(raw, chunks) for raw in reader.items("extents"))
    entry = FileEntry(
        path=reader.path("path"),
        size=reader.number("size"),
        mode=_mode(reader),
        mtime_ns=reader.number("mtime_ns", low=-_INT_MAX),
        digest=reader.digest("blake3"),
        extents=extents,
    )
    if sum(extent.length for extent in extents) != entry.size:
        msg = f"the extents of {entry.path!r} do not add up to its size"
        raise ManifestError(msg)
    return entry


def _extent(raw: Any, chunks: tuple[ChunkRef, ...]) -> Extent:
    if not (isinstance(raw, list) and len(raw) == 3 and all(type(v) is int and v >= 0 for v in raw)):  # noqa: PLR2004 - [chunk, offset, length]
        msg = "an extent is not [chunk, offset, length]"
        raise ManifestError(msg)
    extent = Extent(*raw)
    if extent.chunk >= len(chunks) or not extent.length or extent.offset + extent.length > chunks[extent.chunk].size:
        msg = f"extent {raw} leaves its chunk"
        raise ManifestError(msg)
    return extent


def _mode(reader: _Reader) -> int:
    mode = reader.number("mode")
    if mode & ~MODE_MASK:
        msg = f"mode {mode:o} has more than permission bits"
        raise ManifestError(msg)
    return mode


def _link(item: Any) -> LinkEntry:
    reader = _Reader(item)
    path, text = reader.path("path"), _str(item.get("target"))
    try:
        return LinkEntry(path, check_target(path.rpartition("/")[0], unquote(text)))
    except ValueError as error:
        msg = f"the target {text!r} of the link {path!r} {error}"
        raise ManifestError(msg) from None


def _dir(item: Any) -> DirEntry:
    reader = _Reader(item)
    return DirEntry(reader.path("path", root=True), _mode(reader), reader.number("mtime_ns", low=-_INT_MAX))


def _expectation(item: Any) -> Expectation:
    reader = _Reader(item)
    size = reader.number("size", low=-1)
    return Expectation(reader.path("path"), None if size < 0 else size, reader.path("voucher"))


def _check_tree(part: Part) -> None:
    """Files, links and directories must form a tree: each path once, nothing below a file or a link."""
    for name, entries in (("files", part.files), ("links", part.links), ("dirs", part.dirs)):
        paths = [entry.path for entry in entries]
        if paths != sorted(set(paths)):
            msg = f"{name} are repeated or not sorted"
            raise ManifestError(msg)
    leaves = [*(file.path for file in part.files), *(link.path for link in part.links)]
    clash = tree_clash(leaves, [entry.path for entry in part.dirs])
    if clash is not None:
        msg = f"{clash!r} is two things at once, or lies below a file or a link"
        raise ManifestError(msg)
