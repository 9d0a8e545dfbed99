"""One step for all nodes: from offers and candidates to a decision. Pure: no store, no clock.

Two questions, in this order: may anything be decided now (`gather`), and for what (`pick`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckptsync.model.manifest import Part, PartId
from ckptsync.model.merge import StepRules, Union, saves_of
from ckptsync.model.rounds import Limits, Offer
from ckptsync.model.selection import not_committed, select

__all__ = [
    "Candidate",
    "Chosen",
    "CommitFirst",
    "Nothing",
    "Refused",
    "Verdict",
    "Waiting",
    "candidate_of",
    "gather",
    "pick",
    "uncommitted",
]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole save that all nodes could resume from.

    Attributes:
        step: its number.
        end_ns: when it ended, store time.
        files: how many files it has.
        commit: digest of its commit, whether that is in the store or not.
        layout: of its parts.
        committed: the commit is in the store, and valid.
        lacking: its parts that are not ready; empty and not committed = it only takes a commit.
        value: the metric of `best`; None = nobody has said it.
        out: never: what must not be taken is no candidate here.
    """

    step: int
    end_ns: int
    files: int
    commit: str
    layout: str
    committed: bool
    lacking: frozenset[PartId] = frozenset()
    value: float | None = None
    out: str = ""

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Newest first; of two of one save the fuller one, then the committed one, then by digest."""
        return self.end_ns, self.files, self.committed, self.commit


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be decided yet: so many offers are absent. `why` = what will be refused if it stays so."""

    absent: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """All nodes restore this one; it is committed. `fallback` = why it is not what the strategy asks for."""

    candidate: Candidate
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class CommitFirst:
    """This one, once it is committed."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to resume from, and all nodes are there to agree to that."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No agreement."""

    why: str


Verdict = Chosen | CommitFirst | Nothing | Refused


def candidate_of(
    union: Union, *, committed: bool, ready: Collection[PartId] = (), value: float | None = None
) -> Candidate:
    """The candidate that a whole save is."""
    part = next(iter(union.parts.values()))
    lacking = frozenset() if committed else frozenset(each for each in union.parts if each not in ready)
    return Candidate(
        union.step, union.end_ns, len(union.files), union.commit.digest, part.layout, committed, lacking, value
    )


def uncommitted(
    parts: Mapping[PartId, Part],
    ready: Collection[PartId],
    offered: Collection[PartId],
    rules: StepRules,
    *,
    window_ns: int,
) -> tuple[Union, ...]:
    """The whole saves of one step over the parts that are ready or could become so: what a commit could be put for.

    Args:
        parts: all that the store has of the step; those neither ready nor offered are witnesses.
        ready: whose chunks are in the store.
        offered: whose bytes are on the disk of a node of this round.
        rules: of the run's layout.
        window_ns: `commit.window`.
    """
    usable = [part for part_id, part in parts.items() if part_id in ready or part_id in offered]
    if not usable:
        return ()
    saves = saves_of(usable, rules, window_ns=window_ns, witnesses=parts.values())
    return tuple(union for union in saves if union.whole and not union.awaited)


def gather(
    offers: Sequence[Offer], nodes: int, *, timed_out: bool, gone: Collection[str] = ()
) -> Waiting | Refused | None:
    """Whether it can be decided now; None = it can.

    Args:
        offers: of the round so far.
        nodes: how many it takes.
        timed_out: time is up.
        gone: nodes without which time alone decides nothing: they were done in a round that does not count any more.
    """
    names = {offer.node for offer in offers}
    missing = sorted(set(gone) - names)
    why = _disagreement(offers, nodes)
    if len(names) < nodes and not timed_out:
        return Waiting(nodes - len(names), why)
    if not why and len(names) < nodes and missing:
        why = f"{', '.join(missing)} restored what was decided before, and must pull again"
    return Refused(why) if why else None


def pick(candidates: Iterable[Candidate], offers: Sequence[Offer], nodes: int, *, timed_out: bool) -> Verdict:
    """What to do, once `gather` allows it. When time is up, only what is committed counts.

    Args:
        candidates: whole saves that are neither bad nor superseded.
        offers: of the round.
        nodes: how many it takes.
        timed_out: time is up, be it for an offer or for an upload.
    """
    limits = offers[0].limits if offers else Limits()
    allowed = [each for each in candidates if limits.allow(each.step, each.layout)]
    counted = [each for each in allowed if each.committed or not timed_out]
    selected = select(limits.select, counted)
    if selected is not None:
        best = selected.candidate
        return Chosen(best, selected.fallback) if best.committed else CommitFirst(best)
    if (lost := not_committed(limits.select, counted)) is not None:
        return Refused(f"step {lost.step} is whole on the disks, but no step is committed, as {limits.select} demands")
    absent = nodes - len({offer.node for offer in offers})
    if not timed_out or (absent <= 0 and not allowed):
        return Nothing()
    return Refused(_no_commit(allowed, absent, nodes))


def _no_commit(allowed: Iterable[Candidate], absent: int, nodes: int) -> str:
    newest = max(allowed, key=lambda each: each.rank, default=None)
    here = f"{absent} of {nodes} nodes did not come" if absent > 0 else "an upload did not end"
    if newest is None:
        return f"{here}, and no step is committed"
    holders = ", ".join(sorted({part.node for part in newest.lacking}))
    waits = f", step {newest.step} waits for {holders}" if holders else ""
    return f"{here}, and no step is committed{waits}"


def _disagreement(offers: Sequence[Offer], nodes: int) -> str:
    """Why these nodes cannot agree; "" = they can."""
    if len({offer.node for offer in offers}) > nodes:
        return f"{len(offers)} nodes came, for a round of {nodes}"
    texts = {
        "limits": {offer.node: str(offer.limits) for offer in offers},
        "number of nodes": {offer.node: f"--nodes {offer.nodes}" for offer in offers},
    }
    for what, text_of in texts.items():
        said: dict[str, list[str]] = {}
        for node in sorted(text_of):
            said.setdefault(text_of[node], []).append(node)
        if len(said) > 1:
            words = "; ".join(f"{', '.join(names)}: {text}" for text, names in said.items())
            return f"the nodes disagree about the {what}: {words}"
    return ""
