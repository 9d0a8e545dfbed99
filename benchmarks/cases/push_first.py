"""Push of a first step to the same S3 server."""

from __future__ import annotations

from benchmarks.arms import CPU, CPU_BEYOND, OURS, STORED, VERIFY_TOO, peers_pushing, pushing
from benchmarks.results import Table, Target, against, figure
from benchmarks.rounds import Bench, interleave

TITLE = "Push of a first step"
METHOD = (
    "Timed: the whole process. The step's files are in the page cache for every arm, as just after a save. "
    "`ckptsync push` uploads a step that the daemon has verified before, which is what s5cmd and restic are "
    "compared with: s5cmd neither hashes nor verifies. `ckptsync verify + push` adds the time of a full "
    "verification in a process of its own. CPU counts user and system time of the client's processes; `beyond "
    "start` is without that of a second push, which finds nothing to do."
)
PEERS = ("s5cmd", "rclone", "aws s3 cp", "restic", "boto3", "s3fs")
STORED_MOST = {"fp32": 0.84, "bf16": 0.68}
NONE = f"{OURS}, none"


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """fp32 and bf16, all peers; and without compression."""
    tables, targets = [], []
    for dtype, most in STORED_MOST.items():
        step = bench.series(dtype)[0]
        actions = [pushing(step), pushing(step, compression="none", verify=False), *peers_pushing(step, PEERS)]
        table = Table(f"{dtype} weights and moments, {step.bytes / 1e6:.0f} MB", interleave(bench, actions))
        tables.append(table)
        targets += [
            against(table, "s5cmd", 1.0, f"push, first step, {dtype}: wall to s5cmd's"),
            against(table, "restic", 0.6, f"push, first step, {dtype}: wall to restic's"),
            figure(table, OURS, STORED, most, f"push, first step, {dtype}: stored to raw", "x"),
            figure(table, OURS, CPU, 3.0, f"push, first step, {dtype}: client CPU per raw GB", "s"),
            figure(table, NONE, CPU, 0.6, f'push, first step, {dtype}, compression = "none": CPU per raw GB', "s"),
            figure(table, OURS, CPU_BEYOND, 3.0, f"(push, {dtype}: CPU per raw GB beyond the process's start)", "s"),
            figure(
                table, NONE, CPU_BEYOND, 0.6, f"(push, {dtype}, none: CPU per raw GB beyond the process's start)", "s"
            ),
            against(table, "s5cmd", 1.0, f"(verify + push, {dtype}: wall to s5cmd's)", ours=VERIFY_TOO),
        ]
    return tables, targets
