"""A run as the store holds it: typed reads and writes of run.json, parts, marks, commits and condemn lists.

Readers trust nothing: a document's digest must be its name, and its run and step those it was found under.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

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
from ckptsync.store.base import ObjectMeta, Store
from ckptsync.sync.collect_lists import Collection, Condemned, Lists
from ckptsync.sync.documents import DOCUMENT_BYTES_MAX, pack, unpack
from ckptsync.sync.kept import Kept

__all__ = ["LATER_NS", "READERS", "Remote", "StepIndex"]

READERS = 16
"""Documents that are read at the same time."""
_OFFSET_NS_MIN = 2 * 10**9
_PROBE_NS = 2 * 10**9
_PROBES_MAX = 3
LATER_NS = _OFFSET_NS_MIN + _PROBE_NS // 2 + 2 * 10**9
"""By how much at most a save time lies after its commit's modification time (docs/design.md, Pulling): an offset taken
for none, half a probe's round trip, a second that the store cut off, and one to spare."""


@dataclass(frozen=True, slots=True)
class StepIndex:
    """The names that one list of a step gives; commits with the store's modification time (ns).

    `wanted` are parts whose nodes upload them, `parts_ns` is when the last part was put (None = not known).
    """

    step: int
    parts: frozenset[PartId] = frozenset()
    ready: frozenset[PartId] = frozenset()
    commits: Mapping[str, int | None] = field(default_factory=dict)
    wanted: frozenset[PartId] = frozenset()
    parts_ns: int | None = None


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
    _parts: Kept[PartId, Part] = field(default_factory=Kept[PartId, Part])
    _commits: Kept[str, Commit] = field(default_factory=Kept[str, Commit])
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
        """Store time minus local time; 0 where they agree to 2 s or the store gives no times.

        A slow reply (the request was tried again, perhaps) says little: the clock is asked again then.
        """
        probes: list[tuple[int, int]] = []
        while len(probes) < _PROBES_MAX and (not probes or min(probes)[0] > _PROBE_NS):
            probes.append(self._probe(keys.probe_key(self.run, node), now_ns))
        _, offset = min(probes)
        return offset if abs(offset) >= _OFFSET_NS_MIN else 0

    def _probe(self, key: str, now_ns: Callable[[], int]) -> tuple[int, int]:
        """How long the store took for a put, and how far its clock was ahead in the middle of that (ns)."""
        before = now_ns()
        self.store.put(key, b"clock")
        after = now_ns()
        meta = self.store.head(key)
        if meta is None or meta.modified_ns is None:
            return 0, 0
        return after - before, meta.modified_ns - (before + after) // 2

    # -- names

    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes that ever put a part."""
        prefix = keys.probe_key(self.run, "-").rpartition("/")[0]
        found = []
        for meta in self.store.list(prefix):
            with contextlib.suppress(ValueError):  # a foreign object
                found.append(keys.unquote_name(meta.key[len(prefix) + 1 :]))
        return tuple(found)

    def steps(self) -> list[int]:
        """Step numbers that have anything in the store, ascending."""
        names = self.store.children(keys.steps_prefix(self.run))
        return sorted(step for name in names if (step := keys.parse_step(name)) is not None)

    def index(self, step: int) -> StepIndex:
        """What the store holds of a step, by one list."""
        prefix = keys.step_prefix(self.run, step)
        return _index(step, ((meta.key[len(prefix) + 1 :], meta.modified_ns) for meta in self.store.list(prefix)))

    def objects(self) -> tuple[ObjectMeta, ...]:
        """Everything that belongs to a step, by one (paged) list."""
        return tuple(self.store.list(keys.steps_prefix(self.run)))

    def index_all(self, objects: Iterable[ObjectMeta] | None = None) -> dict[int, StepIndex]:
        """The index of every step, from `objects` if they were listed already."""
        prefix = keys.steps_prefix(self.run)
        found: dict[int, list[tuple[str, int | None]]] = {}
        for meta in self.objects() if objects is None else objects:
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
        self._parts.keep(part.id, part)
        return created

    def part(self, step: int, part_id: PartId) -> Part:
        """A part: as it is remembered, else as `fetch_part`."""
        cached = self._parts.get(part_id)
        if cached is None:
            cached = self.fetch_part(step, part_id)
            self._parts.keep(part_id, cached)
        return cached

    def fetch_part(self, step: int, part_id: PartId) -> Part:
        """Fetch and check a part, remembering nothing.

        Raises:
            KeyMissing, CorruptObject: it is not there, or not what its name says.
        """
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
        return part

    def parts(self, step: int, ids: Iterable[PartId]) -> dict[PartId, Part]:
        """Several parts at once; those that are gone or broken are left out (a commit that needs them is not valid)."""
        wanted = list(ids)
        if len(wanted) <= 1:  # of most steps: not worth threads
            found = [self._try_part(step, part_id) for part_id in wanted]
        else:
            with ThreadPoolExecutor(READERS) as pool:
                found = list(pool.map(lambda i: self._try_part(step, i), wanted))
        return {i: part for i, part in zip(wanted, found, strict=True) if part}

    def _try_part(self, step: int, part_id: PartId) -> Part | None:
        try:
            return self.part(step, part_id)
        except (KeyMissing, CorruptObject):
            return None

    def put_ready(self, step: int, part_id: PartId) -> None:
        """Note that the store has every chunk of a part."""
        self.store.put_new(keys.ready_key(self.run, step, str(part_id)), b"")

    def put_wanted(self, step: int, part_id: PartId) -> None:
        """Note that a node uploads its part, so that the other nodes of the save upload theirs."""
        self.store.put_new(keys.wanted_key(self.run, step, str(part_id)), b"")

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
        self._commits.keep(commit.digest, commit)

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
        self._commits.keep(digest, commit)
        return commit

    # -- collections

    def collections(self) -> tuple[Collection, ...]:
        """All collections of the run, in their order. Raises StoreError, as `condemned`."""
        return self._lists.read(self.run_id)

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


def _fail(why: str) -> None:
    raise ManifestError(why)


def _index(step: int, names: Iterable[tuple[str, int | None]]) -> StepIndex:
    found: Mapping[str, set[PartId]] = {"parts": set(), "ready": set(), "wanted": set()}
    commits: dict[str, int | None] = {}
    times: list[int | None] = []
    for name, modified_ns in names:
        kind, _, rest = name.partition("/")
        try:
            if kind == "parts" and rest.endswith(".json.zst"):
                found[kind].add(parse_part_id(keys.unquote_name(rest.removesuffix(".json.zst"))))
                times.append(modified_ns)
            elif kind in ("ready", "wanted"):
                found[kind].add(parse_part_id(keys.unquote_name(rest)))
            elif kind == "commits" and rest.endswith(".json"):
                commits[rest.removesuffix(".json")] = modified_ns
        except (ManifestError, ValueError):
            continue  # a foreign object: not ours to judge
    known = [time for time in times if time is not None]
    parts_ns = max(known) if known and len(known) == len(times) else None
    parts, ready, wanted = (frozenset(found[kind]) for kind in ("parts", "ready", "wanted"))
    return StepIndex(step, parts, ready, commits, wanted, parts_ns)
