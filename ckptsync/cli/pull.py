"""`ckptsync pull`: bring a step back before a resume."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption
from ckptsync.errors import UsageError

__all__ = ["pull"]


def pull(
    step: Annotated[
        int | None, typer.Option("--step", help="This step; the newest by default.", show_default=False)
    ] = None,
    max_step: Annotated[int | None, typer.Option("--max-step", help="No step above it.", show_default=False)] = None,
    dest: Annotated[
        str | None,
        typer.Option("--dest", metavar="DIR", help="Restore into DIR instead of output_dir.", show_default=False),
    ] = None,
    keep_newer: Annotated[
        bool, typer.Option("--keep-newer", help="Refuse instead of moving newer steps aside.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")] = False,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Bring a step back, and point the trainer at it: the newest committed step, or a newer verified one on this disk.

    Identical bytes, modes and mtimes, or nothing. Exit 5 = nothing to resume from, 6 = the store cannot be reached.
    """
    from ckptsync.actions.pull import pull_step
    from ckptsync.app import open_node
    from ckptsync.cli.render import human_size, print_json, printable, progress
    from ckptsync.config import load

    if dest == "":
        raise UsageError("--dest names no directory", why="it is empty", remedy="leave it out to restore in place")
    node = open_node(load(config, output_dir=output_dir))

    def say(line: str) -> None:
        typer.echo(printable(line), err=json)

    with pull_step(node, step=step, max_step=max_step, dest=dest, keep_newer=keep_newer, say=say) as planned:
        if dry_run:
            for line in planned.plan.describe():
                typer.echo(printable(line))
            return
        for line in planned.plan.describe():
            say(line)
        with progress(planned.plan.target.size, f"pull step {planned.plan.choice.union.step}") as advance:
            result = planned.execute(advance)
    if json:
        print_json(
            {
                "step": result.step,
                "path": result.path,
                "files": result.files,
                "bytes_fetched": result.bytes_fetched,
                "bytes_reused": result.bytes_reused,
                "moved_aside": list(result.aside),
                "resume_args": list(result.resume_args),
            }
        )
        return
    amounts = f"{human_size(result.bytes_fetched)} fetched, {human_size(result.bytes_reused)} from this disk"
    typer.echo(printable(f"step {result.step} is in {result.path}: {result.files} files, {amounts}"))
    if result.resume_args:
        typer.echo("resume with:")
        typer.echo(f"  {shlex.join(result.resume_args)}")
