"""A step of many small files, pushed and pulled."""

from __future__ import annotations

from benchmarks.arms import peers_pulling, peers_pushing, pulling, pushing
from benchmarks.results import Table, Target, against
from benchmarks.rounds import Bench, interleave

TITLE = "Small files"
METHOD = (
    "JSON files of 0.2 to 4 KiB. Timed: the whole process. Push: the files are in the page cache, and verified "
    "before. Pull: into an empty directory; ckptsync syncs every file to the disk, `s5cmd + sync` adds that."
)
PEERS = ("s5cmd", "rclone", "restic", "boto3")
ROUNDS = 3


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """The run small."""
    step = bench.series("small")[0]
    rounds = min(bench.rounds, ROUNDS)
    what = f"{step.files} files, {step.bytes / 1e6:.0f} MB"
    pushed = interleave(bench, [pushing(step), *peers_pushing(step, PEERS)], rounds=rounds)
    pulled = interleave(bench, [pulling([step]), *peers_pulling(step, PEERS)], rounds=rounds)
    push, pull = Table(f"push of {what}", pushed), Table(f"pull of {what}", pulled)
    return [push, pull], [
        against(push, "s5cmd", 0.2, f"push, {step.files} small files: wall to s5cmd's"),
        against(pull, "s5cmd", 0.2, f"pull, {step.files} small files: wall to s5cmd's"),
        against(pull, "s5cmd + sync", 0.2, "(pull, small files: wall to s5cmd's and a sync)"),
    ]
