"""Resident memory while verifying, pushing and pulling one big step."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.data import StepData, series
from benchmarks.measure import run as run_child
from benchmarks.node import Node
from benchmarks.results import Table, Target, figure
from benchmarks.rounds import Action, Bench, Figures, interleave
from benchmarks.server import Server

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Resident memory"
METHOD = (
    "`ckptsync run --once` (verify, promote, push) and `ckptsync pull` of a step of Gaussian fp32 tensors, each "
    "in a process of its own; the greatest resident size that the kernel saw. One round: it hardly varies."
)
RESIDENT = "resident MiB"
LIMIT = 256.0


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """One step."""
    size = bench.scale.memory_gib
    data = bench.work / "gaussian"
    data.mkdir(parents=True)
    try:
        words: list[str | Path] = [sys.executable, "-m", "benchmarks.gaussian", data, str(size)]
        run_child(words, cwd=data, environ=bench.importable)
        (step,) = series(bench.work, data.name)
        arms = interleave(bench, [_round_trip(step)], rounds=1)
    finally:
        shutil.rmtree(data)
    table = Table(f"{step.bytes / 2**30:.2f} GiB step", arms, versus="", drawn=False)
    what = f"resident memory, {size:g} GiB step"
    targets = [figure(table, name, RESIDENT, LIMIT, f"{what}: {name}", "MiB") for name in ("run --once", "pull")]
    return [table], targets


def _round_trip(step: StepData) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work, server, "ours")
        node.add(step)
        pushed = node.ckptsync("run", "--once")
        node.lose_output()
        pulled = node.pull()
        return {
            "run --once": {RESIDENT: pushed.resident_mib, "wall s": pushed.wall_s},
            "pull": {RESIDENT: pulled.resident_mib, "wall s": pulled.wall_s},
        }

    return action
