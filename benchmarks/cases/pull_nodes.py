"""Pull of a whole step onto four nodes at once: what the store gives for it, with peers and without."""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.arms import OURS_PULL, WALL, check
from benchmarks.data import StepData
from benchmarks.node import Node
from benchmarks.proxy import counting
from benchmarks.results import Table, Target, figure
from benchmarks.rounds import Action, Bench, Figures, interleave
from benchmarks.server import Server

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Pull of a whole step onto four nodes"
METHOD = (
    "One node pushes the step; four others, with empty disks, pull it together (`ckptsync pull --nodes 4 --attempt "
    "ID`), all on this machine, each at a loopback address of its own. `given/stored` is all that the server sent to "
    "the four of them, listings and HTTP headers included, as counted by a proxy in front of it, to what it stores of "
    "the run. The time is that of the last node; it shows four nodes, a server and a proxy that share the machine's "
    "cores, and nothing about a network."
)
NODES = 4
GIVEN = "given/stored"
MOST = 1.2
ROUNDS = 3
_PORT = 7070


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """fp32, with [peer] and without."""
    step = bench.series("fp32")[0]
    actions = [_pulling(step, peers=True), _pulling(step, peers=False)]
    arms = interleave(bench, actions, rounds=min(bench.rounds, ROUNDS))
    table = Table(f"fp32 weights and moments, {step.bytes / 1e6:.0f} MB, on {NODES} nodes", arms, drawn=False)
    what = f"pull on {NODES} nodes with peers: what the store gives to what it stores"
    return [table], [figure(table, _name(peers=True), GIVEN, MOST, what, "x")]


def _name(*, peers: bool) -> str:
    return f"{OURS_PULL}, {'peers' if peers else 'no peers'}"


def _pulling(step: StepData, *, peers: bool) -> Action:
    def action(server: Server, work: Path) -> dict[str, Figures]:
        name = "with" if peers else "without"
        source = Node(work / "source", server, name)
        source.add(step)
        source.prepare()
        source.push()
        stored = server.stored(name)[0]
        with counting(server) as (counted, counts):
            nodes = [
                Node(work / f"node-{number}", counted, name, settings=_settings(work, number, peers=peers))
                for number in range(NODES)
            ]
            os.sync()
            started = time.monotonic()
            with ThreadPoolExecutor(NODES) as pool:
                list(pool.map(lambda node: node.pull("--nodes", str(NODES), "--attempt", "job-1"), nodes))
            wall = time.monotonic() - started
        for node in nodes:
            check(node.output / step.path.name, step)
        return {_name(peers=peers): {GIVEN: counts.answered / stored, WALL: wall}}

    return action


def _settings(work: Path, number: int, *, peers: bool) -> str:
    """A name, and an address where chunks are given."""
    named = f'[node]\nname = "node-{number}"\n'
    if not peers:
        return named
    secret = work / "secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
    address = f"127.{1 + os.getpid() % 250}.1.{1 + number}:{_PORT}"
    return f'{named}[peer]\nlisten = "{address}"\nsecret_file = "{secret}"\n'
