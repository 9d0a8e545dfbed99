"""`retain`: what is kept and what goes, here and in the store, with all reasons; and, if it may, its deletion here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ckptsync.actions.overview import look_once
from ckptsync.actions.push import LOCK_S
from ckptsync.app import Node
from ckptsync.daemon.inquiry import last_answer, remember
from ckptsync.daemon.retention import delete_row, untold
from ckptsync.daemon.retention_plan import LocalPlan, LocalRow, Planner, commit_of
from ckptsync.disk.trash import Trash
from ckptsync.errors import CkptsyncError, StepChanged
from ckptsync.model.retention import RemoteFacts, Verdict, condemned
from ckptsync.sync.local import LocalSteps
from ckptsync.sync.remote import Remote, StepIndex
from ckptsync.sync.retain import Answer, Told, ask, look, policies_of, read_commits, remote_verdicts

__all__ = ["RemoteRow", "Retained", "retain"]


@dataclass(frozen=True, slots=True)
class RemoteRow:
    """A commit, what becomes of it, and the stored bytes that its collection gives back."""

    facts: RemoteFacts
    verdict: Verdict
    bytes: int


@dataclass(frozen=True, slots=True)
class Retained:
    """What was judged, and what was done.

    Attributes:
        local: the verdicts on this disk; None where there is no step yet.
        remote: ascending by step number and save time; empty if the store was not asked.
        deleted: the rows whose step directories were deleted here.
        problems: for people; why something that goes is still there, among others.
    """

    local: LocalPlan | None
    remote: tuple[RemoteRow, ...]
    deleted: tuple[LocalRow, ...] = ()
    problems: list[str] = field(default_factory=list)


def retain(node: Node, *, dry_run: bool, with_remote: bool, say: Callable[[str], None]) -> Retained:
    """Judge everything, and delete here what goes if the configuration lets it. Nothing is deleted in the store.

    Args:
        node: this node.
        dry_run: delete nothing.
        with_remote: ask the store; without it nothing goes but what must give way on a full disk.
        say: told that, and for whom, we wait.

    Raises:
        StoreError: the store was to be asked, and does not answer; nothing was deleted.
        ConfigError, CkptsyncError: output_dir or the disk cannot be used.
    """
    local = node.recognise()
    remote = node.remote(create=False) if with_remote else None
    planner = Planner(node, measure=True)
    answer = last_answer(node.config.state_dir)
    rows: tuple[RemoteRow, ...] = ()
    if remote is not None:
        told, indexes = _look(node, planner, local, remote), remote.index_all()
        if local is not None:
            answer = _ask(node, planner, local, remote, told, indexes, answer)
        rows = _remote_rows(node, local, remote, told, indexes)
    if local is None:
        return Retained(None, rows)
    return _here(node, planner, local, answer, rows, confirmed=remote is not None, dry_run=dry_run, say=say)


def _look(node: Node, planner: Planner, local: LocalSteps | None, remote: Remote) -> Told:
    """What the store tells, once it has been told what waits here."""
    for note in untold(node, planner, local) if local is not None else ():
        planner.waiting.tell(remote, note.name, note.save.part, note.digest, committed=note.committed)
    best = node.config.retention.remote.keep_best
    metrics = {planner.metric, best.metric if best else ""}
    return look(remote, node.layout_of(), window_ns=node.window_ns, metrics=metrics)


def _ask(
    node: Node,
    planner: Planner,
    local: LocalSteps,
    remote: Remote,
    told: Told,
    indexes: Mapping[int, StepIndex],
    before: Answer | None,
) -> Answer:
    """What the store says of everything here. The run's lock is not held: it may take its time."""
    plan = planner.plan(local, look_once(node, local), before, now_ns=time.time_ns())
    answer = ask(
        remote,
        planner.questions(plan),
        node.layout_of(),
        told,
        window_ns=node.window_ns,
        metric=planner.metric,
        values={},
        indexes=indexes,
    )
    remember(node.config.state_dir, answer)
    return answer


def _here(
    node: Node,
    planner: Planner,
    local: LocalSteps,
    answer: Answer | None,
    rows: tuple[RemoteRow, ...],
    *,
    confirmed: bool,
    dry_run: bool,
    say: Callable[[str], None],
) -> Retained:
    trash = Trash(node.staging, node.output_dir)
    lock = node.lock()
    if not dry_run:
        lock.acquire(LOCK_S, waiting=say)
    try:
        local.catch_up()
        views = look_once(node, local)
        plan = planner.plan(local, views, answer, now_ns=time.time_ns(), returning=trash.returning)
        found = Retained(plan, rows, (), plan.problems)
        if plan.delete and not dry_run:
            gone: list[LocalRow] = []
            for row in plan.going:
                short = plan.still_short(sum(each.facts.bytes for each in gone))
                if _delete(node, trash, row, answer if confirmed else None, found, short=short):
                    gone.append(row)
            found = Retained(plan, rows, tuple(gone), found.problems)
    finally:
        lock.release()
    if not dry_run:
        trash.empty_beside()
        trash.wait()
    return found


def _delete(node: Node, trash: Trash, row: LocalRow, answer: Answer | None, found: Retained, *, short: bool) -> bool:
    commit = commit_of(node, row.save) if row.save is not None else ""
    if not row.policy.keep and row.save is not None:
        if answer is None and not short:
            found.problems.append(f"step {row.facts.step} stays: the store was not asked what is pinned")
            return False
        if answer is not None and commit and commit not in answer.there:
            found.problems.append(f"step {row.facts.step} stays: it was committed while the store was asked")
            return False
    try:
        delete_row(node, trash, row)
    except (StepChanged, CkptsyncError) as error:
        found.problems.append(str(error))
        return False
    return True


def _remote_rows(
    node: Node, local: LocalSteps | None, remote: Remote, told: Told, indexes: Mapping[int, StepIndex]
) -> tuple[RemoteRow, ...]:
    policies = policies_of(node.config.retention.remote)
    step = node.saves.pulled_step()
    known = local.known if local is not None else node.saves.load()
    commits = read_commits(
        remote,
        node.layout_of(),
        told,
        window_ns=node.window_ns,
        metric=policies.best.metric if policies.best else "",
        resumed={save.commit for save in known if save.commit and save.part.step == step},
        indexes=indexes,
    )
    verdicts = remote_verdicts(commits, policies, time.time_ns())
    going = condemned(verdicts)
    sizes = commits.bytes_of(remote, {facts.save for facts in commits.facts} - going)
    rows = [
        RemoteRow(facts, verdicts[facts.step, facts.save], size)
        for facts, size in zip(commits.facts, sizes, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (row.facts.step, row.facts.end_ns, row.facts.save)))
