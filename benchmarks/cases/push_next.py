"""Push of the next step of a LoRA run over a frozen base."""

from __future__ import annotations

from pathlib import Path

from benchmarks.arms import OURS, STORED, WALL, push_figures
from benchmarks.data import StepData
from benchmarks.measure import warm
from benchmarks.node import Node
from benchmarks.peers import Peer, Place, available
from benchmarks.results import Table, Target, against, figure
from benchmarks.rounds import Action, Bench, Figures, interleave
from benchmarks.server import Server

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Push of the next step: LoRA over a frozen base"
METHOD = (
    "95 % of the step's bytes are as in the step before, in the same file as the adapters, between them. Each arm "
    "pushes the step before first, untimed, to the same place (restic: the same repository). Timed: the whole "
    "process of the second push; the files are in the page cache. `stored/raw` counts what the second push added."
)
PEERS = ("s5cmd", "rclone", "restic")


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """The run lora."""
    before, step = bench.series("lora")
    actions = [_ours(before, step), *(_theirs(peer, before, step) for peer in available(PEERS))]
    table = Table(f"LoRA step, {step.bytes / 1e6:.0f} MB", interleave(bench, actions))
    return [table], [
        figure(table, OURS, STORED, 0.08, "push, next step (LoRA): uploaded to raw", "x"),
        against(table, "s5cmd", 0.35, "push, next step (LoRA): wall to s5cmd's", figure=WALL),
    ]


def _ours(before: StepData, step: StepData) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work, server, "ours")
        node.add(before)
        node.prepare()
        node.push()
        node.add(step)
        node.prepare()
        warm(step.paths())
        stored = server.stored(node.name)[0]
        usage, _ = node.push()
        return {OURS: push_figures(usage, step, server.stored(node.name)[0] - stored)}

    return action


def _theirs(peer: Peer, before: StepData, step: StepData) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        place = Place(server, peer.name.replace(" ", "-"), work / "peer")
        peer.begin(place)
        peer.upload(place, before.path)
        # tools that copy names get a new directory; restic has one repository for all
        following = place if peer.start else Place(server, f"{place.prefix}-next", place.work)
        warm(step.paths())
        stored = server.stored(following.prefix)[0]
        usage = peer.upload(following, step.path)
        return {peer.name: push_figures(usage, step, server.stored(following.prefix)[0] - stored)}

    return action
