"""Which steps all nodes of a round could resume from: commits, and what their disks could still complete."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ckptsync.model.agreement import Candidate, candidate_of, uncommitted
from ckptsync.model.manifest import PartId
from ckptsync.model.rounds import Limits, Offer
from ckptsync.store import keys
from ckptsync.sync.choose import newest_commit, wanted_indexes
from ckptsync.sync.history import History
from ckptsync.sync.remote import LATER_NS, StepIndex

__all__ = ["Survey", "survey"]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found, and (step, reason) of what was passed over, for people."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[tuple[int, str], ...]


def survey(history: History, offers: Sequence[Offer], withdrawn: Collection[PartId]) -> Survey:
    """Find the newest commit, and every whole save that is newer, over parts that are ready or offered.

    A save is as new as one of its parts, and a part is put after its save has ended: its modification time tells which
    steps need not be read. It never decides.

    Args:
        history: refreshed.
        offers: of the round; their limits bound what is looked at.
        withdrawn: parts that were offered, and are gone.

    Raises:
        StoreError: the store cannot be read.
    """
    limits = offers[0].limits if offers else Limits()
    forced = limits.step is not None
    skipped: list[tuple[int, str]] = []
    indexes = wanted_indexes(history.remote, limits.step, limits.max_step)
    best = newest_commit(history, indexes, skipped, forced=forced)
    found = [candidate_of(best.union, committed=True)] if best is not None else []
    since_ns = best.union.end_ns if best is not None else 0
    offered = {part for offer in offers for _, part in offer.parts} - set(withdrawn)
    for index in indexes.values():
        found += _newer(history, index, offered, since_ns, skipped, forced=forced)
    return Survey(tuple(found), tuple(sorted(skipped, reverse=True)))


def _newer(
    history: History,
    index: StepIndex,
    offered: Collection[PartId],
    since_ns: int,
    skipped: list[tuple[int, str]],
    *,
    forced: bool,
) -> Iterator[Candidate]:
    """The whole saves of a step that could be committed and are newer than the newest commit."""
    remote, run = history.remote, history.remote.run
    late = index.parts_ns is None or index.parts_ns + LATER_NS >= since_ns
    if not late or not index.parts & (index.ready | frozenset(offered)):
        return
    listed = remote.condemned().listed
    usable = {each for each in index.parts if keys.part_key(run, index.step, str(each)) not in listed}
    parts = remote.parts(index.step, index.parts)
    for layout in sorted({part.layout for part in parts.values()}):
        rules = history.layout_of.get(layout)
        if rules is None:
            skipped.append((index.step, f"this ckptsync has no layout {layout!r}"))
            continue
        ready, held = index.ready & usable, usable.intersection(offered)
        for union in uncommitted(parts, ready, held, rules, window_ns=history.window_ns):
            if union.end_ns <= since_ns or union.commit.digest in index.commits:
                continue  # a commit that is there was looked at already
            if why := history.against(union, index, forced=forced):
                skipped.append((index.step, why))
            else:
                yield candidate_of(union, committed=False, ready=index.ready)
