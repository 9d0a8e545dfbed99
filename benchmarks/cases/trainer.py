"""What a training on all cores notices of the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.data import StepData
from benchmarks.measure import CommandFailed, cached_bytes, evict
from benchmarks.node import SETTLE_S, Node
from benchmarks.results import Arm, Table, Target
from benchmarks.rounds import Bench
from benchmarks.server import Server, serving
from benchmarks.stats import ratios, spread

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "A trainer beside the daemon"
METHOD = (
    "A transformer is trained on all cores; in turn, windows without ckptsync and windows in which `ckptsync run` "
    "verifies, promotes and pushes a step. A window with the daemon begins when its quiet period is over and ends "
    "with the commit in the store. The server stands for another machine: it runs in the idle scheduling class. "
    "The step's files are evicted from the page cache before; what of them is in it afterwards was left there by "
    "ckptsync."
)
START_S = 1.0  # an interpreter's start, and the first scan
STEP_S, CACHE = "step s", "MiB in page cache"
MOST_S = 600.0
STEPS_LEAST = 3
OFF, ON = "trainer alone", "trainer beside `ckptsync run`"


class Window(NamedTuple):
    """A stretch of time.monotonic."""

    begin: float
    end: float


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """Pairs of windows."""
    step = bench.series("fp32")[0]
    off, on, left = [], [], []
    with _training(bench) as steps:
        for number in range(bench.scale.trainer_windows):
            alone = _quiet(steps, bench.scale.trainer_quiet_s)
            beside, cached = _daemon_at_work(bench.work / f"beside-{number}", step)
            off.append(_median(steps, alone))
            on.append(_median(steps, beside))
            left.append(cached / 2**20)
            took = beside.end - beside.begin
            bench.say(f"step {off[-1]:.4f} s alone, {on[-1]:.4f} s beside the daemon; its work took {took:.1f} s")
    arms = [Arm(ON, {STEP_S: on, CACHE: left}), Arm(OFF, {STEP_S: off})]
    table = Table(f"fp32 step, {step.bytes / 1e6:.0f} MB", arms, versus="", drawn=False)
    return [table], [
        Target("trainer's step time beside the daemon", ratios(on, off), 1.03),
        Target("page cache left behind", spread(left), 64, "MiB"),
    ]


def _quiet(log: Path, seconds: float) -> Window:
    """A window of so many seconds, and of some steps at least: a busy machine needs longer for them."""
    begun = time.monotonic()
    time.sleep(seconds)
    while len(_steps(log, window := Window(begun, time.monotonic()))) < STEPS_LEAST and window.end < begun + MOST_S:
        time.sleep(0.2)
    return window


@contextmanager
def _training(bench: Bench) -> Iterator[Path]:
    """A trainer at work; its log."""
    log = bench.work / "trainer.log"
    words = [sys.executable, "-m", "benchmarks.trainer_worker", str(MOST_S * bench.scale.trainer_windows)]
    with log.open("wb") as out:
        trainer = subprocess.Popen(words, stdout=out, env={**os.environ, **bench.importable})
    try:
        while not log.stat().st_size:
            time.sleep(0.1)
            if trainer.poll() is not None:
                msg = f"the trainer ended with {trainer.returncode}"
                raise CommandFailed(msg)
        yield log
    finally:
        trainer.kill()
        trainer.wait()


def _daemon_at_work(work: Path, step: StepData) -> tuple[Window, int]:
    """When the daemon was at work, and the bytes of the step in the page cache afterwards."""
    with serving(idle=True) as server:
        node = Node(work, server, "ours")
        node.add(step)
        evict(step.paths())
        begun = time.monotonic() + SETTLE_S + START_S
        with (work / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(node.command("run"), env={**os.environ, **server.environ}, stdout=log, stderr=log)
        try:
            _until_committed(server, node, daemon)
            window = Window(begun, time.monotonic())
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        return window, cached_bytes(step.paths())


def _until_committed(server: Server, node: Node, daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + MOST_S
    while not any("/commits/" in key for key in server.keys(f"{node.prefix}/steps")):
        time.sleep(0.2)
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise CommandFailed((node.work / "daemon.log").read_text(errors="replace"))


def _median(log: Path, window: Window) -> float:
    """The median time of the window's steps. Raises CommandFailed if there are hardly any."""
    steps = _steps(log, window)
    if len(steps) < STEPS_LEAST:
        msg = f"only {len(steps)} training steps in {window.end - window.begin:.0f} s: the machine is busy otherwise"
        raise CommandFailed(msg)
    return spread(steps).median


def _steps(log: Path, window: Window) -> list[float]:
    """How long the steps took that lie in the window."""
    lines = log.read_text().splitlines()[:-1]  # the last one may be half written
    times = [tuple(map(float, line.split())) for line in lines]
    return [took for end, took in times if window.begin <= end - took and end <= window.end]
