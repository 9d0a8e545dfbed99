"""How large and how often: `full` for figures to quote, `quick` to see that everything runs."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FULL", "QUICK", "Scale", "bench_dir"]


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the data, and rounds.

    Attributes:
        name: "full" or "quick"; also the data's directory.
        rounds: of every interleaved comparison, unless a case says otherwise.
        width, depth: of the transformer that is trained: 12 * depth * width**2 parameters and its embedding.
        lora_width, lora_depth: of the frozen base below the LoRA adapters.
        optimizer_steps: before the first step is saved.
        small_files: how many.
        memory_gib: size of the step whose resident memory is measured.
        remote_steps: committed steps in the store that `status` and `pull` look through.
        retention_steps, retention_chunks: committed steps and chunks in the store that `retain` and `gc` judge.
        trainer_pairs: stretches with and without the daemon, at most.
        trainer_stretch_s: length of each, seconds.
        command_rounds: at least so many for commands that take less than a second.
    """

    name: str
    rounds: int
    width: int
    depth: int
    lora_width: int
    lora_depth: int
    optimizer_steps: int
    small_files: int
    memory_gib: float
    remote_steps: int
    retention_steps: int
    retention_chunks: int
    trainer_pairs: int
    trainer_stretch_s: float
    command_rounds: int

    @property
    def data(self) -> tuple[int, ...]:
        """What the data depends on."""
        return (self.width, self.depth, self.lora_width, self.lora_depth, self.optimizer_steps, self.small_files)


FULL = Scale(
    name="full",
    rounds=5,
    width=640,
    depth=12,
    lora_width=1024,
    lora_depth=20,
    optimizer_steps=30,
    small_files=20_000,
    memory_gib=4.0,
    remote_steps=1000,
    retention_steps=2000,
    retention_chunks=200_000,
    trainer_pairs=60,
    trainer_stretch_s=2.0,
    command_rounds=7,
)
QUICK = Scale(
    name="quick",
    rounds=1,
    width=320,
    depth=6,
    lora_width=512,
    lora_depth=8,
    optimizer_steps=4,
    small_files=1000,
    memory_gib=0.25,
    remote_steps=50,
    retention_steps=50,
    retention_chunks=5000,
    trainer_pairs=3,
    trainer_stretch_s=2.0,
    command_rounds=1,
)


def bench_dir() -> Path:
    """Where data is built and measured: $CKPTSYNC_BENCH_DIR, else below the system's temporary directory."""
    chosen = os.environ.get("CKPTSYNC_BENCH_DIR")
    return Path(chosen).absolute() if chosen else Path(tempfile.gettempdir()) / f"ckptsync-bench-{os.getuid()}"
