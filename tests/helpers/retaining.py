"""Steps of a run and what `retain` says of them; used with the nodes of tests/e2e/conftest.py."""

from __future__ import annotations

import json
import os

from ckptsync.testing.checkpoints import verl_step

KEEP_TWO = "[retention.local]\ndelete = true\nkeep_last = 2\n"
STEPS = (10, 20, 30, 40, 50)


def save(node, *steps, **options):
    """Steps as the trainer writes them, a second apart by their mtimes."""
    for step in steps:
        path = verl_step(node.ckpt, step, **options)
        for entry in (*path.rglob("*"), path):
            os.utime(entry, ns=(10**9, (1_700_000_000 + step) * 10**9))
    os.utime(node.tracker, ns=(10**9, (1_700_000_000 + steps[-1]) * 10**9))


def names(node):
    return sorted(int(path.name.removeprefix("global_step_")) for path in node.ckpt.glob("global_step_*"))


def retain(node, *arguments, code=0):
    done = node.run("retain", "--json", *arguments)
    assert done.code == code, done.err
    return json.loads(done.out)


def verdicts(found, side="local"):
    return {row["step"]: row["keep"] for row in found[side]}


def reasons(found, step, side="local"):
    return next(row["reasons"] for row in found[side] if row["step"] == step)


def unreachable(node):
    """The configuration names a store that nobody answers for; `node.write_config()` ends that."""
    node.environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "NO_PROXY": "127.0.0.1"}
    node.write_config('s3://bucket/run"\nendpoint = "http://127.0.0.1:9"\nregion = "us-east-1')


def trash(node):
    return [path.name for path in (node.staging / "trash").glob("*")]


def uploaded(node, *steps):
    """Saved, verified and committed; retention has had no say in it."""
    save(node, *steps)
    settings, node.settings = node.settings, ""
    node.write_config()
    node.once()
    node.settings = settings
    node.write_config()
