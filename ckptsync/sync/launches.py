"""Launches in the store: what each start of the trainer used, its signs of life, and which of them wrote a save.

Nothing but the sign of life and notes is ever replaced, and nothing deleted.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptsync.errors import CorruptObject, KeyMissing, StoreError
from ckptsync.model.launch import (
    GRACE_NS,
    RECORD_BYTES_MAX,
    LaunchRecord,
    Span,
    Start,
    parse_launch,
    read_value,
    spell,
    wrote,
)
from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, canonical
from ckptsync.model.parse import parse_canonical
from ckptsync.model.secrets import hide
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.documents import in_threads
from ckptsync.sync.history import read_decision
from ckptsync.sync.remote import LATER_NS, Remote

__all__ = ["ALIVE_S", "Launches"]

ALIVE_S = 60.0
"""How often a launch gives a sign of life."""
_RECORD, _ALIVE, _ENDED = "record.json", "alive", "ended.json"
_NOTE_BYTES_MAX = 4 * 1024 * 1024
_SMALL_BYTES_MAX = 64 * 1024
_FORMAT = [FORMAT_MAJOR, FORMAT_MINOR]
_TIME_MAX = 2**63
_log = logging.getLogger("ckptsync")


class _Name(NamedTuple):
    """Which launch; the order is that of their starts."""

    started_ns: int
    node: str
    attempt: str


@dataclass(slots=True)
class _Listed:
    """What one list shows: launches, with the time of their last document's put (None = not known); decisions."""

    launches: dict[_Name, dict[str, int | None]] = field(default_factory=dict)
    decisions: dict[str, int | None] = field(default_factory=dict)


class Launches:
    """The launches of a run.

    Args:
        remote: the run, opened.
        now_ns: this node's clock.
    """

    def __init__(self, remote: Remote, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._remote, self._now_ns = remote, now_ns
        self._offsets: dict[str, int] = {}
        self._said_at: dict[_Name, float] = {}
        self._mute = False

    def now_ns(self, node: str) -> int:
        """The store's time, for `started_ns`. The first call asks the store. Raises StoreError."""
        if node not in self._offsets:
            self._offsets[node] = self._remote.clock_offset_ns(node, self._now_ns)
        return self._now_ns() + self._offsets[node]

    # -- saying

    def put(self, record: LaunchRecord) -> None:
        """Write a launch down, while the trainer starts.

        Raises:
            CorruptObject: it is longer than what would be read back.
            StoreError.
        """
        key, data = self._key(_name(record), _RECORD), record.to_bytes()
        if len(data) > RECORD_BYTES_MAX:
            raise CorruptObject("a launch is too long to be recorded", where=key, why=f"{len(data)} bytes")
        self._remote.store.put_new(key, data)

    def alive(self, record: LaunchRecord) -> None:
        """Say that a launch lives; more often than once a minute is ignored. A store that fails is logged once."""
        name, now = _name(record), time.monotonic()
        if now - self._said_at.get(name, -ALIVE_S) < ALIVE_S:
            return
        self._said_at[name] = now
        try:
            self._remote.store.put(self._key(name, _ALIVE), str(self.now_ns(record.node)).encode())
        except StoreError as error:
            level, self._mute = logging.DEBUG if self._mute else logging.WARNING, True
            _log.log(level, "the launch gave no sign of life: %s", error)
        else:
            self._mute = False

    def ended(self, record: LaunchRecord, exit_code: int) -> None:
        """Say that a launch has ended; what was said first stays. Raises StoreError."""
        document = {"kind": "launch-end", "format": _FORMAT, "exit_code": exit_code}
        data = canonical({**document, "ended_ns": self.now_ns(record.node)})
        self._remote.store.put_new(self._key(_name(record), _ENDED), data)

    def note(self, record: LaunchRecord, name: str, document: Mapping[str, object]) -> None:
        """Keep something with a launch, in the place of what was kept under this name before.

        Args:
            record: the launch.
            name: a-z, 0-9 and dashes; not one that launches have themselves.
            document: as JSON has it; secrets are hidden.

        Raises:
            ValueError: the name cannot be one.
            StoreError.
        """
        data = canonical({"kind": "launch-note", "format": _FORMAT, "name": name, "value": spell(hide("", document))})
        self._remote.store.put(self._note_key(record, name), data)

    def noted(self, record: LaunchRecord, name: str) -> Mapping[str, object] | None:
        """What `note` kept; None = nothing.

        Raises:
            CorruptObject: it cannot be read. StoreError.
        """
        key = self._note_key(record, name)
        try:
            document = parse_canonical(self._remote.store.get(key, max_size=_NOTE_BYTES_MAX), "launch-note")
            value = read_value(document.get("value"))
        except KeyMissing:
            return None
        except ManifestError as error:
            raise CorruptObject("cannot read a note of a launch", where=self._where(key), why=str(error)) from None
        return value if isinstance(value, dict) else None

    def _note_key(self, record: LaunchRecord, name: str) -> str:
        document = f"{name}.json"
        if document in (_RECORD, _ENDED):
            msg = f"not a name for a note: {name!r}"
            raise ValueError(msg)
        return self._key(_name(record), document)

    # -- asking

    def objects(self) -> tuple[ObjectMeta, ...]:
        """What is below the prefix of attempts, by one list: for several questions. Raises StoreError."""
        return tuple(self._remote.store.list(keys.attempts_prefix(self._remote.run)))

    def begun(self, since_ns: int, until_ns: int, *, objects: Iterable[ObjectMeta] | None = None) -> bool:
        """Whether the training was started anew after one moment and not after another (store time), on any node.

        By a launch, or by a decision that nodes start from. Arguments and errors as `wrote`.
        """
        listed = self._list(objects)
        starts = [name.started_ns for name in listed.launches]
        starts += [start.decided_ns for start in self._starts(listed, since_ns)]
        return any(since_ns < started_ns <= until_ns for started_ns in starts)

    def wrote(self, saved_ns: int, node: str, *, objects: Iterable[ObjectMeta] | None = None) -> LaunchRecord | None:
        """The launch that wrote a save; None = nobody can know (ckptsync.model.launch.wrote).

        Args:
            saved_ns: when the save ended, store time.
            node: where it lies.
            objects: what is below the prefix of attempts, if that was listed just now; else it costs one list.

        Raises:
            CorruptObject: a launch or a decision cannot be read.
            StoreError.
        """
        listed = self._list(objects)
        began = [name for name in listed.launches if name.started_ns <= saved_ns]
        mine = [name for name in began if name.node == node]
        found = self._writer(saved_ns, node, listed, mine) or self._writer(saved_ns, node, listed, began)
        return self.read(found.attempt, found.started_ns, found.node) if found is not None else None

    def _writer(self, saved_ns: int, node: str, listed: _Listed, names: list[_Name]) -> Span | None:
        if not names:
            return None
        newest = {name.node: name.started_ns for name in sorted(names)}
        spans = self._spans(listed, names, newest, saved_ns)
        return wrote(saved_ns, node, spans, self._starts(listed, min(newest.values())))

    def newest(self, node: str, *, objects: Iterable[ObjectMeta] | None = None) -> LaunchRecord | None:
        """The newest launch of a node; None = there is none. Arguments and errors as `wrote`."""
        mine = [name for name in self._list(objects).launches if name.node == node]
        if not mine:
            return None
        last = max(mine)
        return self.read(last.attempt, last.started_ns, last.node)

    def read(self, attempt: str, started_ns: int, node: str) -> LaunchRecord:
        """One record.

        Raises:
            KeyMissing: there is none.
            CorruptObject: it cannot be read. StoreError.
        """
        remote, key = self._remote, self._key(_Name(started_ns, node, attempt), _RECORD)
        data = remote.store.get(key, max_size=RECORD_BYTES_MAX)
        place = {"run": remote.run, "run_id": remote.run_id, "attempt": attempt, "node": node}
        try:
            return parse_launch(data, **place, started_ns=started_ns)
        except ManifestError as error:
            raise CorruptObject("cannot read a launch", where=self._where(key), why=str(error)) from None

    def _list(self, objects: Iterable[ObjectMeta] | None) -> _Listed:
        run, found = self._remote.run, _Listed()
        for meta in self.objects() if objects is None else objects:
            if (parsed := keys.parse_launch(run, meta.key)) is not None:
                attempt, started_ns, node, document = parsed
                found.launches.setdefault(_Name(started_ns, node, attempt), {})[document] = meta.modified_ns
            elif meta.key.endswith("/decision.json"):
                found.decisions[meta.key] = meta.modified_ns
        found.launches = {name: seen for name, seen in found.launches.items() if _RECORD in seen}
        return found

    def _starts(self, listed: _Listed, since_ns: int) -> list[Start]:
        """Decisions that may have been made since then; a put's time only spares reading older ones."""
        wanted = [key for key, put_ns in listed.decisions.items() if put_ns is None or put_ns + LATER_NS >= since_ns]
        decisions = in_threads(lambda key: read_decision(self._remote, key), wanted)
        return [
            Start(decision.place.attempt, decision.decided_ns)
            for decision in decisions
            if decision is not None and decision.outcome != "refused"
        ]

    def _spans(self, listed: _Listed, names: Iterable[_Name], newest: Mapping[str, int], saved_ns: int) -> list[Span]:
        """Lives. Of a launch that was over long before the save, or before its node's next one, no more is read."""
        spans: list[Span] = []
        wanted: list[_Name] = []
        for name in names:
            last_put = _last_put(listed.launches[name])
            needed_ns = max(saved_ns - GRACE_NS, newest[name.node] if newest[name.node] != name.started_ns else 0)
            if last_put is not None and last_put + LATER_NS < needed_ns:
                spans.append(Span(*name, seen_ns=name.started_ns))
            else:
                wanted.append(name)
        spans += in_threads(lambda name: self._span(name, listed.launches[name]), wanted)
        return spans

    def _span(self, name: _Name, documents: Mapping[str, object]) -> Span:
        seen_ns, ended_ns = name.started_ns, None
        if _ALIVE in documents:
            seen_ns = max(seen_ns, self._alive(name))
        if _ENDED in documents:
            ended_ns = self._ended(name)
        return Span(*name, seen_ns, ended_ns)

    def _alive(self, name: _Name) -> int:
        data = self._remote.store.get(self._key(name, _ALIVE), max_size=_SMALL_BYTES_MAX)
        text = data[:20].decode("ascii", "replace")
        return int(text) if text.isascii() and text.isdecimal() and int(text) < _TIME_MAX else name.started_ns

    def _ended(self, name: _Name) -> int | None:
        key = self._key(name, _ENDED)
        with contextlib.suppress(ManifestError):
            found = parse_canonical(self._remote.store.get(key, max_size=_SMALL_BYTES_MAX), "launch-end")
            ended_ns = found.get("ended_ns")
            if type(ended_ns) is int and name.started_ns <= ended_ns < _TIME_MAX:
                return ended_ns
        raise CorruptObject("cannot read the end of a launch", where=self._where(key))

    def _key(self, name: _Name, document: str) -> str:
        return keys.launch_key(self._remote.run, name.attempt, name.started_ns, name.node, document)

    def _where(self, key: str) -> str:
        return f"{self._remote.store.url}/{key}"


def _name(record: LaunchRecord) -> _Name:
    return _Name(record.started_ns, record.node, record.attempt)


def _last_put(documents: Mapping[str, int | None]) -> int | None:
    """When the last of its own documents was put; None = not known. Notes may come long after a launch."""
    times = [documents[name] for name in (_RECORD, _ALIVE, _ENDED) if name in documents]
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None
