"""A store of many steps, and what a command lists of it: `python -m benchmarks.retention_worker build|lists ...`.

`build DIRECTORY STEPS CHUNKS` writes a run's store and its ckptsync.toml. `lists COMMAND ...` runs ckptsync in this
process, and prints how often each prefix was listed, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from blake3 import blake3

from ckptsync.cli.main import main as ckptsync
from ckptsync.model.manifest import ChunkRef, Commit, DirEntry, Extent, FileEntry, Part, canonical
from ckptsync.model.step import Level
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta
from ckptsync.store.files import FileStore
from ckptsync.sync.documents import pack

__all__ = ["main"]

_RUN, _RUN_ID = "run", "0" * 32
_SHARED = 20
_CHUNK_BYTES = 8 << 20
_MINUTE_NS = 60 * 10**9
_LINKS_MAX = 30_000  # ext4 allows 65,000 names of a file


class _Writer:
    """Objects of a store that is a directory; equal small ones are names of one file."""

    def __init__(self, root: Path) -> None:
        self._root, self._made, self._links = root, set[Path](), 0
        self._blob = root.parent / "blob"

    def put(self, key: str, data: bytes) -> None:
        self._path(key).write_bytes(data)

    def put_chunk(self, digest: str) -> None:
        if self._links % _LINKS_MAX == 0:
            self._blob.unlink(missing_ok=True)
            self._blob.write_bytes(b"x" * 64)
        self._links += 1
        os.link(self._blob, self._path(keys.chunk_key(_RUN, digest)))

    def _path(self, key: str) -> Path:
        path = self._root / key
        if path.parent not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent)
        return path


def _build(root: Path, steps: int, chunks: int) -> None:
    """Committed steps a minute apart, the last one now; each shares a few of its chunks with all others."""
    (root / "out").mkdir(parents=True)
    (root / "state").mkdir()
    (root / "state" / "run_id").write_text(_RUN_ID)
    (root / "ckptsync.toml").write_text(
        f'[run]\nname = "{_RUN}"\noutput_dir = "{root}/out"\nstate_dir = "{root}/state"\n'
        f'[upload]\nstore = "file://{root}/store"\n[retention.remote]\nkeep_last = {steps // 2 + steps // 10}\n'
    )
    writer = _Writer(root / "store")
    writer.put(keys.run_key(_RUN), canonical({"kind": "run", "format": [1, 0], "run": _RUN, "run_id": _RUN_ID}))
    shared = [_digest(f"shared {number}") for number in range(_SHARED)]
    for digest in shared:
        writer.put_chunk(digest)
    first_ns = time.time_ns() - steps * _MINUTE_NS
    for index in range(steps):
        fresh = [_digest(f"{index} {number}") for number in range((chunks - _SHARED) // steps)]
        for digest in fresh:
            writer.put_chunk(digest)
        _commit(writer, (index + 1) * 10, first_ns + index * _MINUTE_NS, [*shared, *fresh])


def _commit(writer: _Writer, step: int, end_ns: int, digests: list[str]) -> None:
    extents = tuple(Extent(number, 0, _CHUNK_BYTES) for number in range(len(digests)))
    file = FileEntry("weights.bin", _CHUNK_BYTES * len(digests), 0o644, end_ns, _digest(f"file {step}"), extents)
    part = Part(
        run=_RUN,
        run_id=_RUN_ID,
        step=step,
        name=f"step-{step}",
        below="",
        node="n0",
        node_id="f" * 32,
        layout="plain",
        level=Level.FULL,
        saved_ns=end_ns,
        closed=False,
        previous_ns=end_ns - _MINUTE_NS,
        offset_ns=0,
        files=(file,),
        dirs=(DirEntry("", 0o755, end_ns),),
        chunks=tuple(ChunkRef(digest, _CHUNK_BYTES) for digest in digests),
    )
    writer.put(keys.part_key(_RUN, step, str(part.id)), pack(part.to_bytes()))
    writer.put(keys.ready_key(_RUN, step, str(part.id)), b"")
    commit = Commit(_RUN, _RUN_ID, step, (part.id,))
    writer.put(keys.commit_key(_RUN, step, commit.digest), commit.to_bytes())


def _digest(text: str) -> str:
    return blake3(text.encode()).hexdigest()


def _lists(arguments: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    listed = FileStore.list

    def counting(self: FileStore, prefix: str) -> Iterator[ObjectMeta]:
        counts[prefix] += 1
        return listed(self, prefix)

    with contextlib.redirect_stdout(sys.stderr), patch.object(FileStore, "list", counting):
        code = ckptsync(arguments)
    if code:
        sys.exit(code)
    return counts


def main() -> None:
    """See the module's text."""
    mode, *arguments = sys.argv[1:]
    if mode == "build":
        _build(Path(arguments[0]), int(arguments[1]), int(arguments[2]))
    else:
        print(json.dumps(_lists(arguments)))


if __name__ == "__main__":
    main()
