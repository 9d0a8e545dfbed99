"""What people say of a save: pins and tags. In the store they are there for all nodes; before that, on this node.

In the store both lie under the digest of a commit, or, while there is none, of a part: then they hold for every commit
with that part. What is said of a save that the store does not know yet waits in `<state_dir>/notes`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ckptsync.disk import durable
from ckptsync.errors import KeyMissing, StoreRefused
from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, Part, canonical, digest_of
from ckptsync.model.parse import parse_canonical
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.documents import in_threads
from ckptsync.sync.remote import Remote

__all__ = ["Note", "Pin", "Said", "Waiting", "identity", "put_pin", "put_tag", "read_said", "remove_pins"]

_BYTES_MAX = 64 * 1024
_FORMAT = [FORMAT_MAJOR, FORMAT_MINOR]


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin as the store holds it: under which digest, for which step and save time (store time, ns), and why."""

    digest: str
    step: int
    saved_ns: int
    note: str


@dataclass(frozen=True, slots=True)
class Said:
    """All that the store holds of pins, and of the tags of some names.

    Attributes:
        pins: in the order of their keys. One that cannot be read counts for its digest, without step.
        tags: (name, digest) -> value.
    """

    pins: tuple[Pin, ...] = ()
    tags: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def pin_of(self, digests: Iterable[str], step: int, saved_ns: int, window_ns: int) -> str | None:
        """The note of a save's pin ("" = none given); None = not pinned.

        Args:
            digests: of its commit and parts, as far as they are known.
            step: its number; with
            saved_ns: its save time (store time), a node that has put no part yet knows it by these two.
            window_ns: `commit.window`.
        """
        known = set(digests)
        return next(
            (
                pin.note
                for pin in self.pins
                if pin.digest in known or (pin.step == step and abs(pin.saved_ns - saved_ns) <= window_ns)
            ),
            None,
        )

    def tag_of(self, name: str, digests: Iterable[str]) -> float | None:
        """The value of the first of a save's digests that has the tag."""
        return next((self.tags[name, digest] for digest in digests if (name, digest) in self.tags), None)


def read_said(
    remote: Remote,
    tags: Collection[str] = (),
    before: dict[ObjectMeta, bytes] | None = None,
    pins: Iterable[ObjectMeta] | None = None,
) -> Said:
    """Read all pins, and the tags of some names, by a list each.

    Args:
        remote: the run.
        tags: the names; without any, tags are not listed.
        before: what was read before, by what the store says of it; filled with what is read now.
        pins: what a list of the pins gave, where that has been done already.

    Raises:
        StoreError: who cannot know what is pinned must not delete.
    """
    known = {} if before is None else before
    pins = list(remote.store.list(keys.pins_prefix(remote.run)) if pins is None else pins)
    named = _tagged(remote, tags)
    fresh = [meta for meta in (*pins, *named) if meta not in known]
    read = dict(zip(fresh, in_threads(lambda meta: _get(remote, meta.key), fresh), strict=True))
    found = {**known, **read}
    content = {meta: data for meta in (*pins, *named) if (data := found[meta]) is not None}
    if before is not None:
        before.clear()
        before.update(content)
    return Said(
        tuple(_pin(meta.key.rpartition("/")[2], content[meta]) for meta in pins if meta in content),
        {key: value for m, key in named.items() if m in content and (value := _value(content[m])) is not None},
    )


def _tagged(remote: Remote, names: Collection[str]) -> dict[ObjectMeta, tuple[str, str]]:
    """Objects that hold tags of these names -> (name, digest)."""
    quoted = {keys.quote_name(name): name for name in names}
    found = {}
    for meta in remote.store.list(keys.tags_prefix(remote.run)) if quoted else ():
        digest, _, last = meta.key[len(keys.tags_prefix(remote.run)) + 1 :].partition("/")
        if last in quoted:
            found[meta] = (quoted[last], digest)
    return found


def _get(remote: Remote, key: str) -> bytes | None:
    try:
        return remote.store.get(key, max_size=_BYTES_MAX)
    except KeyMissing:
        return None  # taken away since the list


def _pin(digest: str, data: bytes) -> Pin:
    try:
        document = parse_canonical(data, "pin")
        return Pin(digest, int(document["step"]), int(document["saved_ns"]), str(document["note"]))
    except (ManifestError, KeyError, TypeError, ValueError):
        return Pin(digest, -1, 0, "")


def _value(data: bytes) -> float | None:
    try:
        value = float(parse_canonical(data, "tag")["value"])
    except (ManifestError, KeyError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def put_pin(remote: Remote, pin: Pin) -> None:
    """Pin a commit or a part for all nodes. Raises StoreError."""
    document = {"kind": "pin", "format": _FORMAT, "step": pin.step, "saved_ns": pin.saved_ns, "note": pin.note}
    remote.store.put(keys.pin_key(remote.run, pin.digest), canonical(document))


def remove_pins(remote: Remote, digests: Iterable[str]) -> None:
    """Take pins away; absent is success.

    Raises:
        StoreRefused: this role may not delete. StoreError.
    """
    try:
        for digest in digests:
            remote.store.delete(keys.pin_key(remote.run, digest))
    except StoreRefused as error:
        remedy = "use credentials that may delete below pins/"
        raise StoreRefused("the pin stays", where=error.where, why=error.why or error.what, remedy=remedy) from error


def put_tag(remote: Remote, digest: str, name: str, value: float) -> None:
    """Give a value to a commit or a part, for all nodes. Raises StoreError."""
    document = {"kind": "tag", "format": _FORMAT, "name": name, "value": repr(value)}
    remote.store.put(keys.tag_key(remote.run, digest, name), canonical(document))


# -- what waits on this node


def identity(part: Part) -> str:
    """A save by its content alone: verifying it again, or putting its part, does not change it."""
    lines = [str(part.step), *(f"{file.path}\0{file.digest}" for file in part.files)]
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class Note:
    """What was said on this node of a save without a commit: its pin (None = none) and its tags.

    `told` is the digest that the store knows it by already ("" = none).
    """

    step: int
    pin: str | None = None
    tags: Mapping[str, float] = field(default_factory=dict)
    told: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing is said any more."""
        return self.pin is None and not self.tags


class Waiting:
    """The notes below `<state_dir>/notes`, by `identity`. Unlike the cache of saves, these are the only copy."""

    def __init__(self, state_dir: str) -> None:
        self._root = os.path.join(state_dir, "notes")

    def all(self) -> dict[str, Note]:
        """Every note there is."""
        try:
            names = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return {}
        return {name: note for name in names if (note := self._read(name)) is not None}

    def get(self, name: str) -> Note | None:
        """The note of one save."""
        return self._read(name)

    def put(self, name: str, note: Note) -> None:
        """Remember a note; an empty one is forgotten. Raises as `durable.publish`."""
        path = os.path.join(self._root, name)
        if note.empty:
            durable.remove(path)
            return
        document = {"step": note.step, "pin": note.pin, "tags": dict(note.tags), "told": note.told}
        durable.publish(path, json.dumps(document).encode())

    def tell(self, remote: Remote, name: str, part: Part, digest: str, *, committed: bool) -> None:
        """Bring a note to the store under the best digest that is known; once that is a commit, it waits no more.

        `part` is the save's in this node's clock.

        A pin that was told before and is gone from the store has been taken away by another node.

        Raises:
            StoreError: it waits on.
        """
        note = self.get(name)
        if note is None or (note.told == digest and not committed):
            return
        if note.pin is not None and note.told and not self._still(remote, note.told):
            note = replace(note, pin=None)
        if note.pin is not None:
            offset_ns = remote.clock_offset_ns(part.node)
            put_pin(remote, Pin(digest, part.step, part.saved_ns + offset_ns, note.pin))
        for tag, value in note.tags.items():
            put_tag(remote, digest, tag, value)
        self.put(name, Note(note.step) if committed else replace(note, told=digest))

    def _still(self, remote: Remote, digest: str) -> bool:
        return remote.store.head(keys.pin_key(remote.run, digest)) is not None

    def _read(self, name: str) -> Note | None:
        try:
            with open(os.path.join(self._root, name), encoding="ascii") as file:
                document = json.load(file)
            pin = document["pin"]
            tags = {str(tag): float(value) for tag, value in document["tags"].items()}
            return Note(int(document["step"]), None if pin is None else str(pin), tags, str(document["told"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
