"""Pull of a step whose predecessor is still on the disk."""

from __future__ import annotations

from benchmarks.arms import peers_pulling, pulling
from benchmarks.results import Table, Target, against
from benchmarks.rounds import Bench, interleave

TITLE = "Pull with the previous step still on disk"
METHOD = (
    "A LoRA step, 95 % of it as in the step before, which this node still has; the peers fetch the whole step. "
    "Timed: the whole process of the pull. ckptsync compares every digest and syncs every file before the step "
    "appears."
)
PEERS = ("s5cmd", "rclone", "restic")


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """The run lora."""
    steps = bench.series("lora")
    arms = interleave(bench, [pulling(steps, kept=1), *peers_pulling(steps[-1], PEERS)])
    table = Table(f"LoRA step, {steps[-1].bytes / 1e6:.0f} MB", arms)
    return [table], [
        against(table, "s5cmd", 0.3, "pull, previous step on disk (95 % unchanged): wall to s5cmd's"),
        against(table, "s5cmd + sync", 0.3, "(pull, previous step on disk: wall to s5cmd's and a sync)"),
    ]
