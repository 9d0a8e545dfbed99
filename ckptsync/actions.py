"""What the commands do, as functions of a node: no printing, no parsing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from ckptsync.app import Node
from ckptsync.daemon.status import summary
from ckptsync.disk import durable
from ckptsync.disk.assess import assess, look_around
from ckptsync.disk.scan import list_step, scan, unreadable
from ckptsync.disk.stage import Staging
from ckptsync.disk.verify import inspect_step, read_step
from ckptsync.errors import CheckpointError, ConfigError, StepChanged, UsageError
from ckptsync.layouts import registry
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import Union
from ckptsync.model.step import Level, Listing, LocalState, Problem, RemoteState
from ckptsync.sync.choose import Choice, choose, local_unions
from ckptsync.sync.examine import DeepLimits, deep_problems, missing_files, restrict, structure_problems
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.pull import Place, PullPlan, PullResult, plan_pull
from ckptsync.sync.push import Pushed, push
from ckptsync.sync.remote import StepIndex
from ckptsync.sync.restore import Transfer

__all__ = [
    "Planned",
    "StepRow",
    "Verdict",
    "Waited",
    "check_status",
    "newest_step",
    "pull_step",
    "push_step",
    "rows",
    "status_report",
    "verify_path",
    "wait_for",
]

_LOCK_S = 7 * 86400.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `verify`."""

    step: int | None
    layout: str
    level: Level
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    bytes: int

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems


def verify_path(
    path: str,
    *,
    level: Level,
    deep: DeepLimits,
    window_ns: int,
    layout_name: str = "auto",
    part: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Judge the step directory at `path` (a link is followed): the whole step, or with `part` this node's share.

    Raises:
        CheckpointError: it is not a step directory, or it changes while it is read.
    """
    path = os.path.realpath(path)
    name = os.path.basename(path)
    listing = list_step(path)
    layout = (
        registry.load(layout_name, [name]) if layout_name != "auto" else registry.detect({name: tuple(listing.files)})
    )
    if layout is None and layout_name == "auto":
        layout = next((each for each in map(registry.load, registry.names()) if each.step_of(name) is not None), None)
    if layout is None or layout.step_of(name) is None:
        remedy = f"name a step directory, or give its layout with --layout ({', '.join(registry.names())})"
        raise CheckpointError(
            "not a step directory", where=path, why="no layout knows its name and files", remedy=remedy
        )
    listing = list_step(path, ignored=layout.ignored)
    problems = _problems(listing, layout, level, deep, window_ns, part=part, progress=progress)
    size = sum(stat.size for stat in listing.files.values())
    return Verdict(layout.step_of(name), layout.name, level, tuple(problems), listing.warnings, size)


def _problems(
    listing: Listing,
    layout: Layout,
    level: Level,
    deep: DeepLimits,
    window_ns: int,
    *,
    part: bool,
    progress: Callable[[int], None] | None,
) -> list[Problem]:
    siblings = scan(os.path.dirname(listing.path), layout)
    index = next((i for i, other in enumerate(siblings) if other.name == listing.name), None)
    beside = siblings if index is not None else (listing,)
    around = look_around(beside, index or 0, layout, seen={})
    verdict = assess(listing, layout, around, window_ns=window_ns)
    if verdict.state is LocalState.PRUNED:
        return [Problem("", "pruned", "the trainer deleted its shards, nothing can be resumed from it")]
    denied = list(unreadable(listing))
    if denied:
        return denied
    mine = restrict(listing, verdict.paths)
    inspection = inspect_step(mine)
    found = [*verdict.problems, *structure_problems(mine, layout, inspection, root=listing.path)]
    if not part:
        found += missing_files(mine, layout, inspection)
    if level is not Level.STRUCTURE and not found:
        found += read_step(mine, inspection, progress=progress).problems
    if level is Level.DEEP and not found:
        found += [p for p in deep_problems(listing.path, tuple(mine.files), deep) if p.code != "skipped"]
    return list(dict.fromkeys(found))


def settle_local(local: LocalSteps) -> tuple[StepView, ...]:
    """Look until no step is inside `settle`, and verify what is complete: for commands that run without a daemon."""
    while True:
        views = [_take_if_complete(local, view) for view in local.look(time.monotonic())]
        if not any(view.state is LocalState.SETTLING for view in views):
            return tuple(views)
        time.sleep(_POLL_S)


def _take_if_complete(local: LocalSteps, view: StepView) -> StepView:
    return local.take(view) if view.state is LocalState.COMPLETE else view


def push_step(node: Node, step: int | None, *, progress: Callable[[int], None]) -> Pushed:
    """Push the newest verified step, or `step`, now, whatever is due.

    Raises:
        CheckpointError: there is no such step, or it is broken or incomplete.
    """
    local = node.recognise()
    if local is None or node.layout is None:
        raise CheckpointError("no step to push", where=node.output_dir, why="there is no step directory yet")
    lock = node.lock()
    lock.acquire(_LOCK_S, waiting=_tell_stderr)
    try:
        view = _pick(settle_local(local), step, node.output_dir)
        assert view.save is not None, "a verified view has its save"
        local.saves.mark(view.save, "due", "pushed by hand")
        staged = node.staging.stage(view.listing)
        local.saves.mark(view.save, "staged", staged.key)
    finally:
        lock.release()
    root, options = staged.listing.path, node.push_options
    pushed = push(view.save, root, node.remote(), node.saves, node.layout, options, progress=progress)
    node.staging.release(staged.key)
    local.saves.unmark(view.save, "staged")
    local.restat(view.save)
    return pushed


def _tell_stderr(line: str) -> None:
    print(f"ckptsync: {line}", file=sys.stderr)  # noqa: T201 - a person or a script's log waits with us


def _pick(views: Sequence[StepView], step: int | None, where: str) -> StepView:
    verified = [view for view in views if view.state is LocalState.VERIFIED and view.save is not None]
    if step is None:
        newest = max(verified, key=lambda view: view.save.part.saved_ns if view.save else 0, default=None)
        if newest is None:
            raise CheckpointError("no verified step to push", where=where, why=_first_reason(views))
        return newest
    view = next((view for view in views if view.step == step), None)
    if view is None:
        raise CheckpointError(f"there is no step {step}", where=where, remedy="`ckptsync steps` shows what is there")
    if view not in verified:
        raise CheckpointError(f"step {step} is {view.state.value}", where=view.listing.path, why=_first_reason([view]))
    return view


def _first_reason(views: Sequence[StepView]) -> str:
    return next((str(problem) for view in reversed(views) for problem in view.problems), "")


# -- pull


@dataclass(frozen=True, slots=True)
class Planned:
    """A pull that is planned; `execute` does it. The run's lock is held around both."""

    node: Node
    plan: PullPlan
    elsewhere: bool

    def execute(self, progress: Callable[[int], None]) -> PullResult:
        """Do it. Raises as `PullPlan.execute`."""
        node = self.node
        result = self.plan.execute(
            node.remote(),
            None if self.elsewhere else node.saves,
            stamp=datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ"),
            transfer=Transfer(workers=node.config.upload.workers, progress=progress),
            trainer_path=node.trainer_path,
        )
        if not self.elsewhere:
            durable.publish(os.path.join(node.config.state_dir, "pulled"), str(result.step).encode())
        return result


@contextmanager
def pull_step(
    node: Node,
    *,
    step: int | None,
    max_step: int | None,
    dest: str | None,
    keep_newer: bool,
    say: Callable[[str], None],
) -> Iterator[Planned]:
    """Choose a step and plan its restore, under the run's lock.

    Args:
        node: this node.
        step: this one and no other.
        max_step: none above it.
        dest: restore there instead of into output_dir.
        keep_newer: refuse instead of moving newer steps aside.
        say: told that, and for whom, we wait.

    Raises:
        NothingToResume, StoreError, ConflictError, ConfigError.
    """
    durable.make_dirs(node.config.run.output_dir)
    lock = node.lock()
    lock.acquire(_LOCK_S, waiting=say)
    try:
        yield _plan(node, step=step, max_step=max_step, dest=dest, keep_newer=keep_newer)
    finally:
        lock.release()


def _plan(node: Node, *, step: int | None, max_step: int | None, dest: str | None, keep_newer: bool) -> Planned:
    local, layout = node.recognise(), node.layout
    own: tuple[Listing, ...] = ()
    unions: list[Union] = []
    if local is not None and layout is not None:
        views = settle_local(local)
        own = tuple(view.listing for view in views)
        mine = {view.step: view.listing for view in views if view.state is LocalState.VERIFIED}
        unions = local_unions(local.known, mine, layout, node.window_ns) if dest is None else []
    choice = choose(node.remote(), unions, node.layout_of(), step=step, max_step=max_step, window_ns=node.window_ns)
    layout = _layout_of(node, choice)
    output_dir = os.path.abspath(dest) if dest else _home(node, choice)
    durable.make_dirs(output_dir)
    at_home = output_dir == node.output_dir
    staging = node.staging if at_home else Staging(output_dir)
    staging.repair()
    pointer = node.pointer(layout, staging, output_dir, elsewhere=dest is not None)
    made = plan_pull(
        choice,
        layout,
        Place(output_dir, staging, pointer),
        listings=own if at_home else scan(output_dir, layout),
        saves=local.known if local is not None else [],
        content={listing.name: listing for listing in own},
        content_dir=node.output_dir,
        dropped=node.dropped(),
        keep_newer=keep_newer,
    )
    return Planned(node, made, dest is not None)


def _layout_of(node: Node, choice: Choice) -> Layout:
    part = next(iter(choice.union.parts.values()))
    if node.config.run.layout not in ("auto", part.layout):
        raise ConfigError(
            "the step has another layout",
            where=f"step {choice.union.step}",
            why=f"it was saved as {part.layout}, the configuration says {node.config.run.layout}",
            remedy="correct [run] layout",
        )
    return registry.load(part.layout, [part.name])


def _home(node: Node, choice: Choice) -> str:
    """Where steps lie: as recognised here, else where they lay below the configured output_dir when they were saved."""
    if node.local is not None:
        return node.output_dir
    below = next(iter(choice.union.parts.values())).below
    return os.path.join(node.config.run.output_dir, below) if below else node.config.run.output_dir


# -- steps


@dataclass(frozen=True, slots=True)
class StepRow:
    """A line of `steps`."""

    step: int
    local: LocalState
    remote: RemoteState
    latest: bool
    reasons: tuple[str, ...]
    bytes: int


def rows(node: Node, *, with_remote: bool = True) -> list[StepRow]:
    """Every step here and in the store, ascending.

    Raises:
        StoreError: the store cannot be listed.
    """
    local = node.recognise()
    views = look_once(node, local) if local is not None else ()
    latest = latest_name(node)
    remote = node.remote().index_all() if with_remote else {}
    by_step = {view.step: view for view in views}
    return [_row(by_step.get(step), remote.get(step), step, latest) for step in sorted({*by_step, *remote})]


def look_once(node: Node, local: LocalSteps) -> tuple[StepView, ...]:
    """One scan without the daemon's memory: quiet times come from mtimes, and complete steps get a structural check."""
    now_ns = time.time_ns()
    return tuple(_judge_unverified(node, local, view, now_ns) for view in local.look(time.monotonic()))


def _judge_unverified(node: Node, local: LocalSteps, view: StepView, now_ns: int) -> StepView:
    if view.state is not LocalState.SETTLING or view.assessment is None:
        return view
    newest = max((stat.mtime_ns for stat in view.listing.files.values()), default=0)
    if now_ns - newest < node.config.watch.settle * 10**9:
        return view
    mine = restrict(view.listing, view.assessment.paths)
    try:
        problems = structure_problems(mine, local.setup.layout, inspect_step(mine), root=view.listing.path)
    except StepChanged:
        return view
    state = LocalState.BROKEN if problems else LocalState.COMPLETE
    return StepView(view.step, view.listing, state, tuple(problems), None, view.assessment)


def latest_name(node: Node) -> str | None:
    """What `latest` names; None if nothing, or promotion is off."""
    if node.layout is None:
        return None
    pointer = node.pointer(node.layout, Staging(node.output_dir), node.output_dir)
    if pointer is None or pointer.obstacle() is not None:
        return None
    return pointer.current()


def _row(view: StepView | None, index: StepIndex | None, step: int, latest: str | None) -> StepRow:
    if index is None or not (index.parts or index.commits):
        remote = RemoteState.ABSENT
    else:
        remote = RemoteState.COMMITTED if index.commits else RemoteState.PARTIAL
    if view is None:
        return StepRow(step, LocalState.ABSENT, remote, latest=False, reasons=(), bytes=0)
    size = sum(stat.size for stat in view.listing.files.values())
    return StepRow(step, view.state, remote, view.name == latest, tuple(str(p) for p in view.problems), size)


def newest_step(node: Node) -> str:
    """Path of the newest step directory, for `verify` without a path.

    Raises:
        UsageError: there is none.
    """
    local = node.recognise()
    views = local.look(time.monotonic()) if local is not None else ()
    real = [view for view in views if view.state is not LocalState.PRUNED]
    newest = max(real, key=lambda v: max((s.mtime_ns for s in v.listing.files.values()), default=0), default=None)
    if newest is None:
        raise UsageError("nothing to verify", where=node.config.run.output_dir, why="there is no step directory")
    return newest.listing.path


# -- status and wait


def status_report(node: Node) -> dict[str, Any]:
    """The JSON of `status` (docs/commands.md)."""
    local = node.recognise()
    views = look_once(node, local) if local is not None else ()
    known = local.known if local is not None else []
    return summary(node, views, known, latest_name(node))


def check_status(report: Mapping[str, Any], *, max_age_s: float | None, max_lag: int | None) -> tuple[bool, str]:
    """Whether a report is fine, and one line that says so or what is wrong first."""
    remote, faults = report["remote"], []
    if not report["daemon"]["running"]:
        faults.append("the daemon is not running")
    if remote["committed"] is None:
        if max_age_s is not None or (max_lag is not None and (remote["lag_steps"] or 0) > max_lag):
            faults.append("no step is committed")
    else:
        if max_age_s is not None and remote["age_s"] > max_age_s:
            faults.append(
                f"the last commit (step {remote['committed']}) is {remote['age_s']:.0f} s old, limit {max_age_s:g} s"
            )
        if max_lag is not None and (remote["lag_steps"] or 0) > max_lag:
            faults.append(f"the store lags {remote['lag_steps']} steps behind, {max_lag} are allowed")
    disk = report["disk"]
    if disk["next_save"] is not None and disk["free"] < disk["next_save"]:
        faults.append(f"the next save needs about {disk['next_save']} bytes, {disk['free']} are free")
    if faults:
        hint = f" ({report['problems'][0]})" if report["problems"] else ""
        return False, "; ".join(faults) + hint
    return True, f"ok: step {remote['committed']} is committed, {remote['lag_steps'] or 0} steps behind"


@dataclass(frozen=True, slots=True)
class Waited:
    """What `wait` saw."""

    ok: bool
    step: int | None
    state: str
    message: str


def wait_for(node: Node, step: int | None, *, committed: bool, timeout_s: float | None) -> Waited:
    """Wait until the daemon has verified (or committed) a step: this one, or the newest there is."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wanted = "committed" if committed else "verified"
    while True:
        seen = _waited(node, step, committed=committed, wanted=wanted)
        if seen.ok or seen.state == LocalState.BROKEN.value:
            return seen
        if deadline is not None and time.monotonic() >= deadline:
            return replace(seen, message=f"not {wanted} after {timeout_s:g} s: {seen.message}")
        time.sleep(_POLL_S)


def _waited(node: Node, step: int | None, *, committed: bool, wanted: str) -> Waited:
    local = node.recognise()
    if local is None:
        return Waited(False, step, LocalState.ABSENT.value, "there is no step directory yet")
    local.refresh()
    views = [view for view in look_once(node, local) if view.state is not LocalState.PRUNED]
    newest = max(views, key=lambda v: max((s.mtime_ns for s in v.listing.files.values()), default=0), default=None)
    view = newest if step is None else next((view for view in views if view.step == step), None)
    save = view.save if view is not None else next((s for s in reversed(local.known) if s.part.step == step), None)
    number = view.step if view is not None else step
    if save is not None and (not committed or save.commit or local.saves.mark_of(save, "commit") is not None):
        return Waited(True, number, wanted, f"step {number} is {wanted}")
    if view is None:
        return Waited(False, number, LocalState.ABSENT.value, f"there is no step {step}")
    state = view.state.value
    why = f": {_first_reason([view])}" if view.problems else ""
    return Waited(False, number, state, f"step {number} is {state}{why}")
