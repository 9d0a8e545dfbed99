"""What judging a node's steps needs to know. Apart from what does it, which loads every file format."""

from __future__ import annotations

from dataclasses import dataclass

from ckptsync.layouts.base import Layout
from ckptsync.model.step import Level

__all__ = ["DeepLimits", "Identity", "Setup"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose save it is: the run's name, the node by name and random id, and where steps lie below output_dir."""

    run: str
    node: str
    node_id: str
    below: str = ""


@dataclass(frozen=True, slots=True)
class DeepLimits:
    """Bounds of the child process of level `deep`: seconds and bytes."""

    timeout_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What judging this node's steps needs to know.

    Attributes:
        output_dir: the directory with the step directories.
        layout: the run's layout.
        identity: run and node.
        level: verification level.
        settle_s: quiet time before a step is taken.
        window_ns: `commit.window`.
        deep: limits of level `deep`.
        alone: why no other node can hold shards of this run, for people; "" = one can.
        many: the run is known to have several nodes.
    """

    output_dir: str
    layout: Layout
    identity: Identity
    level: Level
    settle_s: float
    window_ns: int
    deep: DeepLimits
    alone: str = ""
    many: bool = False
