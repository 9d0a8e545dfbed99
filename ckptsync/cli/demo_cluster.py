"""The play of `ckptsync demo --cluster`: four nodes lose one in the middle of a save, and resume together, twice."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ckptsync.cli.demo_machine import Machine, Saved, Shared, end, require, say
from ckptsync.cli.demo_stage import Stage, compare
from ckptsync.cli.render import human_size
from ckptsync.disk import durable
from ckptsync.errors import UsageError
from ckptsync.testing.seaweed import SeaweedFS, weed_binary

__all__ = ["play_cluster"]

_NODES, _WORLD = 4, 8
_BYTES = 256 * 1024
_BEFORE = ((0, 1), (2, 3), (4, 5), (6, 7))
_AFTER = ((4, 5), (6, 7), (0, 1), (2, 3))
_DRIVER, _LOST = 0, 3
_EXAMPLE = "node-0"
_LAST_FILE = "actor/model_world_size_8_rank_7.pt"
_SECRET_BYTES = 32
_PRIVATE = 0o600
_PEER_PORT = 7070
_STEP_S = 60.0
_POLL_S = 0.1


def play_cluster(stage: Stage) -> None:
    """The demo of four nodes, from the first save to the second comparison.

    Raises:
        UsageError: there is no server to be the store.
        CkptsyncError: something did not go as promised.
    """
    nodes = _build(stage)
    _start_training(nodes, _BEFORE, seed=1)
    for node in nodes:
        node.start_daemon()
    first = _save_and_commit(nodes, 20)
    _lose_a_node(nodes, 40)
    _pull(nodes, "job-1", first, [first.name])
    for node in nodes[:_LOST]:
        node.end_daemon()
    second = _save_unseen(nodes, 40)
    _pull(nodes, "job-2", second, [first.name, second.name])


def _build(stage: Stage) -> list[Machine]:
    shared = _shared(stage)
    peers = _peer_tables(stage.root)
    nodes = [stage.add(Machine(shared, number, peers[number])) for number in range(_NODES)]
    say(
        f"Four nodes, each with a disk of its own below {stage.root}. All that they share is the store, {shared.store}."
    )
    if not any(peers):
        say("aiohttp is not installed (extra `peers`), so the store gives everything to each node.")
    return nodes


def _shared(stage: Stage) -> Shared:
    """With SeaweedFS as the store, unless one was given."""
    if stage.store:
        return stage.shared(store=stage.store, nodes=_NODES)
    try:
        weed_binary()
    except FileNotFoundError as error:
        raise UsageError("the nodes need a store", why=str(error), remedy="or name yours with --store") from None
    server = stage.stack.enter_context(SeaweedFS("demo"))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ = {**ours, **server.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return stage.shared(store=server.url(), nodes=_NODES, environ=environ)


def _peer_tables(root: str) -> Sequence[str]:
    """[peer] for each node: an address of its own on loopback, and one secret."""
    if find_spec("aiohttp") is None:
        return [""] * _NODES
    file = os.path.join(root, "peer.secret")
    durable.publish(file, secrets.token_hex(_SECRET_BYTES).encode(), mode=_PRIVATE)
    network = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}"
    return [
        f'[peer]\nlisten = "{network}.{1 + number}:{_PEER_PORT}"\nsecret_file = {json.dumps(file)}\n'
        for number in range(_NODES)
    ]


# -- the training


def _start_training(nodes: Sequence[Machine], ranks: Sequence[Sequence[int]], *, seed: int) -> None:
    driver = ranks.index((0, 1))
    for node, mine in zip(nodes, ranks, strict=True):
        share = {"world": _WORLD, "ranks": mine, "driver": node is nodes[driver], "hf": True, "seed": seed, "n": _BYTES}
        node.start_training(**share)
    dealt = ", ".join(f"{node.name}: {a} and {b}" for node, (a, b) in zip(nodes, ranks, strict=True))
    writers = {node.writer() for node in nodes}
    say(f"A training of {_WORLD} ranks starts ({dealt}). It writes with {writers.pop()}.")
    say(f"Each rank writes its shards to its own node; data.pt and the tracker are only on {nodes[driver].name}.")


def _save(nodes: Sequence[Machine], step: int) -> Saved:
    """Have a step saved; returns the whole of it, which no node has."""
    for node in nodes:
        node.begin_save(step)
    shares = [node.saved() for node in nodes]
    for node, share in zip(nodes, shares, strict=True):
        say(f"  {node.name} has saved its share of step {step}: {share.count} files, {human_size(share.size)}.")
    return _whole(shares)


def _whole(shares: Sequence[Saved]) -> Saved:
    """The union of shares; a directory is as the node had it that changed it last."""
    union: dict[str, list[Any]] = {}
    for share in shares:
        for path, entry in share.files.items():
            if path not in union or entry[3] > union[path][3]:
                union[path] = entry
    return Saved(shares[0].step, shares[0].path, "", union)


# -- the acts


def _save_and_commit(nodes: Sequence[Machine], step: int) -> Saved:
    """Who notices first that all shards are in the store commits; the others hear of it within half a minute."""
    whole = _save(nodes, step)
    deadline = time.monotonic() + _STEP_S
    while not any(node.has_committed(step) for node in nodes):
        require(time.monotonic() < deadline, f"step {step} is committed within {_STEP_S:g} s", "no node says so")
        time.sleep(_POLL_S)
    say(f"Step {step} is committed: {whole.count} files from four nodes, {human_size(whole.size)}.")
    return whole


def _lose_a_node(nodes: Sequence[Machine], step: int) -> None:
    """One node dies in the middle of a save, and an empty one takes its place."""
    lost = nodes[_LOST]
    say(f"Step {step} is being saved when {lost.name} dies, with its disk. The other ranks hang, and are killed.")
    for node in nodes:
        more: Mapping[str, object] = {}
        if node is lost:
            more = {"until": _LAST_FILE}
        elif node is nodes[_DRIVER]:
            more = {"driver": False}  # it waits for all ranks before it writes data.pt
        node.begin_save(step, **more)
    for node in nodes:
        node.saved()
    lost.die()
    for node in nodes:
        node.kill_training()
    say(f"An empty node takes its place, under the same name. What the others have of step {step} is not whole.")
    lost.prepare()


def _save_unseen(nodes: Sequence[Machine], step: int) -> Saved:
    say("The training goes on, with the ranks dealt out anew; no daemon runs.")
    _start_training(nodes, _AFTER, seed=2)
    whole = _save(nodes, step)
    for node in nodes:
        node.kill_training()
    say(
        f"The job is killed. Step {step} is on the disks only, a share on each, "
        f"and has other bytes than the step {step} before."
    )
    return whole


def _pull(nodes: Sequence[Machine], attempt: str, expected: Saved, steps: list[str]) -> None:
    """All nodes pull at once, and every byte is compared."""
    words = ("pull", "--nodes", str(_NODES), "--attempt", attempt, "--json")
    say(f"$ ckptsync {' '.join(words)}    (on all nodes)")
    running = [node.start(*words) for node in nodes]
    try:
        for node, command in zip(nodes, running, strict=True):
            _show(node, command, expected)
    finally:
        for command in running:
            end(command)
    for node in nodes:
        compare(node, expected, steps)
    say(
        f"Step {expected.step} is on all nodes: all {expected.size} bytes in {expected.count} files are identical, "
        "modes and mtimes too."
    )


def _show(node: Machine, command: subprocess.Popen[str], expected: Saved) -> None:
    """What the first node says, as an example, and what each has taken from where."""
    out, err = command.communicate()
    if command.returncode or node.name == _EXAMPLE:
        for line in err.splitlines():
            say(f"  {node.name} | {line}")
    require(command.returncode == 0, f"`ckptsync pull` succeeds on {node.name}", f"exit code {command.returncode}")
    result = json.loads(out)
    store, peers, disk = (human_size(result[f"bytes_{way}"]) for way in ("fetched", "from_peers", "reused"))
    step = result["step"]
    say(f"  {node.name} has step {step}: {store} from the store, {peers} from other nodes, {disk} from its disk.")
    require(step == expected.step, f"{node.name} restores step {expected.step}", f"it has step {step}")
