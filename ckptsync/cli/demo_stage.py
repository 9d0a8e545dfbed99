"""The play of `ckptsync demo` and its stage: directories, a training and a daemon as child processes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, final

import typer

from ckptsync.actions.overview import latest_name, rows
from ckptsync.actions.wait import wait_for
from ckptsync.app import Node, open_node, open_store
from ckptsync.cli.render import human_size, printable
from ckptsync.config import Config, load
from ckptsync.disk import durable
from ckptsync.errors import CheckpointError, CkptsyncError, UsageError
from ckptsync.model.step import LocalState, RemoteState
from ckptsync.testing.fingerprint import differences, fingerprint

__all__ = ["Saved", "Stage", "play"]

_STEP_S = 60.0
_END_S = 20.0
_POLL_S = 0.1
_GOOD = (10, 20)
_CUT = 30
_CKPTSYNC = [sys.executable, "-m", "ckptsync"]


@dataclass(frozen=True, slots=True)
class Saved:
    """A step as the training wrote it: its path, the shard that was cut in half, and its fingerprint."""

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


@final
class Stage:
    """A machine (a directory with output_dir and state_dir), a store, a training and a daemon; a context manager.

    Args:
        driver: of the store.
        keep: directory to work in and leave; None = a temporary one that is removed.
        store: URL; None = a directory beside the machine's.
    """

    def __init__(self, *, driver: str, keep: str | None, store: str | None) -> None:
        self._stack = ExitStack()
        self._kept = keep is not None
        self.root = _fresh(keep) if keep else self._stack.enter_context(tempfile.TemporaryDirectory("", "ckptsync-"))
        self.machine = os.path.join(self.root, "machine")
        self.output_dir = os.path.join(self.machine, "checkpoints")
        self.config_file = os.path.join(self.root, "ckptsync.toml")
        self.run = f"demo-{secrets.token_hex(4)}"
        self.store = store or f"file://{self.root}/store"
        self.driver, self._own_store = driver, store is None
        self._training: subprocess.Popen[str] | None = None
        self._daemon: subprocess.Popen[str] | None = None
        self._log = threading.Thread()

    def __enter__(self) -> Stage:
        try:
            durable.make_dirs(self.output_dir)
            durable.publish(self.config_file, self._config_text().encode())
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:  # the directory goes last, whatever fails
            _end(self._training)
            _end(self._daemon)
            if not (self._own_store or self._kept):
                self._empty_store()

    def _config_text(self) -> str:
        text = json.dumps  # JSON strings are TOML strings
        return (
            f"[run]\nname = {text(self.run)}\noutput_dir = {text(self.output_dir)}\n"
            f"state_dir = {text(os.path.join(self.machine, 'state'))}\n[node]\nname = 'node-0'\ncount = 1\n"
            "[watch]\nsettle = '2s'\nscan_interval = '500ms'\n"
            f"[upload]\nstore = {text(self.store)}\nevery_steps = 1\nyield_to_trainer = false\n"
            f"driver = {text(self.driver)}\n"
        )

    def _empty_store(self) -> None:
        """Remove the demo's run from a store that was given; its name is random, so nothing else is below it."""
        store = open_store(self.config)
        for meta in list(store.list(self.run)):
            store.delete(meta.key)

    @property
    def config(self) -> Config:
        """As the children read it."""
        return load(self.config_file)

    def node(self) -> Node:
        """What the machine's state says now."""
        return open_node(self.config)

    # -- the training

    def start_training(self) -> None:
        """Start it; importing torch may take a while."""
        self._training = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "ckptsync.testing.demo_training", self.output_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def writer(self) -> str:
        """What writes its files; to be asked once, before any save."""
        return str(self._answer()["writer"])

    def save(self, order: str) -> Saved:
        """Have a step saved (see demo_training)."""
        training = self._training
        assert training is not None, "started before"
        _pipe(training.stdin).write(f"{order}\n")
        _pipe(training.stdin).flush()
        answer = self._answer()
        return Saved(answer["step"], answer["path"], answer["cut"], answer["files"])

    def _answer(self) -> dict[str, Any]:
        assert self._training is not None, "started before"
        line = _pipe(self._training.stdout).readline()
        if not line:
            raise CkptsyncError("the demo's training died", why=f"exit code {self._training.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end_training(self) -> None:
        """As if its machine died."""
        _end(self._training)

    # -- the daemon

    def start_daemon(self) -> None:
        """Start `ckptsync run`; its log appears among our lines."""
        self._daemon = subprocess.Popen(  # noqa: S603 - our own command
            [*_CKPTSYNC, "run", "--config", self.config_file], stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self._log = threading.Thread(target=_echo, args=("daemon", _pipe(self._daemon.stderr)), daemon=True)
        self._log.start()

    def end_daemon(self) -> None:
        """SIGTERM, as systemd sends it; it must end by itself."""
        assert self._daemon is not None, "started before"
        _end(self._daemon)
        self._log.join()
        _require(self._daemon.returncode == 0, "the daemon stops cleanly", f"exit code {self._daemon.returncode}")

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
            _require(time.monotonic() < deadline, f"the daemon judges step {step} within {_STEP_S:g} s", seen.message)

    # -- the machine

    def latest(self) -> str | None:
        """What `latest` names now."""
        node = self.node()
        node.recognise()
        return latest_name(node)

    def wait_for_latest(self, name: str) -> None:
        """Until `latest` names a step."""
        deadline = time.monotonic() + _STEP_S
        while self.latest() != name:
            _require(time.monotonic() < deadline, f"latest names {name}", f"it names {self.latest()}")
            time.sleep(_POLL_S)

    def lose_disk(self) -> None:
        """Steps, staging and the daemon's memory are gone; what is left is the store."""
        durable.remove_tree(self.machine, within=self.root)

    def ckptsync(self, *arguments: str) -> str:
        """Run a command as a user would, show it and what it prints; returns that. Raises if it fails."""
        _say(f"$ ckptsync {' '.join(arguments)} --config {self.config_file}")
        done = subprocess.run(  # noqa: S603 - our own command
            [*_CKPTSYNC, *arguments, "--config", self.config_file], stdout=subprocess.PIPE, text=True, check=False
        )
        for line in done.stdout.splitlines():
            _say(f"  {line}")
        _require(done.returncode == 0, f"`ckptsync {arguments[0]}` succeeds", f"exit code {done.returncode}")
        return done.stdout


def play(stage: Stage) -> None:
    """The demo, from the first save to the comparison.

    Raises:
        CkptsyncError: something did not go as promised.
    """
    _say(f"A training and, beside it, the daemon (`ckptsync run`) start in {stage.machine}.")
    _say(f"The store is {stage.store} (driver {stage.driver}).")
    stage.start_training()
    stage.start_daemon()
    _say(f"The training writes its checkpoints with {stage.writer()}.")
    saved = [_good_step(stage, step) for step in _GOOD]
    _cut_step(stage, saved[-1])
    _say("The machine dies and its disk is lost: steps, staging, the daemon's state. The store is all that is left.")
    stage.end_training()
    stage.end_daemon()
    stage.lose_disk()
    _say("A new machine brings the run back:")
    printed = stage.ckptsync("pull")
    _compare(stage, saved[-1], printed)


def _good_step(stage: Stage, step: int) -> Saved:
    saved = stage.save(str(step))
    _say(f"The training has saved step {step}: {saved.count} files, {human_size(saved.size)}.")
    state = stage.wait_for(step, committed=True)
    _require(state == "committed", f"step {step} is committed", f"it is {state}")
    stage.wait_for_latest(saved.name)
    return saved


def _cut_step(stage: Stage, last: Saved) -> None:
    cut = stage.save(f"{_CUT} cut").cut
    _say(f"Step {_CUT} is cut short: {cut} has lost its second half, as in a power cut. verl's own tracker names it.")
    state = stage.wait_for(_CUT, committed=False)
    _require(state == LocalState.BROKEN.value, f"step {_CUT} is found broken", f"it is {state}")
    _require(stage.latest() == last.name, f"latest stays with {last.name}", f"it names {stage.latest()}")
    row = next(row for row in rows(stage.node()) if row.step == _CUT)
    _require(row.remote is RemoteState.ABSENT, f"step {_CUT} is not uploaded", f"it is {row.remote.value}")
    stage.ckptsync("steps")


def _compare(stage: Stage, saved: Saved, printed: str) -> None:
    _require(f"trainer.resume_from_path={saved.path}\n" in f"{printed}\n", "pull prints the resume arguments", printed)
    _require(stage.latest() == saved.name, f"latest names {saved.name}", f"it names {stage.latest()}")
    found = sorted(name for name in os.listdir(stage.output_dir) if name.startswith("global_step_"))
    _require(found == [saved.name], f"only {saved.name} is restored", f"there are {', '.join(found)}")
    wrong = differences(saved.files, fingerprint(Path(saved.path)))
    _require(not wrong, f"step {saved.step} comes back identical", "; ".join(wrong[:3]))
    _say(
        f"Step {saved.step} is back: all {saved.size} bytes in {saved.count} files are identical, modes and mtimes too."
    )


def _say(line: str) -> None:
    typer.echo(printable(line))
    sys.stdout.flush()


def _echo(who: str, stream: IO[str]) -> None:
    with stream:
        for line in stream:
            _say(f"  {who} | {line.rstrip()}")


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "asked for with PIPE"
    return stream


def _require(kept: bool, promise: str, found: str) -> None:
    if not kept:
        raise CheckpointError("the demo did not go as promised", where=promise, why=found)


def _fresh(directory: str) -> str:
    """`directory`, made if it is not there; one with something in it is not ours."""
    path = os.path.abspath(directory)
    durable.make_dirs(path)
    if os.listdir(path):
        raise UsageError("will not work in a directory with something in it", where=path, remedy="name a new one")
    return path


def _end(child: subprocess.Popen[str] | None) -> None:
    """Ask a child to end, and insist after a while; one that has ended is left alone."""
    if child is None or child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
