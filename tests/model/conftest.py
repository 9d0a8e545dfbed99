from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ckptsync.model.manifest import ChunkRef, Extent, FileEntry, Part, digest_of
from ckptsync.model.step import Level

EPOCH_S = 1_800_000_000
NS = 10**9


def _at(seconds: float) -> int:
    return (EPOCH_S * NS) + int(seconds * NS)


def _files(files: Mapping[str, tuple[str, float]]) -> tuple[tuple[FileEntry, ...], tuple[ChunkRef, ...]]:
    entries, chunks = [], []
    for path in sorted(files):
        text, seconds = files[path]
        data = text.encode()
        extents = (Extent(len(chunks), 0, len(data)),) if data else ()
        chunks += [ChunkRef(digest_of(data), len(data))] if data else []
        entries.append(FileEntry(path, len(data), 0o644, _at(seconds), digest_of(data), extents))
    return tuple(entries), tuple(chunks)


def _part(
    node: str = "n0",
    files: Mapping[str, tuple[str, float]] | None = None,
    *,
    saved: float | None = None,
    closed: bool = False,
    previous: float | None = None,
    clock: float = 0.0,
    **fields: object,
) -> Part:
    entries, chunks = _files({"data.pt": ("data", 0.0)} if files is None else files)
    offset_ns = -int(clock * NS)
    end_ns = max((entry.mtime_ns for entry in entries), default=_at(0)) if saved is None else _at(saved)
    return Part(
        **{
            "run": "r",
            "run_id": "id",
            "step": 20,
            "name": "global_step_20",
            "below": "",
            "node": node,
            "node_id": f"id-{node}",
            "layout": "verl",
            "level": Level.FULL,
            "saved_ns": end_ns + offset_ns,
            "closed": closed,
            "previous_ns": 0 if previous is None else _at(previous) + offset_ns,
            "offset_ns": offset_ns,
            "files": entries,
            "chunks": chunks,
            **fields,
        }
    )


@pytest.fixture(scope="session")
def at() -> Callable[[float], int]:
    """Seconds of the tests' own calendar -> ns since the epoch."""
    return _at


@pytest.fixture(scope="session")
def make_part() -> Callable[..., Part]:
    """A part of `files`: path -> (content, mtime in seconds by the node's clock, which is `clock` seconds ahead)."""
    return _part
