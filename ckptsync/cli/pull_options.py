"""The options of `ckptsync pull`, which `exec` and `preflight` share, and what they make together."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ckptsync.errors import UsageError

if TYPE_CHECKING:
    from ckptsync.actions.launched import Launch
    from ckptsync.actions.pull import PullOptions
    from ckptsync.app import Node
    from ckptsync.sync.agree import Wait

__all__ = [
    "AttemptOption",
    "AvoidOption",
    "DestOption",
    "DryRunOption",
    "KeepNewerOption",
    "MaxStepOption",
    "NodesOption",
    "RanksOption",
    "ScopeOption",
    "SelectOption",
    "StepOption",
    "TimeoutOption",
    "WorldSizeOption",
    "launch_here",
    "pull_options",
    "timeout_here",
]

StepOption = Annotated[
    int | None, typer.Option("--step", help="This step; by default as --select says.", show_default=False)
]
MaxStepOption = Annotated[int | None, typer.Option("--max-step", help="No step above it.", show_default=False)]
SelectOption = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="STRATEGY",
        help='newest, newest-committed, "multiple-of 100", "best METRIC" or "best METRIC min"; default: [pull] select.',
        show_default=False,
    ),
]
AvoidOption = Annotated[
    list[int] | None,
    typer.Option("--avoid", metavar="N", help="Never pick this commit of step N again.", show_default=False),
]
DestOption = Annotated[
    str | None,
    typer.Option("--dest", metavar="DIR", help="Restore into DIR instead of output_dir.", show_default=False),
]
KeepNewerOption = Annotated[bool, typer.Option("--keep-newer", help="Refuse instead of moving newer steps aside.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", min=1, help="How many nodes resume together.", show_default=False)
]
AttemptOption = Annotated[
    str | None,
    typer.Option("--attempt", metavar="ID", help="The id that they share, new at each start.", show_default=False),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", metavar="10m", help="How long to wait for other nodes.", show_default=False),
]
RanksOption = Annotated[
    str | None,
    typer.Option("--ranks", metavar="8-15", help="Restore the shards of these ranks only.", show_default=False),
]
ScopeOption = Annotated[
    str | None, typer.Option("--scope", metavar="all|own", help="Whose shards to restore.", show_default=False)
]
WorldSizeOption = Annotated[
    int | None, typer.Option("--world-size", min=1, help="Refuse a step of another world size.", show_default=False)
]


def pull_options(
    node: Node,
    step: int | None,
    select: str | None,
    avoid: list[int] | None,
    timeout: str | None,
    ranks: str | None,
    scope: str | None,
    world_size: int | None,
    waiting: Callable[[Wait], None],
) -> PullOptions:
    """How this node pulls alone, by the command line and the configuration. Raises UsageError."""
    from ckptsync.actions.pull import PullOptions
    from ckptsync.actions.select import strategy_of
    from ckptsync.config_values import rank_scope

    if ranks is not None and scope is not None:
        raise UsageError("--ranks and --scope exclude each other", remedy="keep one of them")
    settings, given = node.config.pull, ranks or scope
    try:
        whose = settings.scope if given is None else rank_scope(given)
    except ValueError as error:
        raise UsageError("an option has no meaning", why=str(error)) from None
    return PullOptions(
        timeout_s=timeout_here(node, timeout),
        waiting=waiting,
        avoid=tuple(avoid or ()),
        scope=whose,
        world_size=world_size or settings.world_size,
        select=strategy_of(node.config, select, step=step),
    )


def timeout_here(node: Node, timeout: str | None) -> float:
    """For how many seconds other nodes are waited for. Raises UsageError."""
    from ckptsync.units import parse_duration

    try:
        return node.config.pull.timeout if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise UsageError("an option has no meaning", why=str(error)) from None


def launch_here(node: Node, nodes: int | None, attempt: str | None) -> Launch:
    """With how many nodes, in which attempt. Raises UsageError."""
    from ckptsync.actions.launched import launch_of

    return launch_of(node.config, os.environ, nodes=nodes, attempt=attempt, embedded=node.embedded)
