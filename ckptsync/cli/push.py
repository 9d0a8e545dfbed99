"""`ckptsync push`: upload now."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

__all__ = ["push"]


def push(
    step: Annotated[
        int | None, typer.Option("--step", help="This step; the newest verified one by default.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time went.")] = False,
    yield_to_trainer: Annotated[
        bool, typer.Option("--yield-to-trainer", help="Take only what the trainer leaves of the machine.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Upload a step now and commit it, whatever is due. Exit 4 if it is broken or incomplete."""
    from ckptsync.actions.push import push_step
    from ckptsync.app import open_node
    from ckptsync.cli.profile import profile_lines
    from ckptsync.cli.render import human_size, print_json, progress
    from ckptsync.config import load
    from ckptsync.config_paths import check_paths
    from ckptsync.errors import CheckpointError

    configured = load(config, output_dir=output_dir)
    check_paths(configured)
    node = open_node(configured)
    if yield_to_trainer:
        node.yield_to_trainer()
    with progress(None, "push") as advance:
        pushed = push_step(node, step, progress=advance)
    commit = pushed.outcome.commit
    problems = [str(problem) for problem in pushed.outcome.problems]
    if json:
        print_json(
            {
                "step": pushed.step,
                "part": str(pushed.part),
                "commit": commit.digest if commit else None,
                "bytes": pushed.bytes_total,
                "bytes_sent": pushed.bytes_sent,
                "problems": problems,
                **({"profile": pushed.profile.describe()} if profile else {}),
            }
        )
    else:
        typer.echo(f"step {pushed.step}: {human_size(pushed.bytes_total)}, {human_size(pushed.bytes_sent)} sent")
        typer.echo(f"committed: {commit.digest}" if commit else f"not whole yet: {'; '.join(problems[:3])}")
        if profile:
            profile_lines(pushed.profile)
    return 0 if commit else CheckpointError.exit_code
