"""A run as the store holds it: typed reads and writes of run.json, parts, marks, commits and condemn lists.

Readers trust nothing: a document's digest must be its name, and its run and step those it was found under.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ckptsync.errors import ConflictError, CorruptObject, KeyMissing, StoreUnavailable
from ckptsync.model.manifest import (
    FORMAT_MAJOR,
    FORMAT_MINOR,
    Commit,
    ManifestError,
    Part,
    PartId,
    canonical,
    digest_of,
)
from ckptsync.model.parse import parse_canonical, parse_commit, parse_part, parse_part_id
from ckptsync.store import keys
from ckptsync.store.base import Store
from ckptsync.sync.collect_lists import Condemned, Lists
from ckptsync.sync.documents import DOCUMENT_BYTES_MAX, pack, unpack

__all__ = ["Remote", "StepIndex"]

_K = TypeVar("_K")
_V = TypeVar("_V", Part, Commit)

_READERS = 16
_ROWS_MAX = 250_000
"""Files and chunks of the parts kept in memory, some 100 MB: a daemon sees parts for months."""
_OFFSET_NS_MIN = 2 * 10**9


@dataclass(frozen=True, slots=True)
class StepIndex:
    """The names that one list of a step gives; commits with the store's modification time (ns)."""

    step: int
    parts: frozenset[PartId] = frozenset()
    ready: frozenset[PartId] = frozenset()
    commits: Mapping[str, int | None] = field(default_factory=dict)


@dataclass
class Remote:
    """One run in one store.

    Args:
        store: already retrying.
        run: the run's name.
        run_id: its random id, "" before `open_run`.
    """

    store: Store
    run: str
    run_id: str = ""
    _parts: dict[PartId, Part] = field(default_factory=dict)
    _commits: dict[str, Commit] = field(default_factory=dict)
    _lists: Lists = field(init=False)

    def __post_init__(self) -> None:
        self._lists = Lists(self.store, self.run)

    # -- the run

    def read_run(self, known_id: str) -> str:
        """The run's id as the store has it, creating nothing; "" for a run that this node never knew either.

        Raises:
            StoreUnavailable: the run is not there, though this node knows it: a store that is not mounted, or emptied.
            ConflictError: as `open_run`.
        """
        key = keys.run_key(self.run)
        try:
            data = self.store.get(key, max_size=DOCUMENT_BYTES_MAX)
        except KeyMissing:
            if known_id:
                raise StoreUnavailable(
                    "the store does not hold the run",
                    where=self._where(key),
                    why=f"this node remembers it with the id {known_id}",
                    remedy="is the store mounted, and the right one? The daemon pushes everything again if it is empty",
                ) from None
            return ""
        return self._accept(key, data, known_id)

    def open_run(self, known_id: str, *, join: bool = False) -> tuple[str, bool]:
        """Create or read run.json; returns the run's id, and whether it was created.

        Raises:
            ConflictError: this node belongs to another run of the same name (`known_id`).
        """
        key = keys.run_key(self.run)
        fresh = {"kind": "run", "format": [FORMAT_MAJOR, FORMAT_MINOR], "run": self.run}
        data = canonical({**fresh, "run_id": known_id or secrets.token_hex(16)})
        created = self.store.put_new(key, data)
        if not created:
            data = self.store.get(key, max_size=DOCUMENT_BYTES_MAX)
        return self._accept(key, data, "" if join else known_id), created

    def _accept(self, key: str, data: bytes, known_id: str) -> str:
        try:
            found = str(parse_canonical(data, "run")["run_id"])
        except (ManifestError, KeyError) as error:
            raise CorruptObject("cannot read the run", where=self._where(key), why=str(error)) from None
        if known_id and found != known_id:
            raise ConflictError(
                "the store holds another run of this name",
                where=self._where(key),
                why=f"its id is {found}, this node remembers {known_id}",
                remedy="rename the run ([run] name), or `ckptsync init --join` to take part in the store's run",
            )
        self.run_id = found
        return found

    def clock_offset_ns(self, node: str, now_ns: Callable[[], int] = time.time_ns) -> int:
        """Store time minus local time; 0 where they agree to 2 s or the store gives no times."""
        key = keys.probe_key(self.run, node)
        before = now_ns()
        self.store.put(key, b"clock")
        middle = (before + now_ns()) // 2
        meta = self.store.head(key)
        offset = meta.modified_ns - middle if meta is not None and meta.modified_ns is not None else 0
        return offset if abs(offset) >= _OFFSET_NS_MIN else 0

    # -- names

    def steps(self) -> list[int]:
        """Step numbers that have anything in the store, ascending."""
        names = self.store.children(keys.steps_prefix(self.run))
        return sorted(step for name in names if (step := keys.parse_step(name)) is not None)

    def index(self, step: int) -> StepIndex:
        """What the store holds of a step, by one list."""
        prefix = keys.step_prefix(self.run, step)
        return _index(step, ((meta.key[len(prefix) + 1 :], meta.modified_ns) for meta in self.store.list(prefix)))

    def index_all(self) -> dict[int, StepIndex]:
        """The same for every step, by one (paged) list."""
        prefix = keys.steps_prefix(self.run)
        found: dict[int, list[tuple[str, int | None]]] = {}
        for meta in self.store.list(prefix):
            name, _, rest = meta.key[len(prefix) + 1 :].partition("/")
            step = keys.parse_step(name)
            if step is not None:
                found.setdefault(step, []).append((rest, meta.modified_ns))
        return {step: _index(step, rests) for step, rests in found.items()}

    # -- parts and marks

    def put_part(self, step: int, data: bytes) -> bool:
        """Put a part (its canonical JSON). True = created, False = it was there already: its name is its digest."""
        part = parse_part(data)
        created = self.store.put_new(keys.part_key(self.run, step, str(part.id)), pack(data))
        _remember(self._parts, part.id, part)
        return created

    def part(self, step: int, part_id: PartId) -> Part:
        """Fetch and check a part.

        Raises:
            KeyMissing, CorruptObject: it is not there, or not what its name says.
        """
        cached = self._parts.get(part_id)
        if cached is not None:
            return cached
        key = keys.part_key(self.run, step, str(part_id))
        data = unpack(self.store.get(key, max_size=DOCUMENT_BYTES_MAX), self._where(key))
        try:
            if digest_of(data) != part_id.digest:
                _fail("its digest is not the one in its name")
            part = parse_part(data)
            if (part.run, part.step, part.node) != (self.run, step, part_id.node):
                _fail(f"it says run {part.run!r}, step {part.step}, node {part.node!r}")
            if self.run_id and part.run_id != self.run_id:
                _fail("it belongs to another run of this name")
        except ManifestError as error:
            raise CorruptObject("not a valid part", where=self._where(key), why=str(error)) from None
        _remember(self._parts, part_id, part)
        return part

    def parts(self, step: int, ids: Iterable[PartId]) -> dict[PartId, Part]:
        """Several parts at once; those that are gone or broken are left out (a commit that needs them is not valid)."""
        wanted = list(ids)
        with ThreadPoolExecutor(_READERS) as pool:
            return {
                i: part
                for i, part in zip(wanted, pool.map(lambda i: self._try_part(step, i), wanted), strict=True)
                if part
            }

    def _try_part(self, step: int, part_id: PartId) -> Part | None:
        try:
            return self.part(step, part_id)
        except (KeyMissing, CorruptObject):
            return None

    def put_ready(self, step: int, part_id: PartId) -> None:
        """Note that the store has every chunk of a part."""
        self.store.put_new(keys.ready_key(self.run, step, str(part_id)), b"")

    # -- commits

    def put_commit(self, commit: Commit) -> None:
        """Write a commit; an equal one being there is success.

        Raises:
            ConflictError: other bytes are there under its name.
        """
        key, data = keys.commit_key(self.run, commit.step, commit.digest), commit.to_bytes()
        if not self.store.put_new(key, data) and self.store.get(key, max_size=DOCUMENT_BYTES_MAX) != data:
            raise ConflictError(
                "another commit is there under this name", where=self._where(key), remedy="look at the store"
            )
        _remember(self._commits, commit.digest, commit)

    def commit(self, step: int, digest: str) -> Commit:
        """Fetch and check a commit. Raises KeyMissing, CorruptObject."""
        cached = self._commits.get(digest)
        if cached is not None:
            return cached
        key = keys.commit_key(self.run, step, digest)
        data = self.store.get(key, max_size=DOCUMENT_BYTES_MAX)
        try:
            if digest_of(data) != digest:
                _fail("its digest is not the one in its name")
            commit = parse_commit(data)
            if (commit.run, commit.step) != (self.run, step):
                _fail(f"it says run {commit.run!r}, step {commit.step}")
            if self.run_id and commit.run_id != self.run_id:
                _fail("it belongs to another run of this name")
        except ManifestError as error:
            raise CorruptObject("not a valid commit", where=self._where(key), why=str(error)) from None
        _remember(self._commits, digest, commit)
        return commit

    # -- collections

    def condemned(self) -> Condemned:
        """What the collections of this run have condemned, as of now.

        Raises:
            StoreError: a list cannot be read; who cannot know what is condemned must not go on.
        """
        return self._lists.condemned(self.run_id)

    # -- validity

    def void(self, step: int, commit: Commit, condemned: Condemned) -> bool:
        """Whether a collection has condemned a commit or one of its parts."""
        names = {keys.commit_key(self.run, step, commit.digest)}
        names |= {keys.part_key(self.run, step, str(part)) for part in commit.parts}
        return bool(names & condemned.void)

    def _where(self, key: str) -> str:
        return f"{self.store.url}/{key}"


def _rows(document: Part | Commit) -> int:
    return len(document.files) + len(document.chunks) if isinstance(document, Part) else len(document.parts)


def _remember(known: dict[_K, _V], key: _K, document: _V) -> None:
    """Keep a document, and let the oldest go. Called by several threads."""
    known[key] = document
    while len(known) > 1 and sum(_rows(each) for each in tuple(known.values())) > _ROWS_MAX:
        known.pop(next(iter(tuple(known))), None)


def _fail(why: str) -> None:
    raise ManifestError(why)


def _index(step: int, names: Iterable[tuple[str, int | None]]) -> StepIndex:
    found: Mapping[str, set[PartId]] = {"parts": set(), "ready": set()}
    commits: dict[str, int | None] = {}
    for name, modified_ns in names:
        kind, _, rest = name.partition("/")
        try:
            if kind == "parts" and rest.endswith(".json.zst"):
                found[kind].add(parse_part_id(keys.unquote_name(rest.removesuffix(".json.zst"))))
            elif kind == "ready":
                found[kind].add(parse_part_id(keys.unquote_name(rest)))
            elif kind == "commits" and rest.endswith(".json"):
                commits[rest.removesuffix(".json")] = modified_ns
        except (ManifestError, ValueError):
            continue  # a foreign object: not ours to judge
    return StepIndex(step, frozenset(found["parts"]), frozenset(found["ready"]), commits)
