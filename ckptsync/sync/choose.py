"""Which step to restore on one node: one that is valid, in the store or whole on this disk, as a strategy says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from ckptsync.disk.saves import Save
from ckptsync.errors import NothingToResume, PreflightError
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import Union, unite
from ckptsync.model.rounds import Limits
from ckptsync.model.selection import Candidate, Selected, Strategy, not_committed, select
from ckptsync.model.step import Listing
from ckptsync.store import keys
from ckptsync.sync.commit import check_commit
from ckptsync.sync.committed import commits_for
from ckptsync.sync.history import History
from ckptsync.sync.notes import Said
from ckptsync.sync.remote import Remote, StepIndex
from ckptsync.sync.values import Values

__all__ = [
    "Choice",
    "Looked",
    "Stock",
    "ValueOf",
    "choose",
    "local_unions",
    "look_over",
    "require_none_lost",
    "wanted_indexes",
]

ValueOf = Callable[[Union, Said], float | None]
"""The metric of a save on this disk, which people may have told the store, too; None = nobody knows it."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What one node can choose from: commits in the store, and whole saves on its disk.

    Attributes:
        remote: the store; None = only this disk counts.
        layout_of: layout name -> layout, for judging commits.
        window_ns: `commit.window`.
        local: see `local_unions`.
        value_of: the metric of a local save.
        commit_of: digest of the commit that a local save is in, as far as that is known: it is not counted twice.
    """

    remote: Remote | None
    layout_of: Mapping[str, Layout]
    window_ns: int
    local: Sequence[Union] = ()
    value_of: ValueOf = lambda _, __: None
    commit_of: Callable[[Union], str] = lambda union: union.commit.digest


@dataclass(frozen=True, slots=True)
class Choice:
    """What will be restored.

    Attributes:
        union: its files.
        commit: digest of its commit; "" for a local step that is newer than every commit.
        skipped: (step, why it was not chosen), for people; newest first.
        fallback: for people: why it is not what the strategy asks for; "" = it is.
    """

    union: Union
    commit: str
    skipped: tuple[tuple[int, str], ...] = ()
    fallback: str = ""


def local_unions(
    saves: Iterable[Save], listings: Mapping[int, Listing], layout: Layout, *, window_ns: int, offset_ns: int
) -> list[Union]:
    """The verified local saves that are whole by themselves and still on disk, unchanged; in store time.

    `offset_ns` is store time minus this node's: a node whose clock is slow must not take its own save for old.
    """
    found = []
    for save in saves:
        listing = listings.get(save.part.step)
        if listing is None or listing.name != save.part.name or not save.still_there(listing):
            continue
        union = unite([save.part], save.part.saved_ns, layout, window_ns=window_ns)
        if union.whole or save.commit:
            found.append(replace(union, end_ns=union.end_ns + offset_ns))
    return found


def choose(stock: Stock, limits: Limits) -> Choice:
    """Choose a step for this node alone, of what there is, within what it accepts.

    Raises:
        NothingToResume: no step qualifies; the message says what was skipped and why.
        PreflightError: only what is not committed would, and the strategy takes nothing of that.
        StoreError: the store cannot be listed. That is never "no checkpoints".
    """
    found = look_over(stock, limits)
    return found.choice if found.choice is not None else found.refuse(limits, stock.remote)


@dataclass(frozen=True, slots=True)
class Looked:
    """What this node alone could choose from, as far as the strategy had to look.

    Attributes:
        choice: what it takes; None = nothing.
        selected: the same, and why.
        found: sound saves.
        skipped: (step, why it must not be taken), for people; newest first.
        indexes: of the steps in the store that may be chosen.
    """

    choice: Choice | None
    selected: Selected[Candidate] | None
    found: tuple[Candidate, ...]
    skipped: tuple[tuple[int, str], ...]
    indexes: Mapping[int, StepIndex]

    def refuse(self, limits: Limits, remote: Remote | None) -> NoReturn:
        """Raises what `choose` raises where nothing was chosen."""
        where = remote.store.url if remote else ""
        require_none_lost(limits.select, self.found, where)
        what = "nothing to resume from" if limits.step is None else f"step {limits.step} cannot be restored"
        why = "; ".join(f"step {n}: {reason}" for n, reason in self.skipped[:3])
        if not why:
            why = "neither the store nor this disk has a step that was verified"
        raise NothingToResume(
            what, where=where, why=why, remedy="`ckptsync steps` shows what is there, and what it lacks"
        )


def require_none_lost(strategy: Strategy, found: Iterable[Candidate], where: str) -> None:
    """Where nothing was selected: raises PreflightError if that is only since nothing is committed, as it demands."""
    lost = not_committed(strategy, found)
    if lost is not None:
        raise PreflightError(
            "no step is committed",
            where=where,
            why=f"step {lost.step} is whole on this disk, and {strategy} takes nothing that is only there",
            remedy="`ckptsync push` commits it; or select newest",
        )


def look_over(stock: Stock, limits: Limits) -> Looked:
    """As `choose`, with everything that was seen on the way. Raises StoreError."""
    remote, strategy = stock.remote, limits.select
    history = History(remote, stock.layout_of, stock.window_ns).refresh() if remote is not None else None
    indexes = wanted_indexes(remote, limits.step, limits.max_step) if remote is not None else {}
    search = _Search(stock, limits, history, indexes)
    for preferred in (True, False):
        search.look(preferred=preferred)
        selected = select(strategy, search.found)
        if selected is not None and not selected.fallback:
            break
    union = search.union_of(selected.candidate) if selected is not None else None
    while selected is not None and union is None:  # a collection has taken it since
        search.found.remove(selected.candidate)
        selected = select(strategy, search.found)
        union = search.union_of(selected.candidate) if selected is not None else None
    skipped = tuple(sorted(search.skipped, reverse=True))
    choice = None
    if selected is not None and union is not None:
        commit = selected.candidate.digest if selected.candidate.committed else ""
        choice = Choice(union, commit, skipped, selected.fallback)
    return Looked(choice, selected, tuple(search.found), skipped, indexes)


class _Search:
    """Looks for candidates where a strategy needs them.

    Args:
        stock: what there is.
        limits: what is accepted of it.
        history: of the store, refreshed; None = there is no store.
        indexes: of the steps in the store that are accepted.
    """

    def __init__(self, stock: Stock, limits: Limits, history: History | None, indexes: Mapping[int, StepIndex]) -> None:
        self._stock, self._history, self._indexes = stock, history, indexes
        self._strategy, self._forced = limits.select, limits.step is not None
        mine = [union for union in stock.local if limits.allow(union.step, "")]
        self._local = sorted(mine, key=lambda union: union.end_ns, reverse=True)
        self._values = Values(limits.select.metric)
        self._unions: dict[Candidate, Union] = {}
        self.found: list[Candidate] = []
        self.skipped = [(n, _why_partial(index)) for n, index in indexes.items() if not index.commits]
        if history is not None:
            self._values.refresh(history.remote)

    def look(self, *, preferred: bool) -> None:
        """At the steps that the strategy prefers, or at the others."""
        strategy, since_ns = self._strategy, 0
        wanted = {n: index for n, index in self._indexes.items() if strategy.prefers(n) == preferred}
        if self._history is not None and wanted:
            found = commits_for(self._history, wanted, strategy, self._values, self.skipped, forced=self._forced)
            for union, commit, value in found:
                candidate = Candidate(union.step, union.end_ns, True, value, "", len(union.files), commit)
                self.found.append(candidate)
                since_ns = max(since_ns, union.end_ns)
                if strategy.kind != "best":  # which reads them all, and takes one
                    self._unions[candidate] = union
        if not strategy.committed_only or not self.found:
            mine = [union for union in self._local if strategy.prefers(union.step) == preferred]
            self._look_here(mine, since_ns if strategy.kind != "best" else 0)

    def _look_here(self, mine: Iterable[Union], since_ns: int) -> None:
        """The saves on this disk that are newer; the newest of them will do, unless their values count."""
        stored = {candidate.digest for candidate in self.found if candidate.committed}
        for union in mine:
            if union.end_ns <= since_ns:
                break
            if self._stock.commit_of(union) in stored:
                continue
            index = self._indexes.get(union.step)
            why = self._history.against(union, index, forced=self._forced) if self._history is not None else ""
            if why:
                self.skipped.append((union.step, why))
                continue
            value = self._stock.value_of(union, self._values.said) if self._strategy.metric else None
            digest = union.commit.digest
            candidate = Candidate(union.step, union.end_ns, False, value, "", len(union.files), digest)
            self.found.append(candidate)
            self._unions[candidate] = union
            if self._strategy.kind != "best":
                break

    def union_of(self, candidate: Candidate) -> Union | None:
        """The files of a candidate; None = it is not there any more."""
        if candidate in self._unions:
            return self._unions[candidate]
        history = self._history
        assert history is not None, "only commits are read again"
        index, condemned = self._indexes[candidate.step], history.remote.condemned()
        union, why = check_commit(
            history.remote, index, candidate.digest, history.layout_of, condemned, window_ns=history.window_ns
        )
        if union is None:
            self.skipped.append((candidate.step, why))
        return union


def _why_partial(index: StepIndex) -> str:
    return f"not committed ({len(index.ready)} of {len(index.parts)} known parts are ready)"


def wanted_indexes(remote: Remote, step: int | None, max_step: int | None) -> dict[int, StepIndex]:
    """What the store holds of the steps that are asked for, by one list."""
    if step is None:
        return {n: index for n, index in remote.index_all().items() if max_step is None or n <= max_step}
    if keys.parse_step(f"{step:012d}") is None or (max_step is not None and step > max_step):
        return {}
    index = remote.index(step)
    return {step: index} if index.parts or index.ready or index.commits else {}
