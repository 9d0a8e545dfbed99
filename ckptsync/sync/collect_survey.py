"""What a collector sees of a run: each prefix listed once, chunks before the parts that name them."""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ckptsync.errors import CorruptObject, KeyMissing
from ckptsync.model.manifest import PartId
from ckptsync.model.parse import parse_part_id
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.collect_lists import Collection
from ckptsync.sync.collect_plan import Head, Tree
from ckptsync.sync.documents import in_threads
from ckptsync.sync.remote import Remote, StepIndex

__all__ = ["Needs", "Survey", "survey", "survey_again"]


@dataclass(frozen=True, slots=True)
class Needs:
    """A part as collection sees it: what decides over it, and the full keys of its chunks. None = unreadable."""

    head: Head | None
    chunks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Survey:
    """What the store holds of a run.

    Attributes:
        remote: the run.
        collections: all of them, read before anything else was listed.
        chunks: full key -> bytes.
        young: chunks that were put within the grace.
        tree: commits, parts and marks.
        objects, pins, bad: what `tree` was read from.
    """

    remote: Remote
    collections: tuple[Collection, ...]
    chunks: Mapping[str, int]
    young: frozenset[str]
    tree: Tree
    objects: tuple[ObjectMeta, ...]
    pins: tuple[ObjectMeta, ...]
    bad: tuple[ObjectMeta, ...]

    def indexes(self) -> dict[int, StepIndex]:
        """The index of each step, without another list."""
        return self.remote.index_all(self.objects)

    def needs(self, parts: Iterable[str]) -> Iterator[tuple[str, Needs]]:
        """Read parts (full keys), few at a time."""
        wanted = sorted(parts)
        yield from zip(wanted, in_threads(self._needs, wanted), strict=True)

    def _needs(self, key: str) -> Needs:
        step, part_id = _part_of(key)
        try:
            part = self.remote.fetch_part(step, part_id)
        except (KeyMissing, CorruptObject):
            return Needs(None)
        chunks = frozenset(keys.chunk_key(self.remote.run, ref.key) for ref in part.chunks)
        return Needs(Head(part.saved_ns, part.closed, active=not self.young.isdisjoint(chunks)), chunks)


def survey(remote: Remote, *, young_ns: int | None) -> Survey:
    """List a run: collections, chunks, steps.

    Args:
        remote: the run.
        young_ns: chunks put after this store time count as young; None = none do.

    Raises:
        StoreError: a list fails, or a collection cannot be read: then nothing may be concluded.
    """
    collections = remote.collections()
    chunks: dict[str, int] = {}
    young = set()
    for meta in remote.store.list(keys.chunks_prefix(remote.run)):
        if keys.kind_of(remote.run, meta.key) == "chunk":
            chunks[meta.key] = meta.size
            if young_ns is not None and meta.modified_ns is not None and meta.modified_ns > young_ns:
                young.add(meta.key)
    return _with_tree(remote, collections, chunks, young)


def survey_again(before: Survey) -> Survey:
    """List collections and steps again; the chunks are those of `before`. Raises StoreError."""
    return _with_tree(before.remote, before.remote.collections(), before.chunks, before.young)


def _with_tree(
    remote: Remote, collections: tuple[Collection, ...], chunks: Mapping[str, int], young: Names[str]
) -> Survey:
    objects = remote.objects()
    pins, bad = (tuple(remote.store.list(prefix(remote.run))) for prefix in (keys.pins_prefix, keys.bad_prefix))
    tree = _tree(remote, objects, _marked(pins), _marked(bad))
    return Survey(remote, collections, chunks, frozenset(young), tree, objects, pins, bad)


def _tree(remote: Remote, objects: Iterable[ObjectMeta], pinned: frozenset[str], bad: frozenset[str]) -> Tree:
    commits, ready = [], []
    parts: dict[str, int | None] = {}
    for meta in objects:
        kind = keys.kind_of(remote.run, meta.key)
        if kind == "commit":
            commits.append(meta.key)
        elif kind == "ready":
            ready.append(meta.key)
        elif kind == "part":
            parts[meta.key] = meta.modified_ns
    read = in_threads(lambda key: _parts_of_commit(remote, key), commits)
    return Tree(dict(zip(commits, read, strict=True)), parts, frozenset(ready), pinned, bad)


def _parts_of_commit(remote: Remote, key: str) -> frozenset[str] | None:
    step, digest = int(key.split("/")[2]), keys.parse_commit(key.rpartition("/")[2])
    assert digest is not None, "it was listed as a commit"
    try:
        commit = remote.commit(step, digest)
    except (KeyMissing, CorruptObject):
        return None
    return frozenset(keys.part_key(remote.run, step, str(part)) for part in commit.parts)


def _part_of(key: str) -> tuple[int, PartId]:
    name = key.rpartition("/")[2].removesuffix(".json.zst")
    return int(key.split("/")[2]), parse_part_id(keys.unquote_name(name))


def _marked(objects: Iterable[ObjectMeta]) -> frozenset[str]:
    """The digests that marks are named by."""
    return frozenset(meta.key.rpartition("/")[2] for meta in objects)
