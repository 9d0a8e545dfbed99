"""The preflights of several nodes: each puts what it found below the attempt, and all wait until all have.

A set is complete when its outcome is there: one object, create-if-absent, that says what every node found. So all
nodes act on the same. A node that waits puts its verdict again now and then; one that has not for a while (killed, or
of an earlier start) does not count. One that was killed and comes again takes the outcome that the others acted on, if
it is fresh, and this node never saw it, and found now what it had found then; else the next set begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ckptsync.errors import CkptsyncError, ConflictError, CorruptObject, KeyMissing, StoreError
from ckptsync.model.manifest import ManifestError
from ckptsync.model.rounds import Place
from ckptsync.model.verdicts import Joint, Verdict, parse_joint, parse_verdict
from ckptsync.store import keys, preflight_keys
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.agree import Wait
from ckptsync.sync.documents import in_threads
from ckptsync.sync.remote import Remote
from ckptsync.sync.timer import Timer

__all__ = ["Verdicts"]

_BYTES_MAX = 1024 * 1024
_ALIVE_S = 5.0
_DEAD_NS = 30 * 10**9
"""Six signs of life: a store that throttles may swallow a few."""
_SETS_MAX = 100
_NAMES = 8


@dataclass
class Verdicts:
    """One node's part in the preflights of an attempt.

    Args:
        remote: the run, opened.
        attempt: the id.
        node, node_id: who takes part.
        nodes: how many nodes start.
        timeout_s: for how long nodes that do not come are waited for.
        tell: told each time that it waits.
    """

    remote: Remote
    attempt: str
    node: str
    node_id: str
    nodes: int
    timeout_s: float
    tell: Callable[[Wait], None] = lambda _: None
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _read: dict[str, tuple[ObjectMeta, Verdict]] = field(default_factory=dict)
    _said_at: float = 0.0
    _names: tuple[str, ...] | None = None

    def share(self, failed: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        """Put what this node found, and wait for the others.

        Args:
            failed: the names of this node's checks that failed.

        Returns:
            Every node of the set -> the names of its checks that failed.

        Raises:
            ConflictError: not all nodes came in time; they were told different numbers of nodes; or another machine
                has this node's name.
            StoreError: the store failed.
        """
        self._require_one_winner()
        number = self._newest()
        for _ in range(_SETS_MAX):
            found = self._take_part(number, failed)
            if found is not None:
                return found.failed
            number += 1  # complete without what this node has found now: the others must look again, too
        raise ConflictError("no set of preflights lasts", where=f"attempt {self.attempt}")

    def _require_one_winner(self) -> None:
        store = self.remote.store
        if not store.capabilities.atomic_create:
            raise StoreError(
                "nodes cannot agree in this store",
                where=store.url,
                why="when two of them create one object, it does not promise that one wins",
                remedy="run the preflight with --nodes 1 on each node, or use another store",
            )

    def _newest(self) -> int:
        """The newest set that is not complete, or whose outcome this node has not seen; else the one after it."""
        run = self.remote.run
        names = self.remote.store.children(preflight_keys.preflight_prefix(run, self.attempt))
        newest = max((number for name in names if (number := keys.parse_number(name))), default=0)
        if not newest:
            return 1
        seen = self.remote.store.head(preflight_keys.seen_key(run, self.attempt, newest, self.node)) is not None
        return newest + seen

    def _take_part(self, number: int, failed: tuple[str, ...]) -> Joint | None:
        """One set; None = it is complete, and says something else of this node."""
        mine = Verdict(self._place(number), self.node, self.node_id, self.nodes, failed)
        self._read = {}
        self._refuse_namesake(number, self._look(number))
        self._put(mine)
        try:
            return self._wait(mine)
        except StoreError:
            raise
        except BaseException:
            # this node goes: its verdict must not be taken for a sign that it is here
            with contextlib.suppress(StoreError):  # where a node may not delete, it grows old
                self.remote.store.delete(preflight_keys.verdict_key(self.remote.run, self.attempt, number, self.node))
            raise

    def _wait(self, mine: Verdict) -> Joint | None:
        number = mine.place.number
        timer, most = Timer(self.clock, self.timeout_s), 0
        joined_ns: int | None = None
        while True:
            listed = self._look(number)
            if joined_ns is None and (own := listed.get(f"{keys.quote_name(self.node)}.json")) is not None:
                joined_ns = own.modified_ns
            if "outcome" in listed:
                return self._act_on(mine, listed["outcome"].modified_ns, joined_ns)
            alive = self._alive(number, listed)
            self._require_one_count(alive, number)
            if len(alive) == self.nodes:
                found = {node: verdict.failed for node, verdict in alive.items()}
                self.remote.store.put_new(
                    preflight_keys.outcome_key(self.remote.run, self.attempt, number),
                    Joint(mine.place, self.nodes, found).to_bytes(),
                )
                continue
            most = max(most, len(alive))  # one that goes is no reason to wait longer
            timer.moved(most)
            if timer.over:
                self._give_up(number, alive)
            self.tell(Wait(self._absent(alive), timer.left_s))
            self.pause(timer.next_pause())
            if self.clock() - self._said_at >= _ALIVE_S:
                self._put(mine)

    def _act_on(self, mine: Verdict, written_ns: int | None, joined_ns: int | None) -> Joint | None:
        """The outcome; None = it is of an earlier start, or says something else of this node.

        A node that was held up since it joined acts on what the others went on with, however long that was.
        """
        number = mine.place.number
        joint = self._outcome(number)
        if _dead(written_ns, joined_ns) or joint.failed.get(self.node) != mine.failed:
            return None
        self.remote.store.put(preflight_keys.seen_key(self.remote.run, self.attempt, number, self.node), b"")
        return joint

    def _place(self, number: int) -> Place:
        return Place(self.remote.run, self.remote.run_id, self.attempt, number)

    def _put(self, mine: Verdict) -> None:
        self.remote.store.put(
            preflight_keys.verdict_key(self.remote.run, self.attempt, mine.place.number, self.node), mine.to_bytes()
        )
        self._said_at = self.clock()

    def _look(self, number: int) -> dict[str, ObjectMeta]:
        """What a set holds, by the name below its prefix."""
        prefix = preflight_keys.verdicts_prefix(self.remote.run, self.attempt, number)
        return {meta.key[len(prefix) + 1 :]: meta for meta in self.remote.store.list(prefix)}

    def _alive(self, number: int, listed: Mapping[str, ObjectMeta]) -> dict[str, Verdict]:
        """The verdicts of nodes that still give signs of life, by the store's clock alone."""
        nodes = {node: meta for name, meta in listed.items() if (node := _node_of(name)) is not None}
        mine = nodes.get(self.node)
        now_ns = mine.modified_ns if mine is not None else None
        alive = {node: meta for node, meta in nodes.items() if not _dead(meta.modified_ns, now_ns)}
        fresh = [node for node, meta in alive.items() if node not in self._read or self._read[node][0] != meta]
        for node, verdict in zip(fresh, in_threads(lambda node: self._fetch(number, node), fresh), strict=True):
            if verdict is not None:
                self._read[node] = (alive[node], verdict)
        return {node: self._read[node][1] for node in sorted(alive) if node in self._read}

    def _fetch(self, number: int, node: str) -> Verdict | None:
        """A verdict; None = it was taken away since it was listed."""
        key = preflight_keys.verdict_key(self.remote.run, self.attempt, number, node)
        try:
            return parse_verdict(self.remote.store.get(key, max_size=_BYTES_MAX), self._place(number), node)
        except KeyMissing:
            return None
        except ManifestError as error:
            where = f"{self.remote.store.url}/{key}"
            raise CorruptObject("cannot read a verdict", where=where, why=str(error)) from None

    def _outcome(self, number: int) -> Joint:
        key = preflight_keys.outcome_key(self.remote.run, self.attempt, number)
        try:
            return parse_joint(self.remote.store.get(key, max_size=_BYTES_MAX), self._place(number))
        except ManifestError as error:
            where = f"{self.remote.store.url}/{key}"
            raise CorruptObject("cannot read an outcome", where=where, why=str(error)) from None

    def _refuse_namesake(self, number: int, listed: Mapping[str, ObjectMeta]) -> None:
        """A verdict under this node's name by another state directory, while its machine is alive."""
        name = f"{keys.quote_name(self.node)}.json"
        if name not in listed or "outcome" in listed:
            return
        other = self._fetch(number, self.node)
        newest = max((meta.modified_ns for meta in listed.values() if meta.modified_ns is not None), default=None)
        if other is None or other.node_id == self.node_id or _dead(listed[name].modified_ns, newest):
            return
        raise ConflictError(
            f"another machine called {self.node} takes part in this preflight",
            where=f"attempt {self.attempt}, preflight {number}",
            why=f"its state directory has the id {other.node_id}, this one {self.node_id}",
            remedy="give each node its own [node] name; for a node that was replaced, wait a minute",
        )

    def _require_one_count(self, alive: Mapping[str, Verdict], number: int) -> None:
        for node, verdict in alive.items():
            if verdict.nodes != self.nodes:
                raise ConflictError(
                    "the nodes were told different numbers of nodes",
                    where=f"attempt {self.attempt}, preflight {number}",
                    why=f"{node}: {verdict.nodes}, {self.node}: {self.nodes}",
                    remedy="use the same --nodes everywhere",
                )

    def _give_up(self, number: int, alive: Mapping[str, Verdict]) -> None:
        """Time is up."""
        failed = [f"{node}: {', '.join(verdict.failed)}" for node, verdict in alive.items() if verdict.failed]
        raise ConflictError(
            "not all nodes have run their preflight",
            where=f"attempt {self.attempt}, preflight {number}",
            why="; ".join([self._absent(alive), *(f"failed on {each}" for each in failed[:_NAMES])]),
            remedy="run it on all nodes at about the same time, or with --nodes 1 on each",
        )

    def _absent(self, alive: Mapping[str, Verdict]) -> str:
        absent = self.nodes - len(alive)
        if absent < 0:
            return f"{len(alive)} nodes are here, and {self.nodes} were announced ({', '.join(list(alive)[:_NAMES])})"
        names = [name for name in self._known if name not in alive][:_NAMES]
        perhaps = f" ({', '.join(names)}?)" if names else ""
        return f"{len(alive)} of {self.nodes} nodes are here, {absent} absent{perhaps}"

    @property
    def _known(self) -> tuple[str, ...]:
        """Who has ever put a part, asked once."""
        if self._names is None:
            try:
                self._names = self.remote.nodes()
            except CkptsyncError:
                self._names = ()
        return self._names


def _node_of(name: str) -> str | None:
    """Whose verdict it is; None for anything else."""
    if not name.endswith(".json"):
        return None
    with contextlib.suppress(ValueError):  # a foreign object: not ours to judge
        return keys.unquote_name(name.removesuffix(".json"))
    return None


def _dead(modified_ns: int | None, now_ns: int | None) -> bool:
    return modified_ns is not None and now_ns is not None and now_ns - modified_ns > _DEAD_NS
