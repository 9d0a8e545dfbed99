"""The collections of a run: what each announced to delete, and what it deletes (docs/format.md, Collection).

Both documents are written once and never changed, so each is read once and remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckptsync.errors import CorruptObject
from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, canonical
from ckptsync.model.parse import parse_canonical
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta, Store
from ckptsync.sync.documents import DOCUMENT_BYTES_MAX, in_threads, pack, unpack

__all__ = ["Collection", "Condemned", "Lists", "condemned_by", "render"]

_NOTHING: frozenset[str] = frozenset()
_SMALL_BYTES = 256 * 1024
_Read = tuple[frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Condemned:
    """What a collection has announced to delete, or is deleting: nobody may rely on it. Full keys.

    `listed` is every list as it was announced; `void` leaves out what the list's sweep spared.
    """

    listed: frozenset[str] = frozenset()
    void: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, as far as it has come.

    Attributes:
        number: of the collection.
        keys: what its list announces: full keys of commits, parts and chunks.
        keeps: full keys of the commits that its author saw, and kept.
        sweep: what is deleted of `keys`; None = nobody has decided that yet.
        listed_ns: when the list was put, by the store's clock; None = the store does not say.
    """

    number: int
    keys: frozenset[str]
    keeps: frozenset[str]
    sweep: frozenset[str] | None
    listed_ns: int | None

    @property
    def void(self) -> frozenset[str]:
        """What is as good as deleted."""
        return self.keys if self.sweep is None else self.sweep


def condemned_by(collections: Iterable[Collection]) -> Condemned:
    """The union of collections."""
    collections = list(collections)
    listed = _NOTHING.union(*(each.keys for each in collections))
    void = _NOTHING.union(*(each.void for each in collections))
    return Condemned(listed, listed if void == listed else void)  # mostly equal: held once


def render(run: str, run_id: str, condemned: Iterable[str], keeps: Iterable[str] | None = None) -> bytes:
    """A list (with `keeps`) or a sweep as the store holds it."""
    document = {
        "kind": "collection",
        "format": [FORMAT_MAJOR, FORMAT_MINOR],
        "run": run,
        "run_id": run_id,
        "keys": sorted(condemned),
    }
    return pack(canonical(document if keeps is None else {**document, "keeps": sorted(keeps)}))


class Lists:
    """Every collection of one run. Safe to call from many threads.

    Args:
        store: already retrying.
        run: the run's name.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._lock = threading.Lock()
        self._known: dict[ObjectMeta, _Read] = {}
        self._condemned: tuple[frozenset[ObjectMeta], Condemned] = (frozenset(), Condemned())

    def read(self, run_id: str) -> tuple[Collection, ...]:
        """All collections in their order, by one list of the store and a read of what is new.

        Raises:
            StoreError: one cannot be read; who cannot know what is condemned must not go on.
        """
        with self._lock:
            return tuple(self._collections(self._look(run_id)))

    def condemned(self, run_id: str) -> Condemned:
        """The union of all collections. Raises StoreError, as `read`."""
        with self._lock:
            found = self._look(run_id)
            seen = frozenset(found.values())
            if seen != self._condemned[0]:
                self._condemned = (seen, condemned_by(self._collections(found)))
            return self._condemned[1]

    def _look(self, run_id: str) -> dict[tuple[int, str], ObjectMeta]:
        """(number, "list" or "sweep") -> what the store says of it; its content is known afterwards."""
        prefix = keys.gc_prefix(self._run)
        found = {}
        for meta in self._store.list(prefix):
            component, _, name = meta.key[len(prefix) + 1 :].partition("/")
            number = keys.parse_number(component)
            if number and name in ("list", "sweep"):
                found[number, name] = meta
        self._known = {meta: self._known[meta] for meta in found.values() if meta in self._known}
        fresh = [meta for meta in found.values() if meta not in self._known]
        small = [meta for meta in fresh if meta.size <= _SMALL_BYTES]
        self._known.update(zip(small, in_threads(lambda meta: self._get(meta, run_id), small), strict=True))
        for meta in fresh:
            if meta.size > _SMALL_BYTES:  # takes ten times its size while it is read: one at a time
                self._known[meta] = self._get(meta, run_id)
        return found

    def _get(self, meta: ObjectMeta, run_id: str) -> _Read:
        where = f"{self._store.url}/{meta.key}"
        data = unpack(self._store.get(meta.key, max_size=DOCUMENT_BYTES_MAX), where)
        try:
            document = parse_canonical(data, "collection")
            if document["run"] != self._run or (run_id and document["run_id"] != run_id):
                raise CorruptObject("cannot read a collection", where=where, why="it belongs to another run")
            return self._names(document["keys"]), self._names(document.get("keeps", []))
        except (ManifestError, KeyError, TypeError) as error:
            raise CorruptObject("cannot read a collection", where=where, why=str(error)) from None

    def _names(self, items: object) -> frozenset[str]:
        """What a collection may name: nothing but commits, parts and chunks of this run is ever deleted."""
        if not isinstance(items, list):
            what = "no list of keys"
            raise TypeError(what)
        for item in items:
            if not isinstance(item, str) or keys.kind_of(self._run, item) not in ("commit", "part", "chunk"):
                what = f"not the key of a commit, part or chunk: {item!r}"
                raise TypeError(what)
        return frozenset(items)

    def _collections(self, found: Mapping[tuple[int, str], ObjectMeta]) -> list[Collection]:
        return [self._collection(number, found) for number in sorted({number for number, _ in found})]

    def _collection(self, number: int, found: Mapping[tuple[int, str], ObjectMeta]) -> Collection:
        announced, swept = found.get((number, "list")), found.get((number, "sweep"))
        sweep = self._known[swept][0] if swept is not None else None
        if announced is None:  # somebody has deleted the list: what may still be deleted is in the sweep
            assert sweep is not None, "one of the two was found"
            return Collection(number, sweep, _NOTHING, sweep, None)
        names, keeps = self._known[announced]
        if swept is not None and sweep is not None:
            shared = frozenset(key for key in names if key in sweep)  # the list's strings: 150 bytes each
            self._known[swept] = (shared if len(shared) == len(sweep) else shared | (sweep - names)), _NOTHING
            sweep = shared
        return Collection(number, names, keeps, sweep, announced.modified_ns)
