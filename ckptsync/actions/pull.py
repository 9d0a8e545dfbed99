"""Bringing a step back: choose, plan, and do it, all under the run's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

from ckptsync.actions.push import LOCK_S, settle_local
from ckptsync.app import Node
from ckptsync.disk import durable
from ckptsync.disk.scan import scan
from ckptsync.disk.stage import Staging
from ckptsync.errors import ConfigError, UsageError
from ckptsync.layouts import registry
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import Union
from ckptsync.model.step import Listing, LocalState
from ckptsync.sync.choose import Choice, choose, local_unions
from ckptsync.sync.pull import Place, PullPlan, PullResult, plan_pull
from ckptsync.sync.remote import Remote
from ckptsync.sync.restore import Transfer

__all__ = ["Planned", "pull_step"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A pull that is planned; `execute` does it. The run's lock is held around both."""

    node: Node
    remote: Remote
    plan: PullPlan
    elsewhere: bool

    def execute(self, progress: Callable[[int], None]) -> PullResult:
        """Do it. Raises as `PullPlan.execute`."""
        node = self.node
        result = self.plan.execute(
            self.remote,
            None if self.elsewhere else node.saves,
            stamp=datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ"),
            transfer=Transfer(workers=node.pull_workers, progress=progress),
            trainer_path=node.trainer_path,
        )
        if not self.elsewhere:
            node.saves.pulled(result.step)
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
        UsageError: `dest` lies inside output_dir.
        NothingToResume, StoreError, ConflictError, ConfigError.
    """
    configured = node.config.run.output_dir
    if dest is not None and os.path.commonpath(
        [os.path.realpath(dest), os.path.realpath(configured)]
    ) == os.path.realpath(configured):
        why, remedy = "it lies inside output_dir", "leave --dest out to restore in place, or name another directory"
        raise UsageError("cannot restore there", where=dest, why=why, remedy=remedy)
    durable.make_dirs(configured)
    lock = node.lock()
    lock.acquire(LOCK_S, waiting=say)
    try:
        yield _plan(node, step=step, max_step=max_step, dest=dest, keep_newer=keep_newer, say=say)
    finally:
        lock.release()


def _plan(
    node: Node,
    *,
    step: int | None,
    max_step: int | None,
    dest: str | None,
    keep_newer: bool,
    say: Callable[[str], None],
) -> Planned:
    local, layout, remote = node.recognise(), node.layout, node.remote(create=False)
    offset_ns = remote.clock_offset_ns(node.config.node.name) if remote.run_id else 0
    own: tuple[Listing, ...] = ()
    unions: list[Union] = []
    if local is not None and layout is not None:
        views = settle_local(local)
        own = tuple(view.listing for view in views)
        mine = {view.step: view.listing for view in views if view.state is LocalState.VERIFIED}
        if dest is None:
            unions = local_unions(local.known, mine, layout, window_ns=node.window_ns, offset_ns=offset_ns)
    choice = choose(remote, unions, node.layout_of(), step=step, max_step=max_step, window_ns=node.window_ns)
    layout = _layout_of(node, choice)
    output_dir = os.path.abspath(dest) if dest else _home(node, choice)
    durable.make_dirs(output_dir)
    at_home = output_dir == node.output_dir
    staging = node.staging if at_home else Staging(output_dir)
    staging.repair()
    pointer = node.pointer(layout, staging, output_dir, elsewhere=dest is not None)
    if pointer is not None and (obstacle := pointer.obstacle()) is not None:
        say(f"latest is not written: {obstacle}")
        pointer = None
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
        offset_ns=offset_ns,
    )
    return Planned(node, remote, made, dest is not None)


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
