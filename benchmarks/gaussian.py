"""A large verl step of Gaussian fp32 tensors, without training: `python -m benchmarks.gaussian DIRECTORY GIB`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch

from ckptsync.testing.checkpoints import verl_step

__all__ = ["main"]

RECORD_BYTES = 64 << 20
WORLD = 2


def _write_shard(path: Path, size: int, seed: int) -> None:
    """A torch zip with tensors of 64 MiB: what weights and Adam moments look like to a codec."""
    base = np.random.default_rng(seed).standard_normal(RECORD_BYTES // 4, dtype=np.float32)
    count = max(1, size // RECORD_BYTES)
    tensors = {
        f"layers.{index}.weight": torch.from_numpy(np.roll(base, index * 4099) * np.float32(1 + index * 1e-3))
        for index in range(count)
    }
    torch.save(tensors, path)


def main() -> None:
    """Write step 20, of two ranks, weights and twice as much of moments."""
    directory, gib = Path(sys.argv[1]), float(sys.argv[2])
    step = verl_step(directory, 20, world=WORLD, n=64)
    each = int(gib * 2**30 / (3 * WORLD))
    for rank in range(WORLD):
        _write_shard(step / "actor" / f"model_world_size_{WORLD}_rank_{rank}.pt", each, rank)
        _write_shard(step / "actor" / f"optim_world_size_{WORLD}_rank_{rank}.pt", 2 * each, WORLD + rank)
    os.utime(step / "data.pt")  # the closing file comes last


if __name__ == "__main__":
    main()
