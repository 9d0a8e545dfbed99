"""Verification at level full, and what the push after it reads again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.data import StepData
from benchmarks.measure import evict, warm
from benchmarks.node import Node
from benchmarks.results import Table, Target, figure
from benchmarks.rounds import Action, Bench, Figures, interleave
from benchmarks.server import Server
from ckptsync.testing.checkpoints import verl_step

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Verify at level full"
METHOD = (
    "`ckptsync verify` in a process of its own, with the step's files evicted from the page cache before it "
    "(cold) or read just before (warm). Raw bytes per second of wall time, and per second of CPU time less that "
    "of the same on an almost empty step. Bytes read by the push that follows are those of its read system calls, "
    "less those of a second push that has nothing left to do."
)
OURS = "ckptsync verify"
PER_CORE, WALL_GBS, READ = "GB per CPU s", "GB per wall s", "read by push/raw"


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """fp32."""
    step = bench.series("fp32")[0]
    actions = [_verifying(step, cold=False), _verifying(step, cold=True), _pushing(step)]
    table = Table(f"fp32 step, {step.bytes / 1e6:.0f} MB", interleave(bench, actions), versus="", drawn=False)
    return [table], [
        figure(table, f"{OURS}, warm", PER_CORE, 0.9, "verify at full: GB/s per core", "GB/s", at_least=True),
        figure(table, "ckptsync push", READ, 1.02, "push after verify: bytes read to raw", "x"),
    ]


def _verifying(step: StepData, *, cold: bool) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work, server, "verified")
        node.add(step)
        tiny = verl_step(work / "tiny", step.number, n=64)
        started = node.ckptsync("verify", str(tiny))
        (evict if cold else warm)(step.paths())
        usage = node.ckptsync("verify", str(node.output / step.path.name))
        per_core = step.bytes / 1e9 / (usage.cpu_s - started.cpu_s)
        return {
            f"{OURS}, {'cold' if cold else 'warm'}": {PER_CORE: per_core, WALL_GBS: step.bytes / 1e9 / usage.wall_s}
        }

    return action


def _pushing(step: StepData) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work, server, "ours")
        node.add(step)
        node.prepare()
        usage, _ = node.push()
        again, _ = node.push()
        return {"ckptsync push": {READ: (usage.read_bytes - again.read_bytes) / step.bytes}}

    return action
