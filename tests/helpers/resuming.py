"""What the checks of a preflight are given, made of a real configuration and a real step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ckptsync.app import Node, open_node
from ckptsync.config import parse
from ckptsync.disk.scan import list_step
from ckptsync.model.launch import LaunchRecord
from ckptsync.resume.context import Context, Resumed
from ckptsync.resume.settings import Known, Settings

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"


def settings(values: Mapping[str, object], source: str, *, explicit: object = (), complete: bool = False) -> Settings:
    """`explicit`: names, or True for all of them."""
    names = values if explicit is True else explicit
    return Settings({name: Known(value, source) for name, value in values.items()}, frozenset(names), complete)


def now(values: Mapping[str, object], *, explicit: object = True, complete: bool = False) -> Settings:
    return settings(values, "the command line", explicit=explicit, complete=complete)


def then(values: Mapping[str, object], *, explicit: object = True, complete: bool = True) -> Settings:
    return settings(values, "the launch record of attempt a-1", explicit=explicit, complete=complete)


def node_of(tmp_path: Path, more: str = "") -> Node:
    """A node whose output_dir is `tmp_path/out`."""
    (tmp_path / "out").mkdir(exist_ok=True)
    text = f"""
        [run]
        name = "r"
        output_dir = "{tmp_path}/out"
        state_dir = "{tmp_path}/state"
        {more}
    """
    node = open_node(parse(text.encode(), str(tmp_path / "c.toml"), {}))
    node.recognise()
    return node


def resumed(step: Path) -> Resumed:
    """The step in a directory that a generator of `ckptsync.testing.checkpoints` has written."""
    return Resumed(int(step.name.rpartition("_")[2]), list_step(os.fspath(step)))


def record(
    *, versions: Mapping[str, str] | None = None, datasets: Mapping[str, Mapping[str, object]] | None = None
) -> LaunchRecord:
    return LaunchRecord(
        run="r", run_id="1", attempt="a-1", node="n", started_ns=1, versions=versions or {}, datasets=datasets or {}
    )


def context_of(tmp_path: Path, *, step: Path | None = None, more: str = "", **given: object) -> Context:
    """`given`: fields of Context; the others are empty."""
    found = resumed(step) if step is not None else None
    return Context(node_of(tmp_path, more), found, found.step if found else None, **given)
