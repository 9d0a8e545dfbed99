"""Bringing a step back: choose, plan, and do it, all under the run's lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptsync.actions.avoid import avoid
from ckptsync.actions.launched import ALONE, Launch
from ckptsync.actions.push import LOCK_S, settle_local
from ckptsync.actions.together import Together, limits_of
from ckptsync.actions.whole import whole_here
from ckptsync.app import Node
from ckptsync.disk import durable
from ckptsync.disk.lock import RunLock
from ckptsync.disk.scan import scan
from ckptsync.disk.stage import Staging
from ckptsync.errors import ConfigError, ConflictError, PreflightError, StoreError, UsageError
from ckptsync.layouts import registry
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import Union
from ckptsync.model.rounds import Limits
from ckptsync.model.scope import Ranks, parse_ranks, ranks_of, within, worlds
from ckptsync.model.selection import NEWEST, Strategy
from ckptsync.model.step import Listing
from ckptsync.peers.opening import open_exchange
from ckptsync.sync.agree import Terms, Wait
from ckptsync.sync.choose import Choice, Stock, choose
from ckptsync.sync.local import StepView
from ckptsync.sync.pull import Place, PullPlan, PullResult, plan_pull
from ckptsync.sync.remote import Remote
from ckptsync.sync.restore import Transfer
from ckptsync.units import format_duration

if TYPE_CHECKING:
    from ckptsync.peers.exchange import Exchange  # brings in aiohttp

__all__ = ["Planned", "PullOptions", "pull_step"]

_NS = 10**9
_SKEW_NS = 60 * _NS
_BEAT_S = 5.0

_SPARE_PORTS = 7  # above the one that the daemon listens at; docs/configuration.md names them


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How to pull, beyond which step.

    Attributes:
        launch: with how many nodes, in which attempt.
        timeout_s: for how long other nodes are waited for.
        waiting: told as long as they are.
        avoid: steps whose commit failed to load.
        scope: "all", "own", or ranks.
        world_size: of the training that resumes; None = not known.
        select: which step, if its number is not given.
        exchange: where chunks are given and taken, if not as the configuration says; it stays open.
    """

    launch: Launch = ALONE
    timeout_s: float = 600.0
    waiting: Callable[[Wait], None] = lambda _: None
    avoid: tuple[int, ...] = ()
    scope: str = "all"
    world_size: int | None = None
    select: Strategy = NEWEST
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A pull that is planned; `execute` does it. The run's lock is held around both.

    `together` is the attempt that it belongs to; None = this node alone. `exchange`: other nodes that give chunks.
    """

    node: Node
    remote: Remote
    plan: PullPlan
    elsewhere: bool
    together: Together | None = None
    exchange: Exchange | None = None

    def execute(self, progress: Callable[[int], None]) -> PullResult:
        """Do it. Raises as `PullPlan.execute`."""
        node = self.node
        if self.together is not None and self.exchange is not None:
            self.exchange.join(self.together.peers())
        result = self.plan.execute(
            self.remote,
            None if self.elsewhere else node.saves,
            stamp=datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ"),
            transfer=Transfer(workers=node.pull_workers, progress=progress, peers=self.exchange),
            trainer_path=node.trainer_path,
        )
        if not self.elsewhere:
            node.saves.pulled(result.step)
        if self.together is not None:
            self.together.done()
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
    options: PullOptions = PullOptions(),
) -> Iterator[Planned]:
    """Choose a step, alone or with other nodes, and plan its restore, under the run's lock.

    Args:
        node: this node.
        step: this one and no other.
        max_step: none above it.
        dest: restore there instead of into output_dir.
        keep_newer: refuse instead of moving newer steps aside.
        say: told that, and for whom, we wait.
        options: the rest.

    Raises:
        UsageError: `dest` lies inside output_dir, or the layout's loader needs what the scope leaves out.
        PreflightError: the step is for another world size, or only what the strategy never takes is there.
        NothingToResume, StoreError, ConflictError, ConfigError.
    """
    if step is not None:
        options = replace(options, select=NEWEST)
    configured = node.config.run.output_dir
    if dest is not None and os.path.commonpath(
        [os.path.realpath(dest), os.path.realpath(configured)]
    ) == os.path.realpath(configured):
        why, remedy = "it lies inside output_dir", "leave --dest out to restore in place, or name another directory"
        raise UsageError("cannot restore there", where=dest, why=why, remedy=remedy)
    durable.make_dirs(configured)
    remote = node.remote(create=False)
    if options.avoid and remote.run_id:
        avoid(node, remote, options.avoid, say)
    together = _together(node, step, max_step, options, say) if dest is None and options.launch.together else None
    with _exchange(node, options, give=together is not None) as exchange:
        if together is not None and exchange is not None:
            together.address = exchange.address
        lock = node.lock()
        beat = together.beat if together is not None else _nobody_waits
        _wait_for(lock, say, beat)
        try:
            here = _look(node, remote, say, beat)
            if together is not None:
                choice = together.agree(here.views)
            else:
                choice = _choose(node, here, step, max_step, options, say, elsewhere=dest is not None)
            plan = _plan(node, here, choice, options, dest=dest, keep_newer=keep_newer, say=say)
            yield Planned(node, here.remote, plan, dest is not None, together, exchange)
        finally:
            lock.release()
        if exchange is not None:
            exchange.linger(say=say)


def _exchange(node: Node, options: PullOptions, *, give: bool) -> AbstractContextManager[Exchange | None]:
    """Only a node that is not alone gives; taking from other nodes' daemons is for all."""
    if options.exchange is not None:
        return nullcontext(options.exchange)
    return open_exchange(node.config, give=give, spare_ports=_SPARE_PORTS) or nullcontext()


def _together(
    node: Node, step: int | None, max_step: int | None, options: PullOptions, say: Callable[[str], None]
) -> Together:
    remote = node.remote()
    if not remote.store.capabilities.atomic_create:
        raise StoreError(
            "nodes cannot agree in this store",
            where=remote.store.url,
            why="when two of them create one object, it does not promise that one wins",
            remedy="use --nodes 1 with the same --step on all nodes, or another store",
        )
    offset_ns = remote.clock_offset_ns(node.config.node.name)
    limits = limits_of(node, step, max_step, options.select)
    terms = Terms(options.launch.nodes, limits, options.scope, options.timeout_s, offset_ns)
    together = Together(node, remote, options.launch.attempt, terms, say, options.waiting)
    together.join()
    return together


@dataclass(frozen=True, slots=True)
class _Here:
    """What is here: the store as it was found, the steps, and store time minus this node's."""

    remote: Remote
    views: tuple[StepView, ...]
    offset_ns: int

    @property
    def listings(self) -> tuple[Listing, ...]:
        return tuple(view.listing for view in self.views)


def _nobody_waits() -> None:
    """For a node that pulls for itself."""


def _wait_for(lock: RunLock, say: Callable[[str], None], beat: Callable[[], None]) -> None:
    """Take the run's lock; a daemon that verifies may hold it for long. Raises ConflictError."""
    until = time.monotonic() + LOCK_S
    waiting: Callable[[str], None] | None = say
    while True:
        beat()
        try:
            lock.acquire(_BEAT_S, waiting=waiting)
        except ConflictError:
            if time.monotonic() >= until:
                raise
            waiting = None
        else:
            return


def _look(node: Node, remote: Remote, say: Callable[[str], None], beat: Callable[[], None]) -> _Here:
    local = node.recognise()
    offset_ns = remote.clock_offset_ns(node.config.node.name) if remote.run_id else 0
    if abs(offset_ns) >= _SKEW_NS:
        by, where = format_duration(abs(offset_ns) // _NS), "behind" if offset_ns > 0 else "ahead of"
        say(f"this node's clock is {by} {where} the store's: times are corrected by that")
    return _Here(remote, settle_local(local, beat=beat, say=say) if local is not None else (), offset_ns)


def _choose(
    node: Node,
    here: _Here,
    step: int | None,
    max_step: int | None,
    options: PullOptions,
    say: Callable[[str], None],
    *,
    elsewhere: bool,
) -> Choice:
    """This node alone: the store's newest, or a newer one that is whole here, or as the strategy says."""
    mine = whole_here(node, () if elsewhere else here.views, here.offset_ns, options.select.metric)
    unions = [union for union in mine.unions if union.step not in options.avoid]
    stock = Stock(here.remote, node.layout_of(), node.window_ns, unions, mine.value_of, mine.commit_of)
    choice = choose(stock, Limits(step, max_step, select=options.select))
    if choice.fallback:
        say(f"--select {options.select}: {choice.fallback}")
    return choice


def _plan(
    node: Node,
    here: _Here,
    choice: Choice,
    options: PullOptions,
    *,
    dest: str | None,
    keep_newer: bool,
    say: Callable[[str], None],
) -> PullPlan:
    layout = _layout_of(node, choice)
    _check_world(choice.union, layout, options.world_size)
    ranks = _ranks(node, choice.union, layout, options.scope, say)
    output_dir = os.path.abspath(dest) if dest else _home(node, choice)
    durable.make_dirs(output_dir)
    at_home = output_dir == node.output_dir
    staging = node.staging if at_home else Staging(output_dir)
    staging.repair()
    pointer = node.pointer(layout, staging, output_dir, elsewhere=dest is not None)
    if pointer is not None and (obstacle := pointer.obstacle()) is not None:
        say(f"latest is not written: {obstacle}")
        pointer = None
    wanted, dropped = within(ranks, layout), node.dropped()
    return plan_pull(
        choice,
        layout,
        Place(output_dir, staging, pointer),
        listings=here.listings if at_home else scan(output_dir, layout),
        saves=node.local.known if node.local is not None else [],
        content={listing.name: listing for listing in here.listings},
        content_dir=node.output_dir,
        dropped=lambda path: dropped(path) or not wanted(path),
        keep_newer=keep_newer,
        offset_ns=here.offset_ns,
        scope=str(ranks) if ranks is not None else "",
    )


def _check_world(union: Union, layout: Layout, world_size: int | None) -> None:
    """Shards that only their own rank loads bind the step to a world size."""
    bound = worlds(union.files, layout)
    if world_size is None or not bound or bound == {world_size}:
        return
    said = " and ".join(str(each) for each in sorted(bound))
    raise PreflightError(
        f"step {union.step} cannot be resumed with a world size of {world_size}",
        why=f"its shards were written with {said}, and each rank loads only its own",
        remedy=f"start {said} ranks, or export the step as a whole model",
    )


def _ranks(node: Node, union: Union, layout: Layout, scope: str, say: Callable[[str], None]) -> Ranks | None:
    """The ranks whose shards come here; None = everything."""
    if scope == "all":
        return None
    bound = worlds(union.files, layout)
    if not bound:
        raise UsageError(
            f"scope {scope} leaves out what the loader needs",
            where=f"step {union.step}",
            why=f"with layout {layout.name}, these shards hold pieces of every rank's state",
            remedy="use --scope all",
        )
    if scope == "own":
        ranks = ranks_of(node.config.node.name, union.files, layout)
        if ranks is None:
            say(f"this node wrote no shards of step {union.step}: all of it is restored")
        return ranks
    ranks = parse_ranks(scope)
    if ranks.last >= min(bound):
        why = f"step {union.step} was written by {min(bound)} ranks, 0-{min(bound) - 1}"
        raise PreflightError(f"there is no rank {ranks.last}", why=why, remedy="correct --ranks")
    return ranks


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
