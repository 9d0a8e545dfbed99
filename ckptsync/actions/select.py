"""`select`: the step that a pull of this node would take, why, and why none of the others. Restores nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from ckptsync.actions.overview import look_once
from ckptsync.actions.push import LOCK_S, settle_local
from ckptsync.actions.whole import WholeHere, whole_here
from ckptsync.app import Node
from ckptsync.config import Config
from ckptsync.errors import UsageError
from ckptsync.model.rounds import Limits
from ckptsync.model.selection import NEWEST, Candidate, Selected, Strategy, parse_strategy, reason_against
from ckptsync.model.step import LocalState
from ckptsync.sync.candidates import why_partial
from ckptsync.sync.choose import Looked, Stock, look_over
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.remote import LATER_NS, Remote

__all__ = ["Alternative", "Selection", "select_step", "strategy_of"]

_EXPLAINED_MAX = 8
"""Steps without a commit whose parts are read, to say what they lack."""
_PROBLEMS_MAX = 3
"""Of a step directory: what is missing may only be old, which the next problem says."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A save that was not selected, or a step directory that is none.

    Attributes:
        step: its number.
        reason: why it was not, for people.
        commit: its digest; "" = it is not committed, or there was no need to read it.
        saved_ns: when it ended, store time; None = not known, or not read.
        value: the metric that is asked for; None = not known.
    """

    step: int
    reason: str
    commit: str = ""
    saved_ns: int | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What was selected.

    Attributes:
        strategy: by which strategy.
        selected: the save, and why; None = nothing can be resumed from.
        alternatives: the others, the highest number first.
    """

    strategy: Strategy
    selected: Selected[Candidate] | None
    alternatives: tuple[Alternative, ...]
    _looked: Looked
    _remote: Remote

    def refuse(self) -> NoReturn:
        """Raises what a pull raises where nothing was selected: NothingToResume, PreflightError."""
        self._looked.refuse(Limits(select=self.strategy), self._remote)


def strategy_of(config: Config, given: str | None, *, step: int | None = None) -> Strategy:
    """By which strategy a step is selected.

    Args:
        config: [pull] select.
        given: --select.
        step: --step: a step by its number needs no strategy.

    Raises:
        UsageError: both are given, or --select has no meaning.
    """
    if given is not None and step is not None:
        raise UsageError("--step and --select exclude each other", remedy="keep one of them")
    if step is not None:
        return NEWEST
    try:
        return parse_strategy(config.pull.select if given is None else given)
    except ValueError as error:
        raise UsageError("--select has no meaning", why=str(error)) from None


def select_step(node: Node, strategy: Strategy, *, say: Callable[[str], None]) -> Selection:
    """Select as a pull of this node alone does. Complete steps that nobody has verified yet are verified first.

    Args:
        node: this node.
        strategy: which step.
        say: told that, and for whom, we wait.

    Raises:
        StoreError: the store cannot be read. That is never "no checkpoints".
        ConfigError, CkptsyncError: output_dir cannot be used.
    """
    local, remote = node.recognise(), node.remote(create=False)
    views = _look(node, local, say) if local is not None else ()
    offset_ns = remote.clock_offset_ns(node.config.node.name) if remote.run_id and views else 0
    mine = whole_here(node, views, offset_ns, strategy.metric)
    stock = Stock(remote, node.layout_of(), node.window_ns, mine.unions, mine.value_of, mine.commit_of)
    looked = look_over(stock, Limits(select=strategy))
    once = _only_here(mine, looked)
    found = [*_stored(node, remote, looked, strategy, once), *_here(views, mine, looked, strategy, once)]
    found.sort(key=lambda each: (each.step, each.saved_ns or 0, each.commit), reverse=True)
    return Selection(strategy, looked.selected, tuple(dict.fromkeys(found)), looked, remote)


def _look(node: Node, local: LocalSteps, say: Callable[[str], None]) -> tuple[StepView, ...]:
    views = look_once(node, local)
    if not any(view.state in (LocalState.COMPLETE, LocalState.SETTLING) for view in views):
        return views
    lock = node.lock()
    lock.acquire(LOCK_S, waiting=say)
    try:
        return settle_local(local, say=say)
    finally:
        lock.release()


def _against(strategy: Strategy, looked: Looked, candidate: Candidate) -> Alternative:
    return Alternative(
        candidate.step,
        reason_against(strategy, looked.selected, candidate),
        candidate.digest if candidate.committed else "",
        candidate.end_ns or None,
        candidate.value,
    )


def _stored(
    node: Node, remote: Remote, looked: Looked, strategy: Strategy, once: Collection[int]
) -> Iterator[Alternative]:
    """What was read, what must not be taken, and what there was no need to read. `once`: as `_only_here` says."""
    chosen = looked.selected.candidate if looked.selected is not None else None
    for candidate in looked.found:
        if candidate is not chosen:
            yield _against(strategy, looked, candidate)
    explained = _explain(node, remote, looked)
    for step, why in looked.skipped:
        if step not in once:
            yield Alternative(step, explained.get(step, why))
    known = {candidate.step for candidate in looked.found} | {step for step, _ in looked.skipped}
    for step, index in looked.indexes.items():
        if step not in known and step not in once:
            yield replace(_against(strategy, looked, Candidate(step, 0)), commit=max(index.commits, default=""))


def _explain(node: Node, remote: Remote, looked: Looked) -> dict[int, str]:
    """What steps without a commit lack; only of those that may be newer than what was selected."""
    since_ns = looked.selected.candidate.end_ns - LATER_NS if looked.selected is not None else 0
    late = [
        (index.parts_ns, step)
        for step, index in looked.indexes.items()
        if not index.commits and index.parts_ns is not None and index.parts_ns >= since_ns
    ]
    rules = node.layout_of()
    return {
        step: why_partial(remote, looked.indexes[step], rules, window_ns=node.window_ns)
        for _, step in sorted(late, reverse=True)[:_EXPLAINED_MAX]
    }


def _only_here(mine: WholeHere, looked: Looked) -> frozenset[int]:
    """The steps that are whole on this disk, and of which the store has parts alone: each is one save, not two."""
    reasons = Counter(step for step, _ in looked.skipped)  # a second one is about the save here
    whole = {union.step for union in mine.unions}
    return frozenset(
        step for step, index in looked.indexes.items() if step in whole and not index.commits and reasons[step] == 1
    )


def _here(
    views: Iterable[StepView], mine: WholeHere, looked: Looked, strategy: Strategy, once: Collection[int]
) -> Iterator[Alternative]:
    """The step directories that are no whole saves, and those that there was no need to compare."""
    known = {candidate.step for candidate in looked.found} | {step for step, _ in looked.skipped if step not in once}
    whole = {union.step: union for union in mine.unions}
    for view in views:
        stored = view.step in looked.indexes and view.step not in once
        if view.state is not LocalState.VERIFIED:
            problems = "; ".join(map(str, view.problems[:_PROBLEMS_MAX]))
            yield Alternative(view.step, f"{view.state.value} here{problems and f': {problems}'}")
        elif view.step in whole and view.step not in known and not stored:
            union = whole[view.step]
            yield _against(strategy, looked, Candidate(view.step, union.end_ns, committed=False))
        elif view.step not in whole and not stored:
            yield Alternative(view.step, "verified here, but whole only with what other nodes have")
