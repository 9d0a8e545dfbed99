"""The daemon, in this process (tick by tick) and as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.daemon.loop import Daemon

COMMAND = [sys.executable, "-c", "import sys; from ckptsync.cli.main import main; sys.exit(main())"]
CONFIG = """
[run]
name = "run"
output_dir = "{out}"
state_dir = "{state}"
[node]
name = "{name}"
[watch]
settle = "2s"
scan_interval = "200ms"
{tables}
"""


class Home:
    """One node's directories and configuration."""

    def __init__(self, root: Path, name: str, tables: str) -> None:
        self.out, self.state, self.config = root / "out", root / "state", root / "c.toml"
        self.name = name
        self.out.mkdir(parents=True)
        self.configure(tables)

    def configure(self, tables: str) -> None:
        """Daemons of tests do not yield unless they are told to: the other tests keep the processors busy."""
        if "yield_to_trainer" not in tables:
            tables = tables.replace("[upload]\n", "[upload]\nyield_to_trainer = false\n")
        self.config.write_text(CONFIG.format(out=self.out, state=self.state, name=self.name, tables=tables))

    def daemon(self, **options) -> Daemon:
        """A daemon that trusts a step's quiet at once, so that ticks are all that counts."""
        node = open_node(parse(self.config.read_bytes(), str(self.config), {}))
        if node.recognise() is not None:
            node.local.setup = replace(node.local.setup, settle_s=0.0)
        return Daemon(node, **options)

    @property
    def latest(self):
        link = self.out / "latest"
        return os.readlink(link) if link.is_symlink() else None

    @property
    def status(self) -> dict:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.state / "status.json").read_text())
        return {"problems": [], "pid": None, "last_pass_s": 0}


class Process:
    """`ckptsync run` in the foreground, with its log, and what it tells systemd."""

    def __init__(self, home: Home, tmp: Path, *arguments: str, environ=None) -> None:
        self.log_file = tmp / f"log-{time.monotonic_ns()}"
        address = str(tmp / f"n{time.monotonic_ns()}")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self.told: list[str] = []
        with self.log_file.open("wb") as log:
            self.popen = subprocess.Popen(
                [*COMMAND, "run", "-c", str(home.config), *arguments],
                stderr=log,
                stdout=log,
                env={**os.environ, "NOTIFY_SOCKET": address, "PYTHONUNBUFFERED": "1", **(environ or {})},
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def hears(self, word: str, times: int = 1):
        """Wait until systemd would have been told `word`."""

        def listen() -> bool:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.told += self._socket.recv(4096).decode().split("\n")
            assert self.popen.poll() is None or word in self.told, self.log
            return self.told.count(word) >= times

        until(listen, f"{word} ({self.told}): {self.log}")

    def says(self, text: str):
        until(lambda: text in self.log or self.popen.poll() is not None, text)
        assert text in self.log, self.log

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.send(signal.SIGTERM)
        return self.popen.wait(PATIENCE_S)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self._socket.close()


@pytest.fixture
def make_home(tmp_path):
    """make_home(tables, name): a node against the shared store unless the tables say otherwise."""
    homes = []

    def make(tables="", name="a") -> Home:
        tables = tables if "store =" in tables else f'{tables}\n[upload]\nstore = "file://{tmp_path}/store"\n'
        homes.append(Home(tmp_path / name, name, tables))
        return homes[-1]

    return make


@pytest.fixture
def start(tmp_path):
    """start(home, ...): a running daemon; killed at the end."""
    processes = []

    def launch(home, *arguments, environ=None) -> Process:
        processes.append(Process(home, tmp_path, *arguments, environ=environ))
        return processes[-1]

    yield launch
    for process in processes:
        process.close()


@pytest.fixture
def drive():
    """drive(daemon): tick until nothing moves any more."""
    running = []

    def go(daemon, *, rounds=1):
        if daemon not in running:
            running.append(daemon)
            daemon.start()
        for _ in range(rounds):
            daemon.tick()
            until(lambda: not daemon._uploader.busy, "the end of the uploads")
            daemon.tick()
            until(lambda: not daemon._uploader.busy, "the end of the uploads")
        return daemon

    yield go
    for daemon in running:
        daemon.end(PATIENCE_S)


@pytest.fixture
def committed(tmp_path):
    """The steps that are committed in a directory store."""

    def look(store=None) -> list[int]:
        root = store or tmp_path / "store"
        return sorted({int(path.parts[-3]) for path in root.glob("run/steps/*/commits/*")})

    return look
