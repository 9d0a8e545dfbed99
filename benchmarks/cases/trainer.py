"""What a training on all cores notices of the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
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
    "A transformer is trained on all cores while `ckptsync run` verifies and pushes a step. The daemon is stopped and "
    "goes on in turn (SIGSTOP, SIGCONT), a few seconds each, and the steps of each stretch with it are compared with "
    "those of the stretch before: so what the machine does over minutes says nothing. The server stands for another "
    "machine: it runs in the idle scheduling class. After the last stretch the trainer stands still until the commit "
    "is in the store. The step's files are evicted from the page cache before; what of them is in it then was left "
    "there by ckptsync."
)
START_S = 1.0  # an interpreter's start, and the first scan
STEP_S = "step s"
MOST_S = 600.0
STEPS_LEAST = 3
OFF, ON = "trainer alone", "trainer beside `ckptsync run`"


class Stretch(NamedTuple):
    """A stretch of time.monotonic."""

    begin: float
    end: float


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """Pairs of stretches."""
    step = bench.series("fp32")[0]
    with _training(bench) as (trainer, log):
        pairs, cached = _daemon_at_work(bench, step, trainer)
        both = [(_median(log, off), _median(log, on)) for off, on in pairs]
    measured = [(off, on) for off, on in both if off and on]
    if not measured:
        msg = "hardly any training steps: the machine is busy otherwise"
        raise CommandFailed(msg)
    off, on = ([pair[i] for pair in measured] for i in (0, 1))
    bench.say(f"{len(on)} pairs: step {spread(off).median:.4f} s alone, {spread(on).median:.4f} s beside the daemon")
    arms = [Arm(ON, {STEP_S: on}), Arm(OFF, {STEP_S: off})]
    table = Table(f"fp32 step, {step.bytes / 1e6:.0f} MB, {len(on)} pairs", arms, versus="", drawn=False)
    return [table], [
        Target("trainer's step time beside the daemon", ratios(on, off), 1.03),
        Target("page cache left behind", spread([cached / 2**20]), 64, "MiB"),
    ]


@contextmanager
def _training(bench: Bench) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A trainer at work, and its log."""
    log = bench.work / "trainer.log"
    words = [sys.executable, "-m", "benchmarks.trainer_worker", str(2 * MOST_S)]
    with log.open("wb") as out:
        trainer = subprocess.Popen(words, stdout=out, env={**os.environ, **bench.importable})
    try:
        while not log.stat().st_size:
            time.sleep(0.1)
            if trainer.poll() is not None:
                msg = f"the trainer ended with {trainer.returncode}"
                raise CommandFailed(msg)
        yield trainer, log
    finally:
        trainer.kill()
        trainer.wait()


def _daemon_at_work(
    bench: Bench, step: StepData, trainer: subprocess.Popen[bytes]
) -> tuple[list[tuple[Stretch, Stretch]], int]:
    """Stretches without and with the daemon, and the bytes of the step in the page cache after its commit."""
    with serving(idle=True) as server:
        node = Node(bench.work / "beside", server, "ours")
        node.add(step)
        evict(step.paths())
        with (node.work / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(
                node.command("run"),
                env={**os.environ, **server.environ},
                stdout=log,
                stderr=log,
                preexec_fn=os.setpgrp,  # noqa: PLW1509 - no threads here; what it starts is stopped with it
            )
        try:
            time.sleep(SETTLE_S + START_S)
            pairs: list[tuple[Stretch, Stretch]] = []
            while len(pairs) < bench.scale.trainer_pairs and not _committed(server, node, daemon):
                pairs.append(_pair(daemon, bench.scale.trainer_stretch_s))
            trainer.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + MOST_S
            while not _committed(server, node, daemon, deadline):
                time.sleep(0.2)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        return pairs, cached_bytes(step.paths())


def _pair(daemon: subprocess.Popen[bytes], seconds: float) -> tuple[Stretch, Stretch]:
    """A stretch without the daemon, and one with it."""
    os.killpg(daemon.pid, signal.SIGSTOP)
    try:
        off = _stretch(seconds)
    finally:
        os.killpg(daemon.pid, signal.SIGCONT)
    return off, _stretch(seconds)


def _stretch(seconds: float) -> Stretch:
    begun = time.monotonic()
    time.sleep(seconds)
    return Stretch(begun, time.monotonic())


def _committed(server: Server, node: Node, daemon: subprocess.Popen[bytes], deadline: float = inf) -> bool:
    """Whether the step is in the store. Raises CommandFailed: that will not come any more."""
    if daemon.poll() is not None or time.monotonic() > deadline:
        raise CommandFailed((node.work / "daemon.log").read_text(errors="replace"))
    return any("/commits/" in key for key in server.keys(f"{node.prefix}/steps"))


def _median(log: Path, stretch: Stretch) -> float:
    """The median time of the steps that lie in it; 0 if there are hardly any."""
    lines = log.read_text().splitlines()[:-1]  # the last one may be half written
    times = [tuple(map(float, line.split())) for line in lines]
    steps = [took for end, took in times if stretch.begin <= end - took and end <= stretch.end]
    return spread(steps).median if len(steps) >= STEPS_LEAST else 0.0
