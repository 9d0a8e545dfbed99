"""Verifying a step: its structure, and one read pass that yields digests and checks the CRC32 of every record.

`torch.load` never looks at the CRC32 that `torch.save` stores, so a hole of zeros loads as weights; here it is found.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from ckptsync import formats
from ckptsync.disk.read import FileSource, WindowReader
from ckptsync.disk.scan import ensure_unchanged, permission_problem
from ckptsync.errors import Interrupted, StepChanged
from ckptsync.formats.base import Inspection, Record, Reference
from ckptsync.model.paths import inside
from ckptsync.model.step import Expectation, FileStat, Listing, Problem

__all__ = ["ReadResult", "Sink", "StepInspection", "inspect_step", "locate", "read_step"]

_PROBLEMS_MAX = 5  # of one file: a page of CRC failures says no more than a few
_LINKS_MAX = 40


class Sink(Protocol):
    """Takes the bytes of a step as they are read: files in path order, each from start to end."""

    def feed(self, path: str, offset: int, data: memoryview) -> None:
        """Bytes [offset, offset + len(data)) of `path`; the memory is valid during the call only."""
        ...


@dataclass(frozen=True, slots=True)
class StepInspection:
    """The structure of a step.

    Attributes:
        problems: what is wrong; empty = structurally whole.
        records: path -> the records of that file, where its format knows any.
        expects: every file that a file of the step vouches for, wherever it lies. One that is missing here is no
            problem by itself: it may lie on another node.
    """

    problems: tuple[Problem, ...]
    records: Mapping[str, tuple[Record, ...]]
    expects: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What the read pass found: path -> BLAKE3 (64 hex digits) of every file read, and what is wrong."""

    digests: Mapping[str, str]
    problems: tuple[Problem, ...]


def locate(listing: Listing, path: str) -> str | None:
    """The file of `listing` that `path` leads to, through its links; None if there is none."""
    for _ in range(_LINKS_MAX):
        if path in listing.files:
            return path
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            target = listing.links.get("/".join(parts[:depth]))
            if target is not None:
                base = inside("/".join(parts[: depth - 1]), target)
                path = "/".join(part for part in (base or "", *parts[depth:]) if part)
                break
        else:
            return None
    return None


def inspect_step(listing: Listing, *, root: str | None = None) -> StepInspection:
    """Look at the structure of every file, and of what they say about each other.

    Args:
        listing: the step.
        root: where its files lie, if not at `listing.path` (a staged copy).

    Raises:
        StepChanged: a file vanished.
    """
    base = root or listing.path
    found = {path: _inspect(base, path, formats.inspect) for path in sorted(listing.files)}
    vouched = [(voucher, ref) for voucher, inspection in found.items() for ref in inspection.references]
    problems: list[Problem] = []
    itemised: set[str] = set()
    for voucher, reference in vouched:
        path = locate(listing, reference.path)
        if path is None:
            continue
        size = listing.files[path].size
        if reference.size is not None and size != reference.size:
            message = f"{size} bytes, but {voucher} says {reference.size}"
            problems.append(Problem(path, "size", message))
        elif reference.items and path not in itemised:
            itemised.add(path)
            found[path] = _inspect_items(base, path, reference)
    problems += [problem for inspection in found.values() for problem in inspection.problems]
    return StepInspection(
        problems=tuple(sorted(set(problems), key=lambda problem: (problem.path, problem.code, problem.message))),
        records={path: inspection.records for path, inspection in found.items() if inspection.records},
        expects=tuple(Expectation(ref.path, ref.size, voucher) for voucher, ref in vouched),
    )


def read_step(
    listing: Listing,
    inspection: StepInspection,
    *,
    root: str | None = None,
    sink: Sink | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReadResult:
    """Read every file once, in path order: digest, CRC32 of every record, and `sink`.

    Args:
        listing: the step; a file whose stat is no longer the listed one ends the pass.
        inspection: whose records carry the CRCs.
        root: where the files lie, if not at `listing.path`.
        sink: gets every byte that is read.
        stop: asked once for each window; True ends the pass.
        progress: told the bytes of each window.

    Raises:
        StepChanged: a file moved or vanished before the last of them was read; nothing of the result can be used.
        Interrupted: `stop` said so.
    """
    reader = _StepReader(root or listing.path, sink, stop, progress)
    for path in sorted(listing.files):
        reader.read(path, listing.files[path], inspection.records.get(path, ()))
    ensure_unchanged(listing, root=root)
    return ReadResult(reader.digests, tuple(reader.problems))


class _StepReader:
    """One pass over a step; a file that cannot be read is a problem, not the end."""

    def __init__(
        self,
        base: str,
        sink: Sink | None,
        stop: Callable[[], bool] | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.digests: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._base, self._sink, self._stop, self._progress = base, sink, stop, progress
        self._reader = WindowReader()

    def read(self, path: str, listed: FileStat, records: Sequence[Record]) -> None:
        try:
            with FileSource(os.path.join(self._base, path)) as source:
                self._require_unchanged(path, source.opened, listed)
                digest, problems = self._digest(path, source, records)
                self._require_unchanged(path, source.stat(), listed)
        except OSError as error:
            self.problems.append(_io_problem(self._base, path, error))
            return
        self.digests[path] = digest
        self.problems += problems

    def _digest(self, path: str, source: FileSource, records: Sequence[Record]) -> tuple[str, list[Problem]]:
        whole, sums = blake3(), _Sums(path, records)
        for offset, data in self._reader.windows(source):
            if self._stop is not None and self._stop():
                what = "asked to stop while reading a step"
                raise Interrupted(what, where=self._base)
            whole.update(data)
            sums.update(offset, data)
            if self._sink is not None:
                self._sink.feed(path, offset, data)
            if self._progress is not None:
                self._progress(len(data))
        return whole.hexdigest(), sums.problems()

    def _require_unchanged(self, path: str, found: FileStat, listed: FileStat) -> None:
        if not found.unchanged_since(listed):
            what = "a file of the step changed while it was read"
            raise StepChanged(what, where=os.path.join(self._base, path), remedy="it is taken again once it is quiet")


class _Sums:
    """Running CRC32 of the records of one file, fed window by window."""

    def __init__(self, path: str, records: Sequence[Record]) -> None:
        self._path = path
        self._records = [record for record in records if record.crc32 is not None]
        self._at = 0  # the first record that is not over yet
        self._crc = 0  # of what has been seen of it
        self._bad: list[Record] = []

    def update(self, offset: int, data: memoryview) -> None:
        end = offset + len(data)
        while self._at < len(self._records):
            record = self._records[self._at]
            if record.offset >= end and record.length:
                return
            low, high = max(record.offset, offset), min(record.offset + record.length, end)
            self._crc = zlib.crc32(data[low - offset : high - offset], self._crc)
            if record.offset + record.length > end:
                return
            self._close(record)

    def problems(self) -> list[Problem]:
        """Every record whose bytes are not what its writer summed; one line for the many beyond the first few."""
        while self._at < len(self._records):  # records that the file ended before, and empty ones at its end
            self._close(self._records[self._at])
        shown = [
            Problem(self._path, "crc", f"record {record.name!r} is not what was written: its CRC32 differs")
            for record in self._bad[:_PROBLEMS_MAX]
        ]
        if len(self._bad) > _PROBLEMS_MAX:
            message = f"so are {len(self._bad) - _PROBLEMS_MAX} more of its records"
            shown.append(Problem(self._path, "crc", message))
        return shown

    def _close(self, record: Record) -> None:
        if self._crc != record.crc32:
            self._bad.append(record)
        self._at, self._crc = self._at + 1, 0


def _inspect(base: str, path: str, look: Callable[[str, FileSource], Inspection]) -> Inspection:
    try:
        with FileSource(os.path.join(base, path)) as source:
            return look(path, source)
    except OSError as error:
        return Inspection("unreadable", problems=(_io_problem(base, path, error),))


def _inspect_items(base: str, path: str, reference: Reference) -> Inspection:
    return _inspect(base, path, lambda name, source: formats.inspect_items(name, source, reference.items))


def _io_problem(base: str, path: str, error: OSError) -> Problem:
    """Raises StepChanged if the file is gone."""
    if isinstance(error, FileNotFoundError):
        what = "a file of the step vanished while it was read"
        raise StepChanged(what, where=os.path.join(base, path)) from error
    if isinstance(error, PermissionError):
        return permission_problem(base, path)
    return Problem(path, "unreadable", f"cannot be read: {os.strerror(error.errno or 0)}")
