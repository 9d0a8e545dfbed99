"""`ckptsync verify`: is this step whole and undamaged?"""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption

__all__ = ["verify"]


def verify(
    path: Annotated[
        str | None,
        typer.Argument(help="A step directory, or a link to one; the newest by default.", show_default=False),
    ] = None,
    level: Annotated[
        str, typer.Option("--level", "-l", metavar="structure|full|deep", help="How deeply to look.")
    ] = "",
    layout: Annotated[str, typer.Option("--layout", metavar="NAME", help="The step's layout.")] = "auto",
    part: Annotated[bool, typer.Option("--part", help="Judge only this node's share of the step.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Check a step for damage and missing files, without loading or executing it. Exit 0 = whole, 4 = not."""
    import os

    from ckptsync.actions.verify import newest_step, verify_path
    from ckptsync.app import open_node
    from ckptsync.cli.render import human_size, print_json, printable, progress
    from ckptsync.config import find, load
    from ckptsync.errors import CheckpointError, UsageError
    from ckptsync.model.step import Level
    from ckptsync.sync.setup import DeepLimits

    configured = load(config) if path is None or find(config, os.environ) else None
    try:
        wanted = Level(level) if level else (configured.verify.level if configured else Level.FULL)
    except ValueError:
        raise UsageError("unknown level", where=level, remedy="structure, full or deep") from None
    if path is None:
        assert configured is not None, "loaded above"
        path = newest_step(open_node(configured))
    deep = (
        DeepLimits(configured.verify.deep_timeout, configured.verify.deep_memory)
        if configured
        else DeepLimits(1800.0, 16 << 30)
    )
    window_ns = int((configured.commit.window if configured else 3600.0) * 10**9)
    with progress(None, "verify") as advance:
        verdict = verify_path(
            path, level=wanted, deep=deep, window_ns=window_ns, layout_name=layout, part=part, progress=advance
        )
    if json:
        problems = [{"path": printable(p.path), "code": p.code, "message": p.message} for p in verdict.problems]
        said = {"ok": verdict.ok, "step": verdict.step, "layout": verdict.layout, "level": wanted.value}
        print_json({**said, "problems": problems})
    else:
        for problem in verdict.problems:
            typer.echo(printable(f"{problem.path or '.'}: {problem.message} [{problem.code}]"))
        for warning in verdict.warnings:
            typer.echo(printable(f"warning: {warning}"))
        outcome = "whole and undamaged" if verdict.ok else f"{len(verdict.problems)} problems"
        typer.echo(f"step {verdict.step} ({verdict.layout}, {wanted.value}, {human_size(verdict.bytes)}): {outcome}")
    return 0 if verdict.ok else CheckpointError.exit_code
