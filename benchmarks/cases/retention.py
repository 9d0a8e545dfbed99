"""Memory, time and lists of `retain --dry-run` and `gc --dry-run` with many committed steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.measure import run as run_child
from benchmarks.results import Arm, Table, Target, figure
from benchmarks.rounds import Bench

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Retention and collection with many remote steps"
METHOD = (
    "A store in a directory (`file://`), one part and one commit a step; twenty chunks belong to every step, the rest "
    "to one each. `[retention.remote] keep_last` gives up two of five. Each command is a process of its own, with a "
    "warm page cache. Lists are counted in a run of their own: the most that any one prefix was listed."
)
CONFIG = "ckptsync.toml"
RESIDENT, LISTS = "resident MiB", "lists of a prefix"
RESIDENT_MAX = 256.0
COMMANDS = ("retain", "gc")


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """Both commands, in turns."""
    steps, chunks = bench.scale.retention_steps, bench.scale.retention_chunks
    root = _store(bench, steps, chunks)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in COMMANDS}
    for number in range(bench.rounds):
        for name in COMMANDS[:: -1 if number % 2 else 1]:
            figures = _measure(root, bench, name)
            told = ", ".join(f"{what} {value:.3g}" for what, value in figures.items())
            bench.say(f"{number + 1}/{bench.rounds} {name}: {told}")
            for what, value in figures.items():
                found[name].setdefault(what, []).append(value)
    arms = [Arm(f"ckptsync {name} --dry-run", figures) for name, figures in found.items()]
    what = f"{steps} committed steps, {chunks} chunks"
    table = Table(what, arms, versus="", drawn=False)
    targets = [
        target
        for name in (arm.name for arm in arms)
        for target in (
            figure(table, name, RESIDENT, RESIDENT_MAX, f"resident memory, {what}: {name}", "MiB"),
            figure(table, name, LISTS, 1, f"lists of each prefix, {what}: {name}", ""),
        )
    ]
    return [table], targets


def _measure(root: Path, bench: Bench, name: str) -> dict[str, float]:
    arguments = [name, "--dry-run", "--config", str(root / CONFIG)]
    usage = run_child([Path(sys.executable).with_name("ckptsync"), *arguments], cwd=root)
    words = [sys.executable, "-m", "benchmarks.retention_worker", "lists", *arguments]
    counts = json.loads(run_child(words, cwd=root, environ=bench.importable).output)
    return {
        "wall s": usage.wall_s,
        "CPU s": usage.cpu_s,
        RESIDENT: usage.resident_mib,
        LISTS: max(counts.values()),
        "lists": sum(counts.values()),
    }


def _store(bench: Bench, steps: int, chunks: int) -> Path:
    """The directory of the run; built once. Nothing that is measured changes it."""
    final = bench.data / f"retention-{steps}-{chunks}"
    if not final.is_dir():
        bench.say(f"writing {steps} steps with {chunks} chunks ...")
        words = [sys.executable, "-m", "benchmarks.retention_worker", "build", str(final), str(steps), str(chunks)]
        run_child(words, cwd=bench.work, environ=bench.importable)
    return final
