"""Looking after the store: collection and scrubbing by the daemon, in a thread of its own, on any number of nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ckptsync.app import Node
from ckptsync.disk.scan import list_step
from ckptsync.errors import CheckpointError, CkptsyncError, Interrupted, StepChanged
from ckptsync.model.retention import condemned
from ckptsync.stores import clear_leftovers
from ckptsync.sync.collect import Collected, CollectOptions, collect
from ckptsync.sync.collect_survey import Survey
from ckptsync.sync.pull import local_content
from ckptsync.sync.restore import LocalContent
from ckptsync.sync.retain import look, policies_of, read_commits, remote_verdicts
from ckptsync.sync.scrub import Scrubbed, ScrubOptions, scrub

__all__ = ["Collector", "collect_by_policy", "scrub_by_node"]

_log = logging.getLogger("ckptsync")
_NS = 10**9
_EVERY_S = 3600.0
_FIRST_S = 600.0
_DAY_S = 86400.0
_SHOWN = 3
_PUT_S = 3600.0
"""Longer than any put takes that is not dead."""


def collect_by_policy(
    node: Node,
    *,
    grace_s: float,
    dry_run: bool = False,
    force: bool = False,
    strict: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Collected:
    """Collect what `[retention.remote]` gives up, and what nothing needs.

    Args:
        node: opened.
        grace_s: between a list and its sweep, seconds.
        dry_run: see `CollectOptions`.
        force: as there.
        strict: as there.
        stop: as there.

    Raises:
        StoreError, UsageError, Interrupted: as `collect`.
    """
    remote = node.remote(create=False)
    if not remote.run_id:
        return Collected()  # the store does not know the run yet
    table = node.config.retention.remote
    policies, pulled = policies_of(table), node.saves.pulled_step()
    metric = policies.best.metric if policies.best else ""

    def condemn(seen: Survey) -> AbstractSet[str]:
        rules, window_ns = node.layout_of(), node.window_ns
        commits = read_commits(
            remote,
            rules,
            look(remote, rules, window_ns=window_ns, metrics=[metric], seen=seen),
            window_ns=window_ns,
            metric=metric,
            resumed={save.commit for save in node.saves.load() if save.commit and save.part.step == pulled},
            indexes=seen.indexes(),
        )
        return condemned(remote_verdicts(commits, policies, time.time_ns()))

    options = CollectOptions(
        node.config.node.name, int(grace_s * _NS), dry_run=dry_run, force=force, strict=strict, stop=stop
    )
    done = collect(remote, condemn, options)
    left_s = max(grace_s, _PUT_S)
    done.leftovers = clear_leftovers(node.config, time.time_ns() - int(left_s * _NS), dry_run=dry_run)
    return done


def scrub_by_node(
    node: Node, *, sample: float = 1.0, budget_bytes: int | None = None, stop: Callable[[], bool] = lambda: False
) -> Scrubbed:
    """Scrub the store, healing from this node's verified steps.

    Args:
        node: opened; its steps are used once they are recognised.
        sample: see `ScrubOptions`.
        budget_bytes: as there.
        stop: as there.

    Raises:
        StoreError, Interrupted: as `scrub`.
    """
    remote, local = node.remote(create=False), LocalContent()
    if node.local is not None:
        saves = [save for save in node.saves.load() if os.path.isdir(os.path.join(node.output_dir, save.part.name))]
        names = {save.part.name for save in saves}
        listings = {}
        for name in names:
            with contextlib.suppress(CheckpointError, StepChanged):  # the trainer has it: it heals nothing now
                listings[name] = list_step(os.path.join(node.output_dir, name))
        local = local_content(saves, listings, node.output_dir)
    options = ScrubOptions(
        node.config.node.name, sample, budget_bytes, compression=node.config.upload.compression, stop=stop
    )
    return scrub(remote, local, options)


class Collector:
    """The daemon's collections, if `[retention.remote]` names a policy, and its scrubbing, if `[scrub]` has a budget.

    Args:
        node: opened.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._on = policies_of(node.config.retention.remote).named
        self._scrub_bytes = node.config.scrub.bytes_per_day * _EVERY_S / _DAY_S
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # nodes that were started together do not list the store together
        self._next = time.monotonic() + _FIRST_S * (1 + random.random())  # noqa: S311 - spreads load, hides nothing
        self._problems: list[str] = []

    def tick(self) -> list[str]:
        """Begin a collection if it is time; returns what was wrong with the last one, in lines."""
        if (self._on or self._scrub_bytes) and self._thread is None and time.monotonic() >= self._next:
            self._thread = threading.Thread(target=self._collect, name="collector", daemon=True)
            self._thread.start()
        return list(self._problems)

    def stop(self, timeout_s: float) -> bool:
        """End the collection that runs; the next one, of whatever node, goes on. False = it has not ended yet."""
        self._stopping.set()
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _collect(self) -> None:
        try:
            self._problems = [*self._collected(), *self._scrubbed()]
        except Interrupted:
            pass
        except CkptsyncError as error:
            self._problems = [f"the store is not looked after: {error}"]
        finally:
            self._next = time.monotonic() + _EVERY_S * (0.5 + random.random())  # noqa: S311 - as above
            self._thread = None

    def _collected(self) -> list[str]:
        if not self._on:
            return []
        grace_s = self._node.config.retention.remote.grace
        done = collect_by_policy(self._node, grace_s=grace_s, strict=False, stop=self._stopping.is_set)
        _tell(done)
        return [*done.problems, *(f"not deleted: {line}" for line in done.refused[:_SHOWN])]

    def _scrubbed(self) -> list[str]:
        if not self._scrub_bytes:
            return []
        found = scrub_by_node(self._node, budget_bytes=int(self._scrub_bytes), stop=self._stopping.is_set)
        for key in found.healed:
            _log.warning("a damaged chunk was put again: %s", key)
        bad = [f"step {step} cannot be restored from the store: {why}" for step, _, why in found.bad[:_SHOWN]]
        return [*bad, *found.refused[:_SHOWN]]


def _tell(done: Collected) -> None:
    if done.announced is not None:
        steps = ", ".join(map(str, done.announced.steps)) or "none"
        _log.info("collection %d announced: steps %s, %d bytes", done.announced.number, steps, done.announced.bytes)
    if done.deleted:
        _log.info("collected: %d objects, %d bytes", done.deleted, done.freed)
