"""Pulling with other nodes: this node's side of an attempt, from before the run's lock until it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ckptsync.actions.whole import value_here
from ckptsync.app import Node
from ckptsync.disk.saves import Save
from ckptsync.errors import ConflictError, NothingToResume, StepChanged
from ckptsync.model.manifest import PartId
from ckptsync.model.rounds import Decision, Limits
from ckptsync.model.selection import Strategy
from ckptsync.model.step import LocalState
from ckptsync.sync.agree import Agreement, Progress, Terms, Wait
from ckptsync.sync.attempt import Attempt, Round
from ckptsync.sync.choose import Choice
from ckptsync.sync.history import History
from ckptsync.sync.local import StepView
from ckptsync.sync.push import push, put_part
from ckptsync.sync.remote import Remote

__all__ = ["Together"]

_OFFERED_MAX = 16
_OFFERED_BEST_MAX = 256
"""The best may be any of them, and one node alone may know which; mostly their parts are in the store already."""
_ROUNDS_MAX = 10


@dataclass
class Together:
    """One node's part in an attempt.

    Args:
        node: opened.
        remote: the run in the store; made if it was not there.
        attempt: the id.
        terms: what this node brings into a round.
        say: told what happens, a line each.
        waiting: told as long as it waits.
        address: where this node gives chunks to the others; "" = it does not.
    """

    node: Node
    remote: Remote
    attempt: str
    terms: Terms
    say: Callable[[str], None]
    waiting: Callable[[Wait], None]
    address: str = ""
    round: Round = field(default_factory=lambda: Round(0))
    _held: dict[PartId, tuple[Save, str]] = field(default_factory=dict)
    _values: frozenset[tuple[PartId, float]] = frozenset()
    _views: Sequence[StepView] = ()

    def __post_init__(self) -> None:
        node, name = self.node, self.node.config.node.name
        self._attempt = Attempt(self.remote, self.attempt, name, node.node_id)
        self._agreement = Agreement(
            self._attempt,
            History(self.remote, node.layout_of(), node.window_ns),
            self.terms,
            name,
            node.node_id,
            self._hold,
            self._push,
            self.waiting,
            values=lambda: self._values,
        )

    def join(self) -> None:
        """Find the round: once before the lock, so that what another pull here does meanwhile counts, and once with it.

        Raises:
            StoreError: the store cannot be read.
        """
        self.round = self._agreement.join(since=self.round.number)

    def beat(self) -> None:
        """Say now and then that this node is on its way to its offer."""
        self._attempt.moving(self.round.number, 0)

    def agree(self, views: Sequence[StepView]) -> Choice:
        """Take part until there is a decision that can be done, and return what it names. The run's lock is held.

        Raises:
            ConflictError: the nodes disagree, or this one asks for something else than was decided.
            NothingToResume: all nodes agree that there is nothing.
            StoreError.
        """
        self._views = views
        self.join()
        for _ in range(_ROUNDS_MAX):
            number = self.round.number
            if self.address:
                self._attempt.announce(number, self.address)
            decision = self._agreement.decide(number)
            where = f"attempt {self.attempt}, round {number}"
            if decision.outcome == "refused":
                raise ConflictError(
                    "the nodes do not agree on a step", where=where, why=decision.why, remedy="all of them pull again"
                )
            if decision.outcome == "nothing":
                self.done()
                raise NothingToResume("nothing to resume from, all nodes agree", where=where, why=decision.why)
            if decision.why:
                self.say(f"not picked: {decision.why}")
            if decision.fallback:
                self.say(f"--select {decision.select}: {decision.fallback}")
            union, why = self._agreement.stands(decision)
            if union is not None:
                self._check(decision, next(iter(union.parts.values())).layout, where)
                self.say(f"all {decision.nodes} nodes restore step {decision.step} ({where})")
                return Choice(union, decision.commit, fallback=decision.fallback)
            self.say(f"step {decision.step} cannot be restored any more, so all decide again ({where}): {why}")
            self.join()
        raise ConflictError("no decision lasts", where=f"attempt {self.attempt}", why="each was void or bad at once")

    def peers(self) -> frozenset[str]:
        """Where the nodes of the round, and nobody else, give chunks to each other. Raises StoreError."""
        found = self._attempt.look(self.round.number)
        return frozenset(found.peers[offer.node] for offer in found.offers if offer.node in found.peers)

    def done(self) -> None:
        """Say that this node has done what was decided."""
        self._attempt.done(self.round.number)

    def _check(self, decision: Decision, layout: str, where: str) -> None:
        """A late node follows, but not against what it was told itself."""
        limits, nodes = self.terms.limits, self.terms.nodes
        if limits.allow(decision.step, layout) and limits.follow(decision.select) and nodes == decision.nodes:
            return
        raise ConflictError(
            f"step {decision.step} was decided before",
            where=where,
            why=f"as {decision.select}, for {decision.nodes} nodes; this one was told: {limits}, {nodes} nodes",
            remedy="use the same options on all nodes, or a new --attempt",
        )

    # -- what this node has

    def _hold(self) -> frozenset[tuple[int, PartId]]:
        """Put the parts of the verified saves here that are not committed, as far as this node knows.

        Of many those that the strategy prefers, then the newest: the same on all nodes, so that their parts meet.
        """
        node, strategy = self.node, self.terms.limits.select
        self._held, values = {}, set()
        fresh = [
            (view.save, view.listing)
            for view in self._views
            if view.state is LocalState.VERIFIED
            and view.save is not None
            and not view.save.commit
            and node.saves.mark_of(view.save, "commit") is None
        ]
        fresh.sort(key=lambda each: (strategy.prefers(each[0].part.step), each[0].part.saved_ns), reverse=True)
        found = set()
        for save, listing in fresh[: _OFFERED_MAX if strategy.kind != "best" else _OFFERED_BEST_MAX]:
            try:
                part = put_part(self.remote, node.saves, save, listing.path)
            except StepChanged as error:
                self.say(f"step {save.part.step} is not offered: {error}")
                continue
            self._held[part.id] = (save, listing.path)
            found.add((part.step, part.id))
            value = value_here(node, save, listing, strategy.metric)
            if value is not None:
                values.add((part.id, value))
        self._values = frozenset(values)
        return frozenset(found)

    def _push(self, step: int, part: PartId, progress: Progress) -> None:
        if part not in self._held:
            raise StepChanged("an offered save is gone", where=f"step {step}", why=f"part {part} is not on this disk")
        node, (save, path) = self.node, self._held[part]
        assert node.layout is not None, "there is a save"
        self.say(f"step {step} is uploaded: it is the newest save, and not committed yet")
        push(save, path, self.remote, node.saves, node.layout, node.push_options, progress=progress)


def limits_of(node: Node, step: int | None, max_step: int | None, strategy: Strategy) -> Limits:
    """What this node accepts."""
    layout = node.config.run.layout
    return Limits(step, max_step, "" if layout == "auto" else layout, strategy)
