"""`ckptsync wait`: for scripts that go on when a step is safe."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

__all__ = ["wait"]


def wait(
    step: Annotated[
        int | None, typer.Option("--step", help="This step; the newest by default.", show_default=False)
    ] = None,
    until: Annotated[str, typer.Option("--until", metavar="verified|committed", help="What to wait for.")] = "verified",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="10m", help="Give up after this long; default: never.")
    ] = "",
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> int:
    """Wait until a step is verified or committed by the daemon. Exit 4 if it is broken, or at the timeout."""
    from ckptsync.actions.wait import wait_for
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json, printable
    from ckptsync.config import load
    from ckptsync.errors import CheckpointError, UsageError
    from ckptsync.units import parse_duration

    if until not in ("verified", "committed"):
        raise UsageError("cannot wait for that", where=until, remedy="--until verified, or --until committed")
    try:
        timeout_s = parse_duration(timeout) if timeout else None
    except ValueError as error:
        raise UsageError("cannot read --timeout", where=timeout, why=str(error)) from None
    outcome = wait_for(
        open_node(load(config, output_dir=output_dir)), step, committed=until == "committed", timeout_s=timeout_s
    )
    if json:
        print_json({"ok": outcome.ok, "step": outcome.step, "state": outcome.state, "message": outcome.message})
    else:
        typer.echo(printable(outcome.message))
    return 0 if outcome.ok else CheckpointError.exit_code
