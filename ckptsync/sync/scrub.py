"""Reading again what the store holds, healing it from this disk, and marking what cannot be restored any more."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ckptsync.chunks.header import ROOM, Compression
from ckptsync.chunks.transfer import get_chunk, put_chunk, room_for
from ckptsync.errors import CorruptObject, Interrupted, KeyMissing, StoreRefused
from ckptsync.model.manifest import ChunkRef, Commit, Part
from ckptsync.store import keys
from ckptsync.sync.history import BY_SCRUB, mark_bad, marked_by_scrub
from ckptsync.sync.remote import Remote, StepIndex
from ckptsync.sync.restore import LocalContent

__all__ = ["ScrubOptions", "Scrubbed", "scrub"]


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """How to scrub.

    Attributes:
        node: who marks.
        sample: the share of the chunks to read, 0 to 1. Of a commit that a scrub has marked, all are read.
        budget_bytes: raw bytes after which no new commit is begun; None = no limit.
        compression: of chunks that are put again.
        random: uniform in [0, 1).
        stop: true = end early, with Interrupted.
    """

    node: str
    sample: float = 1.0
    budget_bytes: int | None = None
    compression: Compression = "auto"
    random: Callable[[], float] = random_module.random
    stop: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class Scrubbed:
    """What was found.

    Attributes:
        commits: looked at.
        chunks, bytes: read, raw bytes.
        healed: keys of chunks that were put again from this disk.
        bad: (step, commit, why): marked now or before; nobody picks them.
        restored: (step, commit) whose marks were taken back: their bytes are right again.
        refused: marks that the store did not let us take back, in lines.
    """

    commits: int = 0
    chunks: int = 0
    bytes: int = 0
    healed: list[str] = field(default_factory=list)
    bad: list[tuple[int, str, str]] = field(default_factory=list)
    restored: list[tuple[int, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def scrub(remote: Remote, local: LocalContent, options: ScrubOptions) -> Scrubbed:
    """Check the chunks of the committed steps, those that a scrub has marked first, the others in random order.

    A damaged or missing chunk is put again if this disk still holds its bytes. Else the commit is marked; a node that
    holds them puts them when it scrubs, and takes the mark back.

    Raises:
        StoreError: the store failed, which says nothing about any chunk. Interrupted: `stop` said so.
    """
    return _Scrubber(remote, local, options).run()


class _Scrubber:
    def __init__(self, remote: Remote, local: LocalContent, options: ScrubOptions) -> None:
        self._remote, self._local, self._options = remote, local, options
        self._found = Scrubbed()
        self._right: dict[str, str] = {}  # chunk's key -> what is wrong with it, "" = nothing

    def run(self) -> Scrubbed:
        marked = marked_by_scrub(self._remote, self._remote.store.list(keys.bad_prefix(self._remote.run)))
        condemned = self._remote.condemned()
        for index, digest in self._order(marked):
            budget = self._options.budget_bytes
            if budget is not None and self._found.bytes >= budget:
                break
            try:
                commit = self._remote.commit(index.step, digest)
            except (KeyMissing, CorruptObject) as error:
                self._mark(None, index.step, digest, str(error), marked)
                continue
            if not self._remote.void(index.step, commit, condemned):
                self._check(commit, marked)
        return self._found

    def _order(self, marked: AbstractSet[str]) -> list[tuple[StepIndex, str]]:
        found = [(index, digest) for index in self._remote.index_all().values() for digest in sorted(index.commits)]
        shuffled = sorted((self._options.random(), at) for at in range(len(found)))
        return sorted((found[at] for _, at in shuffled), key=lambda each: each[1] not in marked)

    def _check(self, commit: Commit, marked: AbstractSet[str]) -> None:
        self._found.commits += 1
        sample = 1.0 if commit.digest in marked else self._options.sample
        faults = list(self._faults(commit, sample))  # all: what this node can heal of it, another perhaps cannot
        if faults:
            self._mark(commit, commit.step, commit.digest, faults[0], marked)
        elif commit.digest in marked:
            self._unmark(commit)

    def _unmark(self, commit: Commit) -> None:
        try:
            self._remote.store.delete(keys.bad_key(self._remote.run, commit.digest))
        except StoreRefused as error:  # a node that trains need not have the right to delete
            self._found.refused.append(f"step {commit.step} is whole again, and still marked as bad: {error}")
        else:
            self._found.restored.append((commit.step, commit.digest))

    def _faults(self, commit: Commit, sample: float) -> Iterator[str]:
        for part_id in commit.parts:
            try:
                part: Part = self._remote.fetch_part(commit.step, part_id)
            except (KeyMissing, CorruptObject) as error:
                yield str(error)
                continue
            for ref in part.chunks:
                if sample >= 1.0 or self._options.random() < sample:
                    wrong = self._fault_of(ref)
                    if wrong:
                        yield wrong

    def _fault_of(self, ref: ChunkRef) -> str:
        """What is wrong with a chunk and stays so; "" = nothing, or not any more."""
        if self._options.stop():
            what = "stopped"
            raise Interrupted(what, why="while scrubbing")
        if ref.key not in self._right:
            key = keys.chunk_key(self._remote.run, ref.key)
            self._found.chunks += 1
            self._found.bytes += ref.size
            try:
                get_chunk(self._remote.store, key, ref)
                self._right[ref.key] = ""
            except (KeyMissing, CorruptObject) as error:
                self._right[ref.key] = "" if self._heal(key, ref) else str(error)
        return self._right[ref.key]

    def _heal(self, key: str, ref: ChunkRef) -> bool:
        """Put a chunk again. A commit that stands needs it, so no sweep names its key: nobody deletes it."""
        raw = self._local.chunk(ref.digest)
        if raw is None:
            return False

        def read() -> memoryview:
            roomy = room_for(len(raw))
            roomy[ROOM:] = raw
            return roomy

        put_chunk(self._remote.store, key, ref.digest, read, self._options.compression)
        self._found.healed.append(key)
        return True

    def _mark(self, commit: Commit | None, step: int, digest: str, why: str, marked: AbstractSet[str]) -> None:
        condemned = self._remote.condemned()  # read after the damage was seen: a collection announces, then deletes
        void = keys.commit_key(self._remote.run, step, digest) in condemned.void
        if void or (commit is not None and self._remote.void(step, commit, condemned)):
            return
        if digest not in marked:
            mark_bad(self._remote, step, digest, node=self._options.node, why=f"{BY_SCRUB}{why}")
        self._found.bad.append((step, digest, why))
