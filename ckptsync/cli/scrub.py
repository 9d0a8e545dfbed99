"""`ckptsync scrub`: read again what is stored, and heal it."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

__all__ = ["scrub"]


def scrub(
    remote: Annotated[bool, typer.Option("--remote", help="What the store holds, not only this node's steps.")] = False,
    sample: Annotated[
        str, typer.Option("--sample", metavar="PERCENT", help="Of the store, read only this share, by chance.")
    ] = "100%",
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> int:
    """Read verified steps again, here or (--remote) in the store; put again what is damaged there and whole here.

    Exit 4 if something is damaged and cannot be healed by this node: it is marked, and never picked.
    """
    from ckptsync.actions.scrub import parse_share, scrub_here, scrub_store
    from ckptsync.app import open_node
    from ckptsync.cli.render import human_size, print_json, printable
    from ckptsync.config import load
    from ckptsync.errors import CheckpointError

    node = open_node(load(config, output_dir=output_dir))
    here = scrub_here(node)
    found = scrub_store(node, parse_share(sample)) if remote else None
    bad = [*here.damaged, *(f"step {step}: {why}" for step, _, why in (found.bad if found else ()))]
    if json:
        stored = {"commits": found.commits, "chunks": found.chunks, "bytes": found.bytes} if found else None
        healed = {"healed": found.healed if found else [], "restored": [s for s, _ in found.restored] if found else []}
        local = {"files": here.files, "bytes": here.bytes}
        print_json({"local": local, "remote": stored, **healed, "damaged": [printable(line) for line in bad]})
    else:
        typer.echo(f"here: files: {here.files}, {human_size(here.bytes)}")
        if found is not None:
            amounts = f"steps: {found.commits}, chunks: {found.chunks}, {human_size(found.bytes)}"
            typer.echo(f"in the store: {amounts}; healed: {len(found.healed)}")
        for line in bad:
            typer.echo(printable(f"damaged: {line}"))
    for line in found.refused if found else ():
        typer.echo(printable(f"problem: {line}"), err=True)
    return CheckpointError.exit_code if bad else 0
