"""The actions that most cases are made of: push and pull one step, by ckptsync or by a peer."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from benchmarks.data import StepData
from benchmarks.measure import CommandFailed, Usage, sync_tree, warm
from benchmarks.node import Node
from benchmarks.peers import Peer, Place, available
from benchmarks.rounds import Action, Figures
from benchmarks.server import Server

__all__ = [
    "CPU",
    "CPU_BEYOND",
    "OURS",
    "OURS_PULL",
    "SPEED",
    "STORED",
    "VERIFY_TOO",
    "WALL",
    "check",
    "peers_pulling",
    "peers_pushing",
    "pulling",
    "push_figures",
    "pushing",
]

GB = 10**9
CPU_BEYOND = "beyond start, CPU s/GB"
WALL, SPEED, CPU, STORED = "wall s", "MB/s", "CPU s/GB", "stored/raw"
OURS = "ckptsync push"
OURS_PULL = "ckptsync pull"
VERIFY_TOO = "ckptsync verify + push"


def push_figures(usage: Usage, step: StepData, stored: int) -> Figures:
    """The figures of one push."""
    return {**_figures(usage, step), STORED: stored / step.bytes}


def pushing(step: StepData, *, compression: str = "auto", verify: bool = True) -> Action:
    """Push a verified step by ckptsync; with `verify` the time of `ckptsync verify` is told, too."""
    name = OURS if compression == "auto" else f"{OURS}, {compression}"

    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work, server, f"ours-{compression}", compression)
        node.add(step)
        warm(step.paths())
        checked = node.ckptsync("verify", str(node.output / step.path.name)) if verify else None
        node.prepare()
        usage, _ = node.push()
        stored = server.stored(node.name)[0]
        idle, _ = node.push()  # finds nothing to do
        beyond = max(0.0, usage.cpu_s - idle.cpu_s) / step.bytes * GB
        found: dict[str, Figures] = {name: {**push_figures(usage, step, stored), CPU_BEYOND: beyond}}
        if checked:
            both = Usage(checked.wall_s + usage.wall_s, checked.cpu_s + usage.cpu_s)
            found[VERIFY_TOO] = push_figures(both, step, stored)
        return found

    return action


def peers_pushing(step: StepData, names: Collection[str]) -> list[Action]:
    """An action for each installed peer: it pushes the step to a fresh prefix."""
    return [_peer_pushing(peer, step) for peer in available(names)]


def _peer_pushing(peer: Peer, step: StepData) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        place = Place(server, peer.name.replace(" ", "-"), work / "peer")
        peer.begin(place)
        warm(step.paths())
        usage = peer.upload(place, step.path)
        return {peer.name: push_figures(usage, step, server.stored(place.prefix)[0])}

    return action


def pulling(steps: list[StepData], *, kept: int = 0) -> Action:
    """Pull the last of these steps by ckptsync, with the first `kept` still on this disk."""

    def action(server: Server, work: Path) -> dict[str, Figures]:
        node = Node(work, server, "ours")
        for step in steps:
            node.add(step)
            node.prepare()
            node.push()
        node.lose_output(keep=kept)
        os.sync()
        usage = node.pull()
        check(node.output / steps[-1].path.name, steps[-1])
        return {OURS_PULL: _figures(usage, steps[-1])}

    return action


def peers_pulling(step: StepData, names: Collection[str]) -> list[Action]:
    """An action for each installed peer: it pulls the whole step."""
    return [_peer_pulling(peer, step) for peer in available(names)]


def _peer_pulling(peer: Peer, step: StepData) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        place = Place(server, peer.name.replace(" ", "-"), work / "peer")
        peer.begin(place)
        peer.upload(place, step.path)
        os.sync()
        target = work / "pulled"
        usage = peer.download(place, target)
        check(target, step)
        found: dict[str, Figures] = {peer.name: _figures(usage, step)}
        if peer.name == "s5cmd":
            synced = sync_tree(target)
            found[f"{peer.name} + sync"] = _figures(Usage(usage.wall_s + synced, usage.cpu_s), step)
        return found

    return action


def check(pulled: Path, step: StepData) -> None:
    """Raises CommandFailed unless as many bytes came back as the step has."""
    found = sum(path.stat().st_size for path in pulled.rglob("*") if path.is_file())
    if found != step.bytes:
        msg = f"{found} bytes were pulled of {step.bytes}"
        raise CommandFailed(msg)


def _figures(usage: Usage, step: StepData) -> dict[str, float]:
    raw = step.bytes / GB
    return {WALL: usage.wall_s, SPEED: 1000 * raw / usage.wall_s, CPU: usage.cpu_s / raw}
