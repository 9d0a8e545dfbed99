"""What the daemon tells others: `<state_dir>/status.json`, rewritten each pass."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ckptsync.app import Node
from ckptsync.disk import durable
from ckptsync.disk.lock import RunLock
from ckptsync.disk.saves import Save, Saves
from ckptsync.disk.stage import free_bytes
from ckptsync.resume.last_outcome import kept
from ckptsync.sync.local import StepView

__all__ = ["Report", "read_status", "remote_summary", "write_status"]

Report = dict[str, Any]
_FILE = "status.json"


def write_status(state_dir: str, views: Sequence[StepView], latest: str | None, problems: Sequence[str]) -> None:
    """Write the outcome of a pass. Raises as `durable.publish`."""
    report = {
        "pid": os.getpid(),
        "last_pass_s": time.time(),
        "latest": latest,
        "problems": list(problems),
        "steps": [
            {
                "step": view.step,
                "name": view.name,
                "local": view.state.value,
                "reasons": [str(problem) for problem in view.problems],
                "bytes": view.listing.size,
            }
            for view in views
        ],
    }
    durable.publish(os.path.join(state_dir, _FILE), json.dumps(report).encode())


def read_status(state_dir: str) -> Report:
    """The last report; {} if there is none that can be read."""
    try:
        with open(os.path.join(state_dir, _FILE), encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def remote_summary(saves: Saves, known: Sequence[Save], now_s: float) -> Mapping[str, int | float | None]:
    """The newest committed save this node knows of: its step, seconds since its commit, and the lag in steps."""
    verified = max((save.part.step for save in known[-1:]), default=None)
    for save in reversed(known):
        commit = save.commit or saves.mark_of(save, "commit")
        if commit:
            lag = None if verified is None else max(verified - save.part.step, 0)
            return {
                "committed": save.part.step,
                "age_s": max(now_s - saves.marked_at(save, "commit"), 0.0),
                "lag_steps": lag,
            }
    return {"committed": None, "age_s": None, "lag_steps": verified}


def summary(node: Node, views: Sequence[StepView], known: Sequence[Save], latest: str | None) -> Report:
    """The JSON of `status`: what is known without asking the store."""
    config, last = node.config, read_status(node.config.state_dir)
    verified = [view for view in views if view.save is not None]
    newest = max(verified, key=lambda view: view.end_ns, default=None)
    size = newest.listing.size if newest else None
    running = RunLock(os.path.join(config.state_dir, "daemon.lock")).taken()
    return {
        "run": config.run.name,
        "node": config.node.name,
        "daemon": {"running": running, "last_pass": last.get("last_pass_s")},
        "local": {
            "newest": max((view.step for view in views), default=None),
            "verified": newest.step if newest else None,
            "latest": latest,
        },
        "remote": dict(remote_summary(node.saves, known, time.time())),
        "disk": {"free": free_bytes(config.run.output_dir), "next_save": size},
        "resume": _resume(config.state_dir),
        "problems": [str(problem) for problem in last.get("problems", ())],
    }


def _resume(state_dir: str) -> Report | None:
    """The newest resume, as far as it was confirmed or not."""
    found = kept(state_dir)
    if found is None:
        return None
    said = {name: found.get(name) for name in ("ok", "step", "first", "message")}
    return {**said, "age_s": max(time.time() - found["at_s"], 0.0)}
