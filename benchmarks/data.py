"""The measured data: built once by a child process, and kept for the next time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale import Scale

__all__ = ["GENERATION", "StepData", "build", "link_tree", "series"]

GENERATION = 1
"""Of what training.py writes: with another number, everybody's data is built again."""


@dataclass(frozen=True, slots=True)
class StepData:
    """One step directory.

    Attributes:
        path: the directory; its name is the trainer's.
        number: the step.
        bytes: of all its files.
        files: how many.
    """

    path: Path
    number: int
    bytes: int
    files: int

    def paths(self) -> list[Path]:
        """All files."""
        return [path for path in self.path.rglob("*") if path.is_file()]


def build(directory: Path, scale: Scale) -> Path:
    """The directory with the runs fp32, bf16, lora and small (training.py); builds it unless it is there."""
    digest = hashlib.sha256(repr((GENERATION, scale.data)).encode()).hexdigest()[:12]
    final = directory / f"data-{scale.name}-{digest}"
    if not final.is_dir():
        temporary = directory / f"building-{scale.name}-{os.getpid()}"
        temporary.mkdir(parents=True)
        print(f"training the checkpoints to measure ({scale.name}) ...", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "benchmarks.training", temporary, scale.name], check=True)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def series(data: Path, run: str) -> list[StepData]:
    """The steps of a run, by number."""
    found = [_step(path) for path in (data / run).glob("global_step_*")]
    return sorted(found, key=lambda step: step.number)


def _step(path: Path) -> StepData:
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return StepData(path, int(path.name.rpartition("_")[2]), sum(sizes), len(sizes))


def link_tree(source: Path, target: Path) -> None:
    """`target` becomes a copy of the tree that shares the files' data, as if just written there."""
    shutil.copytree(source, target, copy_function=os.link)
