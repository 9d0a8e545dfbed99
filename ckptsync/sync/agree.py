"""The loop around `model/agreement.py`: one node's way from an offer to the decision that stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ckptsync.errors import CkptsyncError, StepChanged
from ckptsync.model.agreement import (
    Candidate,
    Chosen,
    CommitFirst,
    Nothing,
    Refused,
    Verdict,
    Waiting,
    gather,
    pick,
)
from ckptsync.model.manifest import PartId
from ckptsync.model.merge import Union
from ckptsync.model.rounds import Decision, Limits, Offer
from ckptsync.model.selection import Strategy
from ckptsync.sync.attempt import Attempt, Round
from ckptsync.sync.candidates import survey
from ckptsync.sync.commit import check_commit, try_commit
from ckptsync.sync.history import History
from ckptsync.sync.remote import LATER_NS
from ckptsync.sync.timer import Timer
from ckptsync.sync.values import Values

__all__ = ["Agreement", "Progress", "Terms", "Wait"]

_REASONS = 3
_NAMES = 8

Progress = Callable[[int], None]
"""Told the bytes of a chunk that is in the store."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What this node brings into a round.

    Attributes:
        nodes: how many nodes it takes.
        limits: what it accepts.
        scope: what it will restore, for people.
        timeout_s: for how long it waits for what does not move.
        offset_ns: store time minus its own.
    """

    nodes: int
    limits: Limits
    scope: str
    timeout_s: float
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What a node waits for, for people: what, and how many seconds are left."""

    what: str
    left_s: float


@dataclass
class Agreement:
    """One node in one attempt.

    Args:
        attempt: rounds in the store.
        history: of the run.
        terms: what this node brings.
        hold: parts of this node that are in the store, and whose bytes are here, by step.
        push: uploads one of them: its chunks, and its mark. Raises StepChanged if its bytes are gone.
        tell: told each time that it waits.
        values: what this node knows of the metric that is asked for, of the parts that it holds.
    """

    attempt: Attempt
    history: History
    terms: Terms
    node: str
    node_id: str
    hold: Callable[[], frozenset[tuple[int, PartId]]]
    push: Callable[[int, PartId, Progress], None]
    tell: Callable[[Wait], None]
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    values: Callable[[], frozenset[tuple[PartId, float]]] = frozenset
    _known: tuple[str, ...] | None = field(default=None)
    _values: Values = field(init=False)

    def __post_init__(self) -> None:
        self._values = Values(self.terms.limits.select.metric)

    # -- which round

    def join(self, since: int = 0) -> Round:
        """The newest round that is open, else the one after it.

        Args:
            since: the round that was open when this pull began to wait for its turn. If it is still the newest, and
                this node is done with it, another pull here has done so meanwhile: then it is this one's, too.
        """
        newest = self.attempt.newest()
        if newest is None:
            return Round(1)
        if newest.number == since and self.node in newest.done:
            return newest
        return Round(newest.number + 1) if self._closed(newest) else newest

    def _closed(self, found: Round) -> bool:
        decision = found.decision
        if decision is None:
            return False
        if found.finished:
            return True
        if decision.outcome == "commit" and self.stands(decision)[0] is None:
            return True
        return self._overtaken(decision, found.decided_at_ns)

    def stands(self, decision: Decision) -> tuple[Union | None, str]:
        """The save that a decision names; None and the reason if it cannot be restored (any more)."""
        history = self.history.refresh()
        if decision.commit in history.bad:
            return None, "its commit is marked as bad"
        index = history.remote.index(decision.step)
        condemned = history.remote.condemned()
        return check_commit(
            history.remote, index, decision.commit, history.layout_of, condemned, window_ns=history.window_ns
        )

    def _overtaken(self, decision: Decision, decided_at_ns: int | None) -> bool:
        """Whether the training went on since: a part was saved after the decision."""
        remote = self.history.remote
        for index in remote.index_all().values():
            if decided_at_ns is not None and index.parts_ns is not None and index.parts_ns < decided_at_ns:
                continue
            parts = remote.parts(index.step, index.parts).values()
            if any(part.saved_ns > decision.decided_ns + LATER_NS for part in parts):
                return True
        return False

    # -- one round

    def decide(self, number: int) -> Decision:
        """Offer, wait, commit what has to be committed; returns the decision that stands in round `number`.

        Raises:
            ConflictError: this node, or another of its name, has offered something else in this round.
            StoreError: the store failed; nothing is decided by that.
        """
        found = self.attempt.look(number)
        if found.decision is not None:
            return found.decision
        mine = self._offer(number)
        timer = Timer(self.clock, self.terms.timeout_s)
        gone = self._gone(number)
        awaited: Candidate | None = None
        while True:
            found = self.attempt.look(number)
            if found.decision is not None:
                return found.decision
            awaited = self._still_awaited(found, awaited) if not timer.over else None
            verdict, reasons = (
                self._verdict(found, gone, over=timer.over) if awaited is None else (CommitFirst(awaited), ())
            )
            if isinstance(verdict, Waiting):
                timer.moved(_on_their_way(found))
                self.tell(Wait(self._absent(found, verdict), timer.left_s))
            elif isinstance(verdict, CommitFirst):
                awaited = verdict.candidate
                timer.moved(self._bring_in(found, mine, awaited))
                self.tell(Wait(_uploads(awaited), timer.left_s))
            else:
                return self.attempt.decide(self._decision(found, verdict, reasons))
            self.pause(timer.next_pause())

    def _offer(self, number: int) -> Offer:
        terms = self.terms
        place, parts = self.attempt.place(number), self.hold()
        offer = Offer(place, self.node, self.node_id, terms.nodes, terms.limits, terms.scope, parts, self.values())
        return self.attempt.offer(offer)

    def _gone(self, number: int) -> frozenset[str]:
        """Nodes that were done with what the round before decided, if that does not stand any more."""
        before = self.attempt.look(number - 1) if number > 1 else Round(0)
        decision = before.decision
        if decision is None or decision.outcome != "commit" or self.stands(decision)[0] is not None:
            return frozenset()
        return before.done

    def _verdict(
        self, found: Round, gone: frozenset[str], *, over: bool
    ) -> tuple[Verdict | Waiting, tuple[tuple[int, str], ...]]:
        nodes = self.terms.nodes
        early = gather(found.offers, nodes, timed_out=over, gone=gone)
        if early is not None:
            return early, ()
        seen = survey(self.history.refresh(), found.offers, found.withdrawn, self._values)
        return pick(seen.candidates, found.offers, nodes, timed_out=over), seen.skipped

    def _still_awaited(self, found: Round, awaited: Candidate | None) -> Candidate | None:
        """The candidate that others upload, by a list of its step alone; None = all has to be looked at again."""
        if awaited is None or awaited.lacking & found.withdrawn:
            return None
        lacking = awaited.lacking - self.history.remote.index(awaited.step).ready
        return replace(awaited, lacking=lacking) if lacking else None

    def _bring_in(self, found: Round, mine: Offer, candidate: Candidate) -> object:
        """Do this node's share of a commit; returns what changes as long as anybody does theirs."""
        step = candidate.step
        number = found.number
        for part in sorted(candidate.lacking):
            if (step, part) in mine.parts:
                try:
                    self.push(step, part, lambda count: self.attempt.moving(number, count))
                except StepChanged:
                    self.attempt.withdraw(number, part)
        if not candidate.lacking:
            history = self.history
            rules = history.layout_of[candidate.layout]
            try_commit(history.remote, step, rules, window_ns=history.window_ns)
        return candidate.commit, candidate.lacking, tuple(sorted(map(str, found.moving.items())))

    def _decision(self, found: Round, verdict: Verdict, skipped: Iterable[tuple[int, str]]) -> Decision:
        place, nodes = self.attempt.place(found.number), self.terms.nodes
        now_ns = time.time_ns() + self.terms.offset_ns
        reasons = [f"step {step}: {why}" for step, why in skipped][:_REASONS]
        made = Decision(
            place, self.node, nodes, "nothing", decided_ns=now_ns, why="; ".join(reasons), select=self._strategy(found)
        )
        if isinstance(verdict, Chosen):
            best = verdict.candidate
            return replace(
                made,
                outcome="commit",
                step=best.step,
                commit=best.commit,
                saved_ns=best.end_ns,
                fallback=verdict.fallback,
            )
        if isinstance(verdict, Nothing):
            return made
        assert isinstance(verdict, Refused), "what is to be committed first is no decision"
        came, names = self._came(found)
        absent = [f"here: {', '.join(sorted(came))}", *([f"absent: {names}"] if names else [])]
        why = "; ".join([verdict.why, *(absent if len(came) < nodes else []), *reasons])
        return replace(made, outcome="refused", why=why)

    def _strategy(self, found: Round) -> Strategy:
        """That of the offers; nodes that disagree about it end up with a refusal."""
        return (found.offers[0].limits if found.offers else self.terms.limits).select

    # -- words

    def _absent(self, found: Round, verdict: Waiting) -> str:
        came, names = self._came(found)
        perhaps = f" ({names})" if names else ""
        why = f"; {verdict.why}" if verdict.why else ""
        return f"{len(came)} of {self.terms.nodes} nodes are here, {verdict.absent} absent{perhaps}{why}"

    def _came(self, found: Round) -> tuple[frozenset[str], str]:
        """Who has offered, and who else has ever put a part: those are absent, or were replaced."""
        came = frozenset(offer.node for offer in found.offers)
        if self._known is None:
            self._known = self._known_nodes()
        names = [name for name in self._known if name not in came]
        return came, f"{', '.join(names[:_NAMES])}?" if names else ""

    def _known_nodes(self) -> tuple[str, ...]:
        try:
            return self.history.remote.nodes()
        except CkptsyncError:
            return ()


def _on_their_way(found: Round) -> object:
    """What changes as long as a node that has not offered yet works on it (it verifies what it has, perhaps)."""
    came = {offer.node for offer in found.offers}
    return tuple(sorted((node, str(value)) for node, value in found.moving.items() if node not in came))


def _uploads(candidate: Candidate) -> str:
    holders = ", ".join(sorted({part.node for part in candidate.lacking}))
    return f"step {candidate.step} is uploaded by {holders}" if holders else f"step {candidate.step} is committed"
