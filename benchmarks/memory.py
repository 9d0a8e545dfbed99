"""Resident memory while verifying, pushing and pulling one big step: `make bench-memory`.

Writes a verl step of --gib GiB (Gaussian fp32 in torch files), then runs `ckptsync run --once` and `ckptsync pull` as
processes of their own and reports the greatest resident size of each. Exit 1 above --limit MiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

MIB = 1024 * 1024
RECORD_BYTES = 64 * MIB


def write_shard(path: Path, size: int, seed: int) -> None:
    """A torch zip whose tensors are Gaussian fp32: what weights and Adam moments look like to a codec."""
    import numpy as np
    import torch

    rng = np.random.default_rng(seed)
    base = rng.standard_normal(RECORD_BYTES // 4, dtype=np.float32)
    tensors = {}
    for index in range(max(1, size // RECORD_BYTES)):
        tensors[f"layers.{index}.weight"] = torch.from_numpy(np.roll(base, index * 4099) * np.float32(1 + index * 1e-3))
    torch.save(tensors, path)


def build(work: Path, gib: float) -> None:
    """Write the step, in a process of its own: a child starts with its parent's greatest resident size."""
    from ckptsync.testing.checkpoints import verl_step

    step = verl_step(work / "out", 20, world=2)
    each = int(gib * 1024 * MIB / 6)
    for rank in range(2):
        write_shard(step / "actor" / f"model_world_size_2_rank_{rank}.pt", each, rank)
        write_shard(step / "actor" / f"optim_world_size_2_rank_{rank}.pt", 2 * each, 2 + rank)
    os.utime(step / "data.pt")


def measure(command: list[str], cwd: Path) -> tuple[float, float]:
    """(seconds, greatest resident MiB) of a command that must succeed."""
    started = time.monotonic()
    child = os.posix_spawn(command[0], command, {**os.environ, "PWD": str(cwd)})
    _, status, usage = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"failed: {' '.join(command)}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0, help="size of the step")
    parser.add_argument("--limit", type=float, default=256.0, help="MiB")
    parser.add_argument("--dir", type=Path, default=None, help="where to work (needs three times the size)")
    parser.add_argument("--compression", default="auto")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="ckptsync-memory-", dir=options.dir))
    try:
        run(work, options)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(work: Path, options: argparse.Namespace) -> None:
    builder = multiprocessing.get_context("spawn").Process(target=build, args=(work, options.gib))
    builder.start()
    builder.join()
    size = sum(path.stat().st_size for path in (work / "out" / "global_step_20").rglob("*") if path.is_file())
    config = work / "ckptsync.toml"
    config.write_text(
        f'[run]\noutput_dir = "{work}/out"\nstate_dir = "{work}/state"\n[watch]\nsettle = "2s"\n'
        f'[upload]\ncompression = "{options.compression}"\n'
    )
    ckptsync = str(Path(sys.executable).with_name("ckptsync"))
    push_s, push_mib = measure([ckptsync, "run", "--once", "--config", str(config)], work)
    shutil.rmtree(work / "out")
    pull_s, pull_mib = measure([ckptsync, "pull", "--config", str(config)], work)
    restored = sum(path.stat().st_size for path in (work / "out" / "global_step_20").rglob("*") if path.is_file())
    stored = sum(path.stat().st_size for path in (work / "state" / "store").rglob("*") if path.is_file())
    print(f"step: {size / MIB:.0f} MiB, stored {stored / size:.3f} of it, restored {restored / MIB:.0f} MiB")
    print(f"verify, promote, push: {push_s:.1f} s, {push_mib:.0f} MiB resident at most")
    print(f"pull: {pull_s:.1f} s, {pull_mib:.0f} MiB resident at most")
    worst = max(push_mib, pull_mib)
    print(f"{'within' if worst <= options.limit else 'ABOVE'} the limit of {options.limit:.0f} MiB")
    sys.exit(worst > options.limit)


if __name__ == "__main__":
    main()
