"""`ckptsync steps`: what there is, here and in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

if TYPE_CHECKING:
    from ckptsync.config import Config

__all__ = ["steps"]


def steps(
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    local: Annotated[bool, typer.Option("--local", help="Do not ask the store.")] = False,
    json: JsonOption = False,
) -> None:
    """List the steps here and in the store."""
    from ckptsync.actions.overview import rows
    from ckptsync.app import open_node
    from ckptsync.cli.render import human_size, print_json, printable, table
    from ckptsync.config import load
    from ckptsync.model.step import RemoteState

    node = open_node(load(config, output_dir=output_dir))
    found = rows(node, with_remote=not local)
    if json:
        print_json(
            [
                {
                    "step": row.step,
                    "local": row.local.value,
                    "remote": row.remote.value,
                    "latest": row.latest,
                    "reasons": [printable(reason) for reason in row.reasons],
                }
                for row in found
            ]
        )
        return
    lines = [
        (
            str(row.step),
            row.local.value,
            row.remote.value,
            "latest" if row.latest else "",
            human_size(row.bytes) if row.bytes else "",
            "; ".join(row.reasons[:2]),
        )
        for row in found
    ]
    if lines:
        table(("step", "local", "remote", "", "size", "reasons"), lines)
        if any(row.remote is RemoteState.PARTIAL for row in found):
            typer.echo(f"partial: the store knows of the step, and does not hold it ({_rhythm(node.config)})")
    else:
        typer.echo("no steps, neither here nor in the store")


def _rhythm(config: Config) -> str:
    """Which steps are uploaded at all."""
    from ckptsync.units import format_duration

    every = config.upload.every
    if every is None:
        return f"[upload] every_steps = {config.upload.every_steps}"
    return f'[upload] every = "{format_duration(every)}"'
