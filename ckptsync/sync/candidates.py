"""Which steps all nodes of a round could resume from: commits, and what their disks could still complete."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ckptsync.model.agreement import Candidate, candidate_of, uncommitted
from ckptsync.model.manifest import PartId
from ckptsync.model.merge import saves_of
from ckptsync.model.rounds import Limits, Offer
from ckptsync.store import keys
from ckptsync.sync.choose import wanted_indexes
from ckptsync.sync.commit import RulesOf
from ckptsync.sync.committed import commits_for
from ckptsync.sync.history import History
from ckptsync.sync.remote import LATER_NS, Remote, StepIndex
from ckptsync.sync.values import Values

__all__ = ["Survey", "survey", "why_partial"]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found, and (step, reason) of what was passed over, for people."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[tuple[int, str], ...]


def survey(
    history: History, offers: Sequence[Offer], withdrawn: Collection[PartId], values: Values | None = None
) -> Survey:
    """Find the newest commit, and every whole save that is newer, over parts that are ready or offered.

    A save is as new as one of its parts, and a part is put after its save has ended: its modification time tells which
    steps need not be read. It never decides. Where a strategy prefers some steps, the others are read only if none of
    those has a commit; `best` has to read all.

    Args:
        history: refreshed.
        offers: of the round; their limits bound what is looked at.
        withdrawn: parts that were offered, and are gone.
        values: of the metric that their strategy asks for.

    Raises:
        StoreError: the store cannot be read.
    """
    limits = offers[0].limits if offers else Limits()
    known = (values or Values(limits.select.metric)).refresh(history.remote, _said(offers))
    look = _Look(history, limits, _held(offers, withdrawn), known)
    indexes = wanted_indexes(history.remote, limits.step, limits.max_step)
    found: list[Candidate] = []
    for preferred in (True, False):
        wanted = {n: index for n, index in indexes.items() if limits.select.prefers(n) == preferred}
        if wanted:
            found += look.at(wanted)
        if any(each.committed and limits.allow(each.step, each.layout) for each in found):
            break
    return Survey(tuple(found), tuple(sorted(look.skipped, reverse=True)))


def _held(offers: Sequence[Offer], withdrawn: Collection[PartId]) -> frozenset[PartId]:
    return frozenset(part for offer in offers for _, part in offer.parts) - set(withdrawn)


def _said(offers: Sequence[Offer]) -> Mapping[PartId, float]:
    return {part: value for offer in offers for part, value in offer.values}


@dataclass
class _Look:
    """A look at some steps.

    Args:
        history: refreshed.
        limits: of the round.
        offered: parts that their nodes can upload.
        values: of the metric that is asked for, refreshed.
    """

    history: History
    limits: Limits
    offered: frozenset[PartId]
    values: Values
    skipped: list[tuple[int, str]] = field(default_factory=list)
    _listed: AbstractSet[str] | None = None

    def at(self, indexes: Mapping[int, StepIndex]) -> Iterator[Candidate]:
        """The commits that a strategy selects from, and the saves that a commit could be put for instead."""
        strategy, since_ns, none = self.limits.select, 0, True
        forced = self.limits.step is not None
        for union, _, value in commits_for(self.history, indexes, strategy, self.values, self.skipped, forced=forced):
            none, since_ns = False, max(since_ns, union.end_ns)
            yield candidate_of(union, committed=True, value=value)
        if none or not strategy.committed_only:
            for index in indexes.values():
                yield from self._newer(index, 0 if strategy.kind == "best" else since_ns)

    def _usable(self, index: StepIndex) -> frozenset[PartId]:
        """The parts of a step that no collection has listed, as of the first time that it is asked.

        Who commits looks again.
        """
        remote = self.history.remote
        if self._listed is None:
            self._listed = remote.condemned().listed
        run, listed = remote.run, self._listed
        return frozenset(each for each in index.parts if keys.part_key(run, index.step, str(each)) not in listed)

    def _newer(self, index: StepIndex, since_ns: int) -> Iterator[Candidate]:
        """The whole saves of a step that could be committed and are newer than the newest commit."""
        remote = self.history.remote
        late = index.parts_ns is None or index.parts_ns + LATER_NS >= since_ns
        if not late or not index.parts & (index.ready | self.offered):
            return
        usable = self._usable(index)
        parts = remote.parts(index.step, index.parts)
        for layout in sorted({part.layout for part in parts.values()}):
            rules = self.history.layout_of.get(layout)
            if rules is None:
                self.skipped.append((index.step, f"this ckptsync has no layout {layout!r}"))
                continue
            ready, held = index.ready & usable, usable.intersection(self.offered)
            for union in uncommitted(parts, ready, held, rules, window_ns=self.history.window_ns):
                if union.end_ns <= since_ns or union.commit.digest in index.commits:
                    continue  # a commit that is there was looked at already
                if why := self.history.against(union, index, forced=self.limits.step is not None):
                    self.skipped.append((index.step, why))
                else:
                    value = self.values.of_save(remote, union, index)
                    yield candidate_of(union, committed=False, ready=index.ready, value=value)


def why_partial(remote: Remote, index: StepIndex, rules_of: RulesOf, *, window_ns: int) -> str:
    """Why the parts of a step have no commit, for people.

    Args:
        remote: the run.
        index: of a step without a commit.
        rules_of: layout name -> its rules.
        window_ns: `commit.window`.

    Raises:
        StoreError: the parts cannot be read.
    """
    parts = remote.parts(index.step, index.parts)
    for layout in sorted({part.layout for part in parts.values()}):
        rules = rules_of.get(layout)
        if rules is None:
            return f"this ckptsync has no layout {layout!r}"
        saves = saves_of((part for part in parts.values() if part.layout == layout), rules, window_ns=window_ns)
        for union in saves[:1]:
            if not union.whole:
                return f"not committed: {(*union.conflicts, *union.problems)[0]}"
            holders = ", ".join(sorted({part.node for part in union.parts if part not in index.ready}))
            where = f"on the disks of {holders}: a pull of all nodes uploads it" if holders else "and ready"
            return f"not committed: it is whole {where}"
    return "not committed: its parts cannot be read"
