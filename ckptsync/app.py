"""Wiring: from a configuration to the things that commands and the daemon use. Its stores come from `stores.py`."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptsync.config import Config
from ckptsync.disk import durable
from ckptsync.disk.faults import guarded
from ckptsync.disk.lock import RunLock
from ckptsync.disk.machine import give_way
from ckptsync.disk.promote import Pointer
from ckptsync.disk.saves import Broken, Save, Saves
from ckptsync.disk.scan import list_step, resolve_output_dir
from ckptsync.disk.stage import Staging
from ckptsync.errors import ConfigError
from ckptsync.layouts import registry
from ckptsync.layouts.base import Layout
from ckptsync.model.due import Cadence
from ckptsync.model.paths import rebased
from ckptsync.store.traffic import Traffic
from ckptsync.stores import open_store
from ckptsync.sync.local import LocalSteps
from ckptsync.sync.remote import Remote
from ckptsync.sync.setup import DeepLimits, Identity, Setup

if TYPE_CHECKING:
    from ckptsync.sync.send import Pace, PushOptions

__all__ = ["Node", "layout_in", "open_node"]

_NS = 10**9
_log = logging.getLogger("ckptsync")


@dataclass
class Node:
    """This node's side of one run.

    Attributes:
        config: the configuration it was opened with.
        saves: verified saves (cache).
        node_id: the random id of the state directory.
        stopped: true = requests to the store need not be tried again.
        traffic: what the requests of this process cost beside their own time.
        patience_s: no request to the store is tried again later than this after it began.
    """

    config: Config
    saves: Saves
    node_id: str
    stopped: Callable[[], bool] = lambda: False
    traffic: Traffic = field(default_factory=Traffic)
    patience_s: float = 300.0
    output_dir: str = ""
    layout: Layout | None = None
    local: LocalSteps | None = None
    _remote: Remote | None = field(default=None)
    _staging: Staging | None = field(default=None)
    _names: frozenset[str] = frozenset()

    def recognise(self) -> LocalSteps | None:
        """Find the directory with the steps and its layout; None while there is nothing to recognise yet.

        Raises:
            ConfigError: output_dir is missing, unreadable, or ambiguous.
        """
        if self.local is not None:
            return self.local
        configured = self.config.run.output_dir
        self.output_dir, self.layout = _find_steps(configured, self.config.run.layout)
        if self.layout is not None:
            self.local = self._local(self.layout)
        return self.local

    def recognise_again(self) -> Layout | None:
        """With layout `auto`: whether what has come since speaks for another layout, as a restart would find it.

        Returns:
            The layout that has just been given up; None while it stays.

        Raises:
            ConfigError: output_dir is unreadable.
        """
        before = self.layout
        if before is None or self.config.run.layout != "auto":
            return None
        try:
            with guarded("cannot use output_dir", self.output_dir):
                names = frozenset(_directories(self.output_dir))
        except FileNotFoundError:
            return None  # the scan says so
        if names == self._names:
            return None
        found = _detect(self.output_dir, names)
        self._names = names if found is not None else frozenset()  # a step directory that is empty yet may fill
        if found is None or (found.name == before.name and _known(found, names) == _known(before, names)):
            return None
        self.layout, self.local = found, self._local(found)
        return before

    def _local(self, layout: Layout) -> LocalSteps:
        config, count = self.config, self.node_count
        below = os.path.relpath(self.output_dir, config.run.output_dir)
        setup = Setup(
            output_dir=self.output_dir,
            layout=layout,
            identity=Identity(config.run.name, config.node.name, self.node_id, "" if below == "." else below),
            level=config.verify.level,
            settle_s=config.watch.settle,
            window_ns=self.window_ns,
            deep=DeepLimits(config.verify.deep_timeout, config.verify.deep_memory),
            alone=_why_alone(count, embedded=_is_embedded(config)),
            many=count is not None and count > 1,
        )
        return LocalSteps(setup, self.saves, Broken(config.state_dir))

    @property
    def embedded(self) -> bool:
        """Whether the store is this machine's own."""
        return _is_embedded(self.config)

    @property
    def node_count(self) -> int | None:
        """How many nodes the run has, if anything says so: [node] count, else Slurm."""
        return self.config.node.count

    @property
    def window_ns(self) -> int:
        """`commit.window` in ns."""
        return int(self.config.commit.window * _NS)

    @property
    def cadence(self) -> Cadence:
        """When saves are due."""
        upload = self.config.upload
        return Cadence(upload.every_steps or 1, upload.every or 0.0, upload.idle, upload.since or 0)

    @cached_property
    def pace(self) -> Pace:
        """How much the pushes of this process take."""
        from ckptsync.sync.send import Pace  # noqa: PLC0415 - numpy, and much else that only uploads need

        return Pace()

    @property
    def push_options(self) -> PushOptions:
        """How to push."""
        from ckptsync.sync.send import PushOptions  # noqa: PLC0415 - as above

        upload = self.config.upload
        return PushOptions(
            workers=None if upload.workers == "auto" else upload.workers,
            compression=upload.compression,
            window_ns=self.window_ns,
            pace=self.pace,
            traffic=self.traffic,
        )

    def yield_to_trainer(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """From now on take only what the trainer leaves of the machine: this thread, and all that it starts.

        `hurry`: true = the run ends; uploads no longer hold back, though the scheduling class stays.
        """
        give_way()
        self.pace.yielding, self.pace.hurry = True, hurry

    @property
    def pull_workers(self) -> int:
        """Chunks that a pull gets at the same time: it mostly waits for the store, whatever the cores."""
        from ckptsync.sync.send import AUTO_WORKERS  # noqa: PLC0415 - as above

        workers = self.config.upload.workers
        return AUTO_WORKERS if workers == "auto" else workers

    @property
    def staging(self) -> Staging:
        """The staging directory beside output_dir; one object, since it may hold files open."""
        if self._staging is None:
            self._staging = Staging(self.output_dir)
        return self._staging

    def pointer(self, layout: Layout, staging: Staging, output_dir: str, *, elsewhere: bool = False) -> Pointer | None:
        """The `latest` link (docs/design.md, Promoting); None = off.

        Args:
            layout: says where it may live.
            staging: beside output_dir.
            output_dir: the directory it points into.
            elsewhere: that is not the run's own (`pull --dest`): the link stays with it, or there is none.
        """
        link = self.config.promote.link
        if link == "off" or (elsewhere and layout.pointer != "output_dir"):
            return None
        if elsewhere or (link == "auto" and layout.pointer == "output_dir"):
            link = os.path.join(output_dir, "latest")
        elif link == "auto":
            link = os.path.join(self.config.state_dir, "latest")
        beside_steps = os.path.dirname(link) == output_dir
        return Pointer(link, output_dir, os.path.join(staging.root, "tmp") if beside_steps else os.path.dirname(link))

    def latest_name(self) -> str | None:
        """The step directory that `latest` names; None if none, if something else stands there, or promotion is off."""
        if self.layout is None:
            return None
        pointer = self.pointer(self.layout, self.staging, self.output_dir)
        with contextlib.suppress(ConfigError):
            return pointer.current() if pointer is not None else None
        return None

    def remote(self, *, create: bool = True) -> Remote:
        """The run in the store; opened at the first call.

        Args:
            create: make the run if it is not there. Commands that only read do not.

        Raises:
            StoreError: the store cannot be reached, or (without `create`) has lost the run.
            ConflictError: it holds another run of this name.
        """
        if self._remote is None:
            remote = Remote(open_store(self.config, self.stopped, self.traffic, self.patience_s), self.config.run.name)
            known = _read(self._run_id_file)
            if not create:
                remote.read_run(known)
                return remote
            found, created = remote.open_run(known)
            if created and known:
                _log.warning("the store had lost run %s: everything is pushed again", self.config.run.name)
                self._forget_saves()
            if found != known:
                durable.publish(self._run_id_file, found.encode())
            self._remote = remote
        return self._remote

    def join(self) -> str:
        """Take part in the run that the store holds under this name, whatever this node remembers; returns its id.

        What this node knows of another run's steps in the store is forgotten; its own steps are verified again.

        Raises:
            StoreError: the store cannot be reached.
        """
        remote = Remote(open_store(self.config), self.config.run.name)
        known = _read(self._run_id_file)
        found, _ = remote.open_run(known, join=True)
        if found != known:
            self._forget_saves()
            durable.publish(self._run_id_file, found.encode())
        return found

    @property
    def _run_id_file(self) -> str:
        return os.path.join(self.config.state_dir, "run_id")

    def _forget_saves(self) -> None:
        """What was verified, put and committed is found out again."""
        durable.remove_tree(self.saves.root, within=self.config.state_dir)

    def lock(self) -> RunLock:
        """The lock of everything that changes output_dir: daemon passes and pulls."""
        return RunLock(os.path.join(self.config.state_dir, "lock"))

    def daemon_lock(self) -> RunLock:
        """Held by the daemon for as long as it lives: one per run and node."""
        return RunLock(os.path.join(self.config.state_dir, "daemon.lock"))

    def exec_lock(self) -> RunLock:
        """Held by `exec` for as long as it lives: one trainer per run and node, also where nodes share a home."""
        return RunLock(os.path.join(self.config.state_dir, f"exec@{self.config.node.name}.lock"))

    def layout_of(self) -> dict[str, Layout]:
        """Every installed layout by name, for judging parts."""
        return {name: registry.load(name) for name in registry.names()}

    def dropped(self) -> Callable[[str], bool]:
        """Whether `[pull] drop` names a path."""
        patterns = self.config.pull.drop
        return lambda path: any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)

    def trainer_path(self, path: str) -> str:
        """A path below output_dir under the name it has for the trainer, in its container perhaps."""
        return rebased(path, self.config.run.output_dir, self.config.run.trainer_dir)

    def needed(self, save: Save) -> bool:
        """Whether the cache must keep a save whose directory is gone: it is staged, and not committed yet."""
        return self.saves.mark_of(save, "staged") is not None and self.saves.mark_of(save, "commit") is None


def open_node(config: Config) -> Node:
    """Open (create) the state directory.

    Raises:
        ConfigError: it cannot be created or written.
    """
    path = os.path.join(config.state_dir, "node_id")
    durable.make_dirs(config.state_dir, 0o700)
    node_id = _read(path)
    if not node_id:
        durable.publish_new(path, secrets.token_hex(16).encode())
        node_id = _read(path)
    if not node_id:
        raise ConfigError(
            "cannot read the state directory", where=path, remedy="set [run] state_dir to a directory of this user"
        )
    return Node(config, Saves(config.state_dir), node_id)


def layout_in(output_dir: str) -> Layout | None:
    """The layout whose steps lie in a directory, whatever is configured. Raises ConfigError: it cannot be read."""
    with guarded("cannot look for steps", output_dir):
        return _detect(output_dir, _directories(output_dir)) if os.path.isdir(output_dir) else None


def _is_embedded(config: Config) -> bool:
    """Whether the store is the default one below the state directory: this machine's own."""
    return config.upload.store == f"file://{config.state_dir}/store"


def _why_alone(count: int | None, *, embedded: bool) -> str:
    if count == 1:
        return "the run has one node, so nothing can lie elsewhere"
    if count is None and embedded:
        return "the store is this machine's own: if other nodes hold the rest, give all of them one [upload] store"
    return ""


def _directories(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def _find_steps(configured: str, name: str) -> tuple[str, Layout | None]:
    if name != "auto":
        layout = registry.load(name)
        output_dir = resolve_output_dir(configured, layout.step_of)
        return output_dir, registry.load(name, _directories(output_dir))
    known = [registry.load(each) for each in registry.names()]
    output_dir = resolve_output_dir(
        configured, lambda text: next((n for each in known if (n := each.step_of(text)) is not None), None)
    )
    return output_dir, _detect(output_dir, _directories(output_dir))


def _detect(output_dir: str, directories: Collection[str]) -> Layout | None:
    known = [registry.load(each) for each in registry.names()]
    names = [n for n in directories if any(each.step_of(n) is not None for each in known)]
    return registry.detect({n: tuple(list_step(os.path.join(output_dir, n)).files) for n in names})


def _known(layout: Layout, names: Collection[str]) -> set[str]:
    return {name for name in names if layout.step_of(name) is not None}


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError("cannot read the state directory", where=path, why=str(error)) from None
