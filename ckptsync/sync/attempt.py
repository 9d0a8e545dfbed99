"""An attempt as the store holds it: its rounds, and what one node writes there. Nothing is ever changed or deleted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ckptsync.config_values import address
from ckptsync.disk.durable import crash_point
from ckptsync.errors import ConflictError, CorruptObject, KeyMissing, StoreError
from ckptsync.model.manifest import ManifestError, PartId
from ckptsync.model.parse import parse_part_id
from ckptsync.model.rounds import Decision, Offer, Place, parse_offer
from ckptsync.store import keys
from ckptsync.sync.documents import in_threads
from ckptsync.sync.history import decision_at
from ckptsync.sync.remote import Remote

__all__ = ["Attempt", "Round"]

_OFFER_BYTES_MAX = 16 * 1024 * 1024
_PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Round:
    """What one list shows of a round.

    Attributes:
        number: from 1.
        offers: in the order of their nodes.
        decision: None = not decided.
        decided_at_ns: when it was put, by the store's clock; None = not decided, or the store does not say.
        done: nodes that have done what was decided.
        withdrawn: parts that cannot be uploaded any more.
        moving: node -> a value that changes while it works on its offer, or uploads.
        peers: node -> `host:port` where it gives chunks to the others: the one that it said last.
    """

    number: int
    offers: tuple[Offer, ...] = ()
    decision: Decision | None = None
    decided_at_ns: int | None = None
    done: frozenset[str] = frozenset()
    withdrawn: frozenset[PartId] = frozenset()
    moving: Mapping[str, object] = field(default_factory=dict)
    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it is closed by what is in it: refused, or done by all."""
        decision = self.decision
        return decision is not None and (decision.outcome == "refused" or len(self.done) >= decision.nodes)


class Attempt:
    """One attempt, as one node takes part in it.

    Args:
        remote: the run, opened.
        name: the attempt's id.
        node, node_id: who takes part.
    """

    def __init__(self, remote: Remote, name: str, node: str, node_id: str) -> None:
        self._remote, self.name, self._node, self._node_id = remote, name, node, node_id
        self._offers: dict[str, Offer] = {}
        self._decisions: dict[int, Decision] = {}
        self._said_at = 0.0

    def place(self, number: int) -> Place:
        """The place of a round's documents."""
        return Place(self._remote.run, self._remote.run_id, self.name, number)

    # -- looking

    def newest(self) -> Round | None:
        """The newest round that has anything; None = there is none. Raises as `look`."""
        prefix = keys.attempt_prefix(self._remote.run, self.name)
        numbers = [number for name in self._remote.store.children(prefix) if (number := keys.parse_number(name))]
        return self.look(max(numbers)) if numbers else None

    def look(self, number: int) -> Round:
        """One round, whether it has anything or not, by one list and a read of what is new.

        Raises:
            CorruptObject: an offer or the decision cannot be read: nobody may go on as if it were not there.
            StoreError.
        """
        prefix = keys.round_prefix(self._remote.run, self.name, number)
        names = {meta.key[len(prefix) + 1 :]: meta.modified_ns for meta in self._remote.store.list(prefix)}
        return self._round(number, names, self._read_offers(number, names))

    def _read_offers(self, number: int, names: Iterable[str]) -> tuple[Offer, ...]:
        nodes = sorted(node for rest in names if (node := _offering(rest)) is not None)
        fresh = [node for node in nodes if self._key_of(number, node) not in self._offers]
        for node, offer in zip(fresh, in_threads(lambda node: self._read_offer(number, node), fresh), strict=True):
            self._offers[self._key_of(number, node)] = offer
        return tuple(self._offers[self._key_of(number, node)] for node in nodes)

    def _key_of(self, number: int, node: str) -> str:
        return keys.offer_key(self._remote.run, self.name, number, node)

    def _read_offer(self, number: int, node: str) -> Offer:
        key = self._key_of(number, node)
        data = self._remote.store.get(key, max_size=_OFFER_BYTES_MAX)
        try:
            return parse_offer(data, self.place(number), node)
        except (ManifestError, TypeError, ValueError) as error:
            where = f"{self._remote.store.url}/{key}"
            raise CorruptObject("cannot read an offer", where=where, why=str(error)) from None

    def _round(self, number: int, names: Mapping[str, object], offers: tuple[Offer, ...]) -> Round:
        said: dict[str, dict[str, object]] = {"done": {}, "withdrawn": {}, "progress": {}, "peers": {}}
        for name, modified in names.items():
            kind, _, rest = name.partition("/")
            with contextlib.suppress(ValueError):  # a foreign object: not ours to judge
                if kind in said:
                    said[kind][keys.unquote_name(rest)] = modified
        decided_at = names.get("decision.json")
        return Round(
            number,
            offers,
            self.decision(number) if "decision.json" in names else None,
            decided_at if isinstance(decided_at, int) else None,
            frozenset(said["done"]),
            frozenset(_part_ids(said["withdrawn"])),
            said["progress"],
            _addresses(said["peers"]),
        )

    def decision(self, number: int) -> Decision | None:
        """What a round has decided. Raises CorruptObject, StoreError."""
        if number not in self._decisions:
            key = keys.decision_key(self._remote.run, self.name, number)
            with contextlib.suppress(KeyMissing):
                self._decisions[number] = decision_at(self._remote, key, self.place(number))
        return self._decisions.get(number)

    # -- saying

    def offer(self, offer: Offer) -> Offer:
        """Put this node's offer of a round; returns the one that stands.

        Raises:
            ConflictError: this node has said something else in this round, or another one has its name.
        """
        number = offer.place.number
        key = self._key_of(number, self._node)
        crash_point("pull.before-offer")
        if self._remote.store.put_new(key, offer.to_bytes()):
            self._offers[key] = offer
            return offer
        stands = self._read_offer(number, self._node)
        if stands.node_id != offer.node_id:
            raise ConflictError(
                f"another machine called {self._node} takes part in this attempt",
                where=f"attempt {self.name}, round {number}",
                why=f"its state directory has the id {stands.node_id}, this one {offer.node_id}",
                remedy="give each node its own [node] name; a node that was replaced needs a new --attempt",
            )
        if (stands.limits, stands.nodes) != (offer.limits, offer.nodes):
            raise ConflictError(
                "this node has asked for something else before",
                where=f"attempt {self.name}, round {number}",
                why=f"then: {stands.limits}, {stands.nodes} nodes; now: {offer.limits}, {offer.nodes} nodes",
                remedy="use the same options, or a new --attempt on all nodes",
            )
        return stands

    def withdraw(self, number: int, part: PartId) -> None:
        """Say that the bytes of an offered part are gone."""
        self._remote.store.put_new(keys.withdrawn_key(self._remote.run, self.name, number, str(part)), b"")

    def moving(self, number: int, count: int) -> None:
        """Say now and then that this node works on its offer, or its upload goes on.

        A store that fails here will fail what counts, too.
        """
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_S:
            self._said_at = now
            key = keys.progress_key(self._remote.run, self.name, number, self._node)
            with contextlib.suppress(StoreError):
                self._remote.store.put(key, str(count).encode())

    def announce(self, number: int, address: str) -> None:
        """Say where this node gives chunks to the others, before it offers: who sees all offers sees all addresses."""
        key = keys.peer_key(self._remote.run, self.name, number, self._node, address)
        self._remote.store.put(key, self._node_id.encode())

    def decide(self, decision: Decision) -> Decision:
        """Put a decision, unless one is there; returns the one that stands."""
        number = decision.place.number
        crash_point("pull.before-decision")
        self._remote.store.put_new(keys.decision_key(self._remote.run, self.name, number), decision.to_bytes())
        crash_point("pull.after-decision")
        stands = self.decision(number)
        assert stands is not None, "it has just been put"
        return stands

    def done(self, number: int) -> None:
        """Say that this node has done what was decided."""
        crash_point("pull.before-done")
        key = keys.done_key(self._remote.run, self.name, number, self._node)
        self._remote.store.put_new(key, self._node_id.encode())


def _offering(rest: str) -> str | None:
    """The node whose offer it is; None for anything else."""
    kind, _, name = rest.partition("/")
    if kind != "offers" or not name.endswith(".json"):
        return None
    with contextlib.suppress(ValueError):
        return keys.unquote_name(name.removesuffix(".json"))
    return None


def _part_ids(names: Iterable[str]) -> Iterator[PartId]:
    for name in names:
        with contextlib.suppress(ValueError):
            yield parse_part_id(name)


def _addresses(names: Mapping[str, object]) -> Mapping[str, str]:
    """By node; a node that was started again has said a second one."""
    found: dict[str, str] = {}
    for name, _ in sorted(names.items(), key=_last):
        node, _, text = name.rpartition("@")
        with contextlib.suppress(ValueError):  # a foreign object: nobody is asked there
            found[node] = address(text)
    return found


def _last(each: tuple[str, object]) -> tuple[int, str]:
    name, modified_ns = each
    return (modified_ns if isinstance(modified_ns, int) else 0), name
