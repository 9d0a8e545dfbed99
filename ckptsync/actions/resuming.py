"""The step that a start resumes from, with the arguments that say so: what a pull brings, or what lies here already."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from ckptsync.actions.flush import settled
from ckptsync.actions.launched import ALONE
from ckptsync.actions.pull import PullOptions, pull_step
from ckptsync.actions.whole import value_here
from ckptsync.app import Node
from ckptsync.daemon.retention_plan import commit_of
from ckptsync.disk.scan import is_absent
from ckptsync.errors import CheckpointError, NothingToResume, StoreError
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import unite
from ckptsync.model.selection import Candidate, Selected, Strategy, select
from ckptsync.model.step import LocalState
from ckptsync.sync.agree import Wait
from ckptsync.sync.choose import require_none_lost
from ckptsync.sync.history import History
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.pull import SCOPE_MARK

__all__ = ["From", "Terminal", "Wanted", "pulled", "step_here", "would_pull"]

_TOLD = 3
_PATIENCE_S, _ANSWER_S = 2.0, 3.0
"""For a store that is only asked whether something speaks against a step."""


class Terminal(Protocol):
    """Where a command tells people what it does."""

    def say(self, line: str) -> None:
        """A line."""

    def waiting(self, wait: Wait) -> None:
        """A wait for other nodes."""

    def progress(self, total: int, label: str) -> AbstractContextManager[Callable[[int], None]]:
        """Bytes to come; gives what is told those that have."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which step.

    Attributes:
        step: this one and no other.
        max_step: none above it.
        keep_newer: refuse instead of moving newer steps aside.
        pulling: how to pull; `pulling.select` also without a pull.
    """

    step: int | None = None
    max_step: int | None = None
    keep_newer: bool = False
    pulling: PullOptions = field(default_factory=PullOptions)


@dataclass(frozen=True, slots=True)
class From:
    """What a start resumes from.

    Attributes:
        step: its number.
        path: its directory here.
        arguments: what to give the trainer; empty: its layout has none.
        commit: its digest; "" = it is not committed, as far as is known here.
    """

    step: int
    path: str
    arguments: tuple[str, ...]
    commit: str = ""


def pulled(node: Node, wanted: Wanted, terminal: Terminal) -> From | None:
    """Bring a step back; None = there is nothing to resume from, on any node. Raises as `pull_step`."""
    options = replace(wanted.pulling, waiting=terminal.waiting)
    try:
        with pull_step(
            node,
            step=wanted.step,
            max_step=wanted.max_step,
            dest=None,
            keep_newer=wanted.keep_newer,
            say=terminal.say,
            options=options,
        ) as planned:
            for line in planned.plan.describe():
                terminal.say(line)
            union, commit = planned.plan.choice.union, planned.plan.choice.commit
            with terminal.progress(planned.plan.target.size, f"pull step {union.step}") as advance:
                result = planned.execute(advance)
    except NothingToResume as error:
        if wanted.step is not None:
            raise
        terminal.say(str(error))
        return None
    return From(result.step, result.path, tuple(result.resume_args), commit)


def would_pull(node: Node, wanted: Wanted, terminal: Terminal) -> From | None:
    """What a pull of this node alone would bring; nothing is restored. Raises as `pull_step`."""
    options = replace(wanted.pulling, launch=ALONE, avoid=())
    try:
        with pull_step(
            node,
            step=wanted.step,
            max_step=wanted.max_step,
            dest=None,
            keep_newer=False,
            say=terminal.say,
            options=options,
        ) as planned:
            plan = planned.plan
            path = os.path.join(plan.place.output_dir, plan.name)
            arguments = tuple(plan.layout.resume_args(node.trainer_path(path)))
            return From(plan.choice.union.step, path, arguments, plan.choice.commit)
    except NothingToResume:
        if wanted.step is not None:
            raise
        return None


def step_here(node: Node, wanted: Wanted, say: Callable[[str], None]) -> From | None:
    """The step on this disk that is resumed from without a pull: verified, whole as far as can be known; None = none.

    What a roll-back has left, or what is marked as bad, is not taken, as long as the store can be asked.

    Raises:
        CheckpointError: the step that was asked for is not here, or not whole.
        PreflightError: only what the strategy never takes is here; to begin from the start would lose it.
        ConfigError: output_dir cannot be read.
    """
    if is_absent(node.config.run.output_dir):
        return None
    local = node.recognise()
    if local is None or node.layout is None:
        return None
    here = [view for view in settled(node, local, lambda: False, say) if _is_wanted(view, wanted)]
    views = [view for view in here if _is_sound(node, local, view)]
    _tell_of_unsound(here, views, say)
    said = _against(node, node.layout, views, forced=wanted.step is not None, say=say) if views else {}
    strategy = wanted.pulling.select
    found = [_Here(view, _candidate(node, view, strategy, said)) for view in views]
    selected = select(strategy, [each.candidate for each in found])
    if selected is None:
        _refuse(node, wanted, found)
        require_none_lost(strategy, [each.candidate for each in found], node.output_dir)
        return None
    return _taken(node, node.layout, found, selected, strategy, say)


@dataclass(frozen=True, slots=True)
class _Here:
    view: StepView
    candidate: Candidate


def _is_sound(node: Node, local: LocalSteps, view: StepView) -> bool:
    save = view.save
    return save is not None and local.whole(save) and node.saves.mark_of(save, SCOPE_MARK) is None


def _tell_of_unsound(here: Sequence[StepView], sound: Sequence[StepView], say: Callable[[str], None]) -> None:
    """Steps above the highest sound one: who goes on from an older one, or from the start, should know why."""
    highest = max((view.step for view in sound), default=-1)
    above = [view for view in here if view.step > highest and view.state is not LocalState.PRUNED]
    for view in above[-_TOLD:]:
        why = str(view.problems[0]) if view.problems else "it is not whole here"
        say(f"step {view.step} here is not taken: {view.state.value}: {why}")


def _is_wanted(view: StepView, wanted: Wanted) -> bool:
    return (
        (wanted.step is None or view.step == wanted.step)
        and (wanted.max_step is None or view.step <= wanted.max_step)
        and view.step not in wanted.pulling.avoid
    )


def _candidate(node: Node, view: StepView, strategy: Strategy, said: Mapping[str, str]) -> Candidate:
    save = view.save
    assert save is not None, "it is verified"
    commit = commit_of(node, save) or ""
    value = value_here(node, save, view.listing, strategy.metric)
    return Candidate(view.step, view.end_ns, bool(commit), value, said.get(view.name, ""), len(save.stats), commit)


def _against(
    node: Node, layout: Layout, views: Sequence[StepView], *, forced: bool, say: Callable[[str], None]
) -> Mapping[str, str]:
    """What the store says against steps, by their names; where it does not answer soon, nothing, and that is said."""
    found: dict[str, str] = {}
    failed: list[str] = []

    def ask() -> None:
        try:
            found.update(_asked(replace(node, patience_s=_PATIENCE_S), layout, views, forced=forced))
        except StoreError as error:
            failed.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    if failed or thread.is_alive():
        why = failed[0] if failed else f"the store has not answered within {_ANSWER_S:g} s"
        say(f"nobody was asked whether a step here was rolled back, or marked as bad: {why}")
    return dict(found)


def _asked(node: Node, layout: Layout, views: Sequence[StepView], *, forced: bool) -> Mapping[str, str]:
    remote = node.remote(create=False)
    if not remote.run_id:
        return {}
    history = History(remote, node.layout_of(), node.window_ns).refresh()
    offset_ns = remote.clock_offset_ns(node.config.node.name)
    found = {}
    for view in views:
        assert view.save is not None, "it is verified"
        part = view.save.part
        if commit_of(node, view.save) in history.bad:
            found[view.name] = "its commit is marked as bad"
        else:
            union = unite([part], part.saved_ns, layout, window_ns=node.window_ns)
            index = remote.index(view.step) if history.bad else None  # the same bytes may be bad under another name
            found[view.name] = history.against(replace(union, end_ns=part.saved_ns + offset_ns), index, forced=forced)
    return found


def _refuse(node: Node, wanted: Wanted, found: Iterable[_Here]) -> None:
    """Where a step was asked for, its absence is no reason to begin from the start."""
    if wanted.step is not None:
        why = next((each.candidate.out for each in found), "") or "it is not here, or not verified and whole"
        remedy = "`ckptsync steps` shows what is there; --pull brings it"
        raise CheckpointError(
            f"step {wanted.step} cannot be resumed from", where=node.output_dir, why=why, remedy=remedy
        )


def _taken(
    node: Node,
    layout: Layout,
    found: Iterable[_Here],
    selected: Selected[Candidate],
    strategy: Strategy,
    say: Callable[[str], None],
) -> From:
    if selected.fallback:
        say(f"--select {strategy}: {selected.fallback}")
    view = next(each.view for each in found if each.candidate is selected.candidate)
    path = os.path.join(node.output_dir, view.name)
    return From(view.step, path, tuple(layout.resume_args(node.trainer_path(path))), selected.candidate.digest)
