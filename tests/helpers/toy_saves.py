"""A trainer of two ranks with a frozen base, its verified saves on two nodes, and their caches without a disk."""

from __future__ import annotations

import os
from pathlib import Path

from blake3 import blake3

from ckptsync.disk.saves import Save, Saves
from ckptsync.disk.scan import file_stat
from ckptsync.layouts.base import Layout
from ckptsync.layouts.shards import missing_locally, missing_ranks
from ckptsync.model.manifest import ChunkRef, DirEntry, Extent, FileEntry, Part
from ckptsync.model.step import Level, Problem, Shard
from ckptsync.testing.simulated import SimulatedStore

HOUR_NS = 3600 * 10**9
BEGIN_NS = SimulatedStore().now_ns - 100 * HOUR_NS
RUN_ID = "0" * 32
SKEW_NS = {"A": 0, "B": 2 * HOUR_NS, "C1": -30 * HOUR_NS, "C2": 30 * HOUR_NS, "D": 0}


class Toy(Layout):
    """`model-0-of-2`, `frozen-0-of-2`, and DONE, written last by one process."""

    name = "toy"
    barrier = True

    def step_of(self, name):
        return int(name.removeprefix("save-"))

    def recognise(self, paths):
        return "DONE" in paths

    def shard(self, path):
        kind, _, rest = path.partition("-")
        rank, _, world = rest.partition("-of-")
        return Shard("", kind, int(rank), int(world)) if world else None

    def closing(self, paths):
        return frozenset({"DONE"} & set(paths))

    def missing(self, sizes):
        done = () if "DONE" in sizes else (Problem("DONE", "missing", "missing"),)
        return (*missing_ranks(filter(None, map(self.shard, sizes))), *done)

    def missing_here(self, sizes, seen):
        return missing_locally(filter(None, map(self.shard, sizes)), seen)


TOY = Toy()

SHARES = [  # node, step, rank, world, content of model, end of the save in hours
    ("A", 10, 0, 2, "a10", 1),
    ("B", 10, 1, 2, "b10", 1),
    ("A", 20, 0, 2, "a20", 2),
    ("B", 20, 1, 2, "b10", 2),  # unchanged since step 10
    ("A", 30, 0, 1, "a10", 3),  # went back to what it was
    ("A", 10, 0, 1, "d10", 4),  # rolled back: the number again, other bytes
]


class MemorySaves(Saves):
    """The cache of one node, without a disk."""

    def __init__(self, saves):
        self.saves, self.marks = list(saves), {}

    def load(self):
        return self.saves

    def mark(self, save, name, value=""):
        self.marks[save.name, name] = value

    def unmark(self, save, name):
        self.marks.pop((save.name, name), None)

    def mark_of(self, save, name):
        return self.marks.get((save.name, name))

    def append(self, save, name, word):
        self.marks[save.name, name] = self.marks.get((save.name, name), "") + word + "\n"


def make_save(root, node, step, rank, world, content, hours):
    """A verified save of one node, and its files."""
    end_ns = BEGIN_NS + hours * HOUR_NS + SKEW_NS[node]
    files = {f"frozen-{rank}-of-{world}": b"frozen " * 9, f"model-{rank}-of-{world}": content.encode() * 20}
    if rank == 0:
        files["DONE"] = f"{step} {end_ns}".encode()
    home = Path(root, f"{node}-{step}-{hours}")
    home.mkdir()
    for path, data in files.items():
        (home / path).write_bytes(data)
    names = sorted(files)
    digests = {path: blake3(data).hexdigest() for path, data in files.items()}
    part = Part(
        run="run",
        run_id=RUN_ID,
        step=step,
        name=f"save-{step}",
        below="",
        node=node,
        node_id="f" * 32,
        layout="toy",
        level=Level.FULL,
        saved_ns=end_ns if rank == 0 else end_ns - 10**9,
        closed=rank == 0,
        previous_ns=end_ns - HOUR_NS,
        offset_ns=0,
        files=tuple(
            FileEntry(path, len(files[path]), 0o644, end_ns - (path != "DONE") * 10**9, digests[path], (extent,))
            for path, extent in ((p, Extent(i, 0, len(files[p]))) for i, p in enumerate(names))
        ),
        dirs=(DirEntry("", 0o755, end_ns),),
        chunks=tuple(ChunkRef(digests[path], len(files[path])) for path in names),
    )
    stats = {path: file_stat(os.stat(home / path)) for path in names}
    return Save(part, stats), str(home), {path: (home / path).read_bytes() for path in names}


def files_of(shares, union):
    """The files of a save as its trainers wrote them, by what `make_save` made of SHARES."""
    hours = round((union.end_ns - BEGIN_NS) / HOUR_NS)
    found = {}
    for (_, step, *_, end), (_, _, files) in zip(SHARES, shares, strict=True):
        if (step, end) == (union.step, hours):
            found |= files
    return found
