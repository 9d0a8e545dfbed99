"""A trainer on all cores that tells how long each step takes: `python -m benchmarks.trainer_worker SECONDS`.

Prints one line for each step: when it ended (time.monotonic) and how long it took, in seconds.
"""

from __future__ import annotations

import os
import sys
import time

import torch

from benchmarks.training import Transformer, batches

__all__ = ["main"]

WIDTH, DEPTH = 256, 4
BATCH, LENGTH = 4, 64


def main() -> None:
    """Train until the time is up."""
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    model = Transformer(WIDTH, DEPTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    drawn = batches(1, batch=BATCH, length=LENGTH)
    data = [next(drawn) for _ in range(8)]  # drawn beforehand: the step is to be compute alone
    end = time.monotonic() + float(sys.argv[1])
    count = 0
    while (begun := time.monotonic()) < end:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data[count % len(data)])
        loss.backward()
        optimizer.step()
        count += 1
        now = time.monotonic()
        print(f"{now:.4f} {now - begun:.5f}", flush=True)


if __name__ == "__main__":
    main()
