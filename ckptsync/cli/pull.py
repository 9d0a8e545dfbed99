"""`ckptsync pull`: bring a step back before a resume."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption
from ckptsync.cli.pull_options import (
    AttemptOption,
    AvoidOption,
    DestOption,
    DryRunOption,
    KeepNewerOption,
    MaxStepOption,
    NodesOption,
    RanksOption,
    ScopeOption,
    SelectOption,
    StepOption,
    TimeoutOption,
    WorldSizeOption,
    launch_here,
    pull_options,
)
from ckptsync.errors import UsageError

if TYPE_CHECKING:
    from ckptsync.actions.pull import Planned, PullOptions
    from ckptsync.sync.pull import PullResult

__all__ = ["pull"]


def pull(  # noqa: PLR0917 - the options of a command
    step: StepOption = None,
    max_step: MaxStepOption = None,
    select: SelectOption = None,
    dest: DestOption = None,
    keep_newer: KeepNewerOption = False,
    dry_run: DryRunOption = False,
    nodes: NodesOption = None,
    attempt: AttemptOption = None,
    timeout: TimeoutOption = None,
    avoid: AvoidOption = None,
    ranks: RanksOption = None,
    scope: ScopeOption = None,
    world_size: WorldSizeOption = None,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Bring a step back, and point the trainer at it: the newest committed step, or a newer verified one on this disk.

    --select takes another one. With --nodes, all nodes agree on one step first. Identical bytes, modes and mtimes, or
    nothing. Exit 5 = nothing to resume from, 6 = the store cannot be reached, 7 = the nodes disagree, or too few came.
    """
    from dataclasses import replace

    from ckptsync.actions.pull import pull_step
    from ckptsync.app import open_node
    from ckptsync.cli.countdown import countdown
    from ckptsync.cli.render import printable, progress
    from ckptsync.config import load

    _require_alone(dest, nodes, attempt)
    node = open_node(load(config, output_dir=output_dir))
    with countdown() as shown:

        def say(line: str) -> None:
            shown.clear()
            typer.echo(printable(line), err=json)

        options = pull_options(node, step, select, avoid, timeout, ranks, scope, world_size, shown.tell)
        if dest is None and not dry_run:
            options = replace(options, launch=launch_here(node, nodes, attempt))
        elif dry_run and avoid:
            options = _unmarked(options, say)
        with pull_step(
            node, step=step, max_step=max_step, dest=dest, keep_newer=keep_newer, say=say, options=options
        ) as planned:
            for line in planned.plan.describe():
                if dry_run:
                    typer.echo(printable(line))
                else:
                    say(line)
            if dry_run:
                return
            with progress(planned.plan.target.size, f"pull step {planned.plan.choice.union.step}") as advance:
                result = planned.execute(advance)
    _show(result, planned, json=json)


def _require_alone(dest: str | None, nodes: int | None, attempt: str | None) -> None:
    """What is restored elsewhere is nobody else's business."""
    if dest == "":
        raise UsageError("--dest names no directory", why="it is empty", remedy="leave it out to restore in place")
    if dest is not None and (attempt is not None or (nodes or 1) > 1):
        raise UsageError("--dest is for this node alone", remedy="leave out --nodes and --attempt")


def _unmarked(options: PullOptions, say: Callable[[str], None]) -> PullOptions:
    from dataclasses import replace

    say("--avoid marks nothing in a dry run")
    return replace(options, avoid=())


def _show(result: PullResult, planned: Planned, *, json: bool) -> None:
    from ckptsync.cli.render import human_size, print_json, printable

    together = planned.together
    if json:
        print_json(
            {
                "step": result.step,
                "path": result.path,
                "files": result.files,
                "scope": planned.plan.scope or "all",
                "fallback": planned.plan.choice.fallback,
                "attempt": together.attempt if together else None,
                "round": together.round.number if together else None,
                "bytes_fetched": result.bytes_fetched,
                "bytes_reused": result.bytes_reused,
                "bytes_from_peers": result.bytes_from_peers,
                "moved_aside": list(result.aside),
                "resume_args": list(result.resume_args),
            }
        )
        return
    given = f"{human_size(result.bytes_from_peers)} from peers, " if result.bytes_from_peers else ""
    amounts = f"{human_size(result.bytes_fetched)} fetched, {given}{human_size(result.bytes_reused)} from this disk"
    typer.echo(printable(f"step {result.step} is in {result.path}: {result.files} files, {amounts}"))
    if result.resume_args:
        typer.echo("resume with:")
        typer.echo(f"  {shlex.join(result.resume_args)}")
