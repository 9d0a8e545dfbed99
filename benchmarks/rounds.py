"""Interleaved rounds: A B C, B C A, C A B, on a fresh server and in a fresh directory each."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import StepData, series
from benchmarks.results import Arm
from benchmarks.scale import Scale
from benchmarks.server import Server, serving

__all__ = ["Bench", "Figures", "interleave"]

Figures = Mapping[str, float]
Action = Callable[[Server, Path], Mapping[str, Figures]]
"""Server and an empty directory -> figures by arm. One action may fill several arms."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every case is given.

    Attributes:
        scale: sizes.
        data: the runs that training.py wrote.
        work: for temporary files; on the same file system as `data`.
        rounds: how often.
    """

    scale: Scale
    data: Path
    work: Path
    rounds: int

    def series(self, run: str) -> list[StepData]:
        """The steps of one of the data's runs."""
        return series(self.data, run)

    @property
    def importable(self) -> dict[str, str]:
        """The environment in which a child that runs elsewhere finds this package."""
        paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def say(self, line: str) -> None:
        """Tell how far it has come."""
        print(f"  {line}", flush=True)


def interleave(
    bench: Bench,
    actions: Sequence[Action],
    *,
    servers: Callable[[], AbstractContextManager[Server]] = serving,
    rounds: int = 0,
) -> list[Arm]:
    """Let each action act once in each round, beginning with another one each time.

    Written pages are flushed before each action, so that none pays for its forerunner's.

    Returns:
        Arms in the order in which the first round's actions name them.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    order: dict[str, None] = {}
    count = rounds or bench.rounds
    for number in range(count):
        turn = number % len(actions)
        with servers() as server:
            done: dict[str, Figures] = {}
            for index in (*range(turn, len(actions)), *range(turn)):
                figures = _once(actions[index], server, bench.work / f"arm-{index}")
                for name, values in figures.items():
                    told = ", ".join(f"{what} {value:.3g}" for what, value in values.items())
                    bench.say(f"{number + 1}/{count} {name}: {told}")
                done |= figures
        order |= dict.fromkeys(done) if not order else {}
        for name, values in done.items():
            for what, value in values.items():
                found[name][what].append(value)
    return [Arm(name, dict(found[name])) for name in order]


def _once(action: Action, server: Server, work: Path) -> Mapping[str, Figures]:
    os.sync()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        return action(server, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
