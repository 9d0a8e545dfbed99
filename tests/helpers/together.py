"""Nodes that pull together, each a real process: what their trainers write, and where they all stand afterwards."""

import json
import os

from ckptsync.testing.checkpoints import verl_step


def save(nodes, step, **options):
    """What the trainer writes on all nodes."""
    for number, node in enumerate(nodes):
        world = len(nodes) * 2
        ranks = [2 * number, 2 * number + 1]
        verl_step(node.ckpt, step, world=world, ranks=ranks, driver=number == 0, **options)


def commit(nodes):
    for node in nodes:
        node.once()


def start(nodes, *arguments, attempt="job-1", timeout="60s", count=None):
    return [
        node.start(
            "pull", "--json", "--attempt", attempt, "--timeout", timeout, "--nodes", count or len(nodes), *arguments
        )
        for node in nodes
    ]


def ended(running):
    return [each.wait() for each in running]


def pull(nodes, *arguments, **options):
    """All nodes pull at once, and all must end well: their JSON."""
    results = ended(start(nodes, *arguments, **options))
    assert [done.code for done in results] == [0] * len(nodes), "\n".join(done.err for done in results)
    return [json.loads(done.out) for done in results]


def stand_on(nodes, step):
    """All nodes have the whole step, the same, and their trainers will find it and no other."""
    for node in nodes:
        assert node.tracker.read_text() == str(step)
        assert node.named() == f"global_step_{step}"
        numbers = [int(name.rpartition("_")[2]) for name in os.listdir(node.ckpt) if name.startswith("global_step_")]
        assert max(numbers) == step
        assert node.leftovers() == []


def content(tree_of, node, step):
    return {p: entry for p, entry in tree_of(node.ckpt / f"global_step_{step}").items() if entry[0] == "file"}


def rounds(node, attempt="job-1"):
    """round -> (offers, decision or None, done)."""
    root = node.store / "r" / "attempts" / attempt
    found = {}
    for directory in sorted(root.iterdir()):
        names = {
            kind: sorted(os.listdir(directory / kind)) if (directory / kind).is_dir() else []
            for kind in ("offers", "done")
        }
        decided = directory / "decision.json"
        found[int(directory.name)] = (
            [name.removesuffix(".json") for name in names["offers"]],
            json.loads(decided.read_bytes()) if decided.exists() else None,
            names["done"],
        )
    return found
