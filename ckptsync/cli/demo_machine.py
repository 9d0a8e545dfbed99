"""A machine of `ckptsync demo`: a directory for its disk, and a training and a daemon as child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, final

import typer

from ckptsync.actions.wait import wait_for
from ckptsync.app import Node, open_node
from ckptsync.cli.render import printable
from ckptsync.config import Config, load
from ckptsync.disk import durable
from ckptsync.errors import CheckpointError, CkptsyncError
from ckptsync.model.step import LocalState

__all__ = ["Machine", "Saved", "Shared", "end", "require", "say"]

_STEP_S = 60.0
_END_S = 20.0
_POLL_S = 0.1
_CKPTSYNC = [sys.executable, "-m", "ckptsync"]


@dataclass(frozen=True, slots=True)
class Saved:
    """A step as the training wrote it on one machine: its path, the shard that was cut in half, and its fingerprint."""

    step: int
    path: str
    cut: str
    files: Mapping[str, list[Any]]

    @property
    def name(self) -> str:
        """The step directory's name."""
        return os.path.basename(self.path)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry[1] for entry in self.files.values())

    @property
    def count(self) -> int:
        """Files, without directories."""
        return sum(1 for entry in self.files.values() if entry[0])


@dataclass(frozen=True, slots=True)
class Shared:
    """What all machines of a demo have in common.

    Attributes:
        root: directory of their disks.
        run: its name.
        store: URL.
        driver: of the store.
        nodes: how many machines there are.
        environ: the children's environment.
    """

    root: str
    run: str
    store: str
    driver: str
    nodes: int
    environ: Mapping[str, str]


@final
class Machine:
    """One of them; `prepare` makes its directories.

    Args:
        shared: what it has in common with the others.
        number: from 0; makes its name.
        settings: more tables for its configuration.
    """

    def __init__(self, shared: Shared, number: int, settings: str = "") -> None:
        self.name = f"node-{number}"
        self.directory = os.path.join(shared.root, self.name)
        self.output_dir = os.path.join(self.directory, "checkpoints")
        self.config_file = os.path.join(shared.root, f"{self.name}.toml")
        self._shared, self._settings = shared, settings
        self._training: subprocess.Popen[str] | None = None
        self._daemon: subprocess.Popen[str] | None = None
        self._log = threading.Thread()

    def prepare(self) -> None:
        """A disk with nothing on it but output_dir, and a configuration."""
        durable.make_dirs(self.output_dir)
        durable.publish(self.config_file, self._config_text().encode())

    def close(self) -> None:
        """End what still runs."""
        end(self._training)
        end(self._daemon)

    def _config_text(self) -> str:
        text, shared = json.dumps, self._shared  # JSON strings are TOML strings
        return (
            f"[run]\nname = {text(shared.run)}\noutput_dir = {text(self.output_dir)}\n"
            f"state_dir = {text(os.path.join(self.directory, 'state'))}\n"
            f"[node]\nname = {text(self.name)}\ncount = {shared.nodes}\n"
            "[watch]\nsettle = '2s'\nscan_interval = '500ms'\n"
            f"[upload]\nstore = {text(shared.store)}\nevery_steps = 1\nyield_to_trainer = false\n"
            f"driver = {text(shared.driver)}\n{self._settings}"
        )

    @property
    def config(self) -> Config:
        """As the children read it."""
        return load(self.config_file)

    def node(self) -> Node:
        """What the machine's state says now."""
        return open_node(self.config)

    # -- the training

    def start_training(self, **share: object) -> None:
        """Start it; importing torch may take a while.

        Args:
            share: which part of a step is written here (see demo_training).
        """
        self._training = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "ckptsync.testing.demo_training", self.output_dir, json.dumps(share)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def writer(self) -> str:
        """What writes its files; to be asked once, before any save."""
        return str(self._answer()["writer"])

    def begin_save(self, step: int, **more: object) -> None:
        """Order a step (see demo_training)."""
        training = self._training
        assert training is not None, "started before"
        _pipe(training.stdin).write(json.dumps({"step": step, **more}) + "\n")
        _pipe(training.stdin).flush()

    def saved(self) -> Saved:
        """What was ordered, once it is there."""
        answer = self._answer()
        return Saved(answer["step"], answer["path"], answer["cut"], answer["files"])

    def _answer(self) -> dict[str, Any]:
        assert self._training is not None, "started before"
        line = _pipe(self._training.stdout).readline()
        if not line:
            raise CkptsyncError("the demo's training died", why=f"exit code {self._training.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill_training(self) -> None:
        """As when its machine dies, or another rank does."""
        _kill(self._training)

    # -- the daemon

    def start_daemon(self) -> None:
        """Start `ckptsync run`; its log appears among our lines."""
        self._daemon = self.start("run", stdout=None)
        self._log = threading.Thread(target=_echo, args=(self.name, _pipe(self._daemon.stderr)), daemon=True)
        self._log.start()

    def end_daemon(self) -> None:
        """SIGTERM, as systemd sends it; it must end by itself."""
        assert self._daemon is not None, "started before"
        end(self._daemon)
        self._log.join()
        require(self._daemon.returncode == 0, "the daemon stops cleanly", f"exit code {self._daemon.returncode}")

    def wait_for(self, step: int, *, committed: bool) -> str:
        """Until the daemon has judged a step; returns its state: "committed", "verified", "broken".

        Raises:
            CkptsyncError: the daemon died, or does not come to an end.
        """
        assert self._daemon is not None, "started before"
        deadline = time.monotonic() + _STEP_S
        while True:
            seen = wait_for(self.node(), step, committed=committed, timeout_s=1.0)
            if seen.ok or seen.state == LocalState.BROKEN.value:
                return seen.state
            if self._daemon.poll() is not None:
                raise CkptsyncError("the daemon died", why=f"exit code {self._daemon.returncode}")
            require(time.monotonic() < deadline, f"the daemon judges step {step} within {_STEP_S:g} s", seen.message)

    def has_committed(self, step: int) -> bool:
        """Whether the daemon knows by now that a step is committed."""
        return wait_for(self.node(), step, committed=True, timeout_s=0).ok

    # -- the disk

    def latest(self) -> str | None:
        """What `latest` names now."""
        node = self.node()
        node.recognise()
        return node.latest_name()

    def wait_for_latest(self, name: str) -> None:
        """Until `latest` names a step."""
        deadline = time.monotonic() + _STEP_S
        while self.latest() != name:
            require(time.monotonic() < deadline, f"latest names {name}", f"it names {self.latest()}")
            time.sleep(_POLL_S)

    def steps(self) -> list[str]:
        """Names of the step directories."""
        return sorted(name for name in os.listdir(self.output_dir) if name.startswith("global_step_"))

    def die(self) -> None:
        """Power and disk are gone: training, daemon, steps, staging, and what the daemon knew."""
        _kill(self._training)
        _kill(self._daemon)
        durable.remove_tree(self.directory, within=self._shared.root)

    # -- commands

    def start(self, *arguments: str, stdout: int | None = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command of ckptsync."""
        return subprocess.Popen(  # noqa: S603 - our own command
            [*_CKPTSYNC, arguments[0], "--config", self.config_file, *arguments[1:]],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(self._shared.environ),
        )

    def ckptsync(self, *arguments: str) -> str:
        """Run a command as a user would, show it and what it prints; returns that. Raises if it fails."""
        say(f"$ ckptsync {' '.join(arguments)} --config {self.config_file}")
        running = self.start(*arguments)
        try:
            out, err = running.communicate()
        finally:
            end(running)
        sys.stderr.write(err)
        for line in out.splitlines():
            say(f"  {line}")
        require(running.returncode == 0, f"`ckptsync {arguments[0]}` succeeds", f"exit code {running.returncode}")
        return out


def say(line: str) -> None:
    """Tell what happens."""
    typer.echo(printable(line))
    sys.stdout.flush()


def require(kept: bool, promise: str, found: str) -> None:
    """Raises CheckpointError unless a promise was kept."""
    if not kept:
        raise CheckpointError("the demo did not go as promised", where=promise, why=found)


def end(child: subprocess.Popen[str] | None) -> None:
    """Ask a child to end, and insist after a while; one that has ended is left alone."""
    if child is None or child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        _kill(child)


def _kill(child: subprocess.Popen[str] | None) -> None:
    if child is not None:
        child.kill()
        child.wait()


def _echo(who: str, stream: IO[str]) -> None:
    with stream:
        for line in stream:
            say(f"  {who} | {line.rstrip()}")


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "asked for with PIPE"
    return stream
