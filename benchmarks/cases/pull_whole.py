"""Pull of a whole step onto an empty disk."""

from __future__ import annotations

from benchmarks.arms import peers_pulling, pulling
from benchmarks.results import Table, Target, against
from benchmarks.rounds import Bench, interleave

TITLE = "Pull of a whole step"
METHOD = (
    "Each arm pushes the step first, untimed; the server has it in its page cache. Timed: the whole process of "
    "the pull into an empty directory. ckptsync compares every digest and syncs every file to the disk before the "
    "step appears; `s5cmd + sync` adds what it takes to sync s5cmd's files."
)
PEERS = ("s5cmd", "rclone", "aws s3 cp", "restic", "boto3", "s3fs")


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """fp32, all peers."""
    step = bench.series("fp32")[0]
    arms = interleave(bench, [pulling([step]), *peers_pulling(step, PEERS)])
    table = Table(f"fp32 weights and moments, {step.bytes / 1e6:.0f} MB", arms)
    return [table], [
        against(table, "s5cmd", 1.25, "pull, whole step: wall to s5cmd's"),
        against(table, "restic", 0.6, "pull, whole step: wall to restic's"),
        against(table, "s5cmd + sync", 1.25, "(pull, whole step: wall to s5cmd's and a sync)"),
    ]
