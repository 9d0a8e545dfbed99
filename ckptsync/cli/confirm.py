"""`ckptsync confirm`: did the training really go on where the step left it?"""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

__all__ = ["confirm"]


def confirm(
    train_log: Annotated[
        str, typer.Option("--train-log", metavar="FILE", help="The trainer's output, in a file.", show_default=False)
    ],
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="FILE", help="The log of the training before, if another.", show_default=False
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", metavar="N", min=0, help="The step it should have resumed from.", show_default="as recorded"
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for the first steps.")] = False,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="How many steps to wait for.")] = 1,
    timeout: Annotated[str, typer.Option("--timeout", metavar="30m", help="How long to wait.")] = "30m",
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> int:
    """Check in the trainer's log that a resume really went on.

    From the right step, with the same data, schedule, loss and rollouts as before. Exit 0 = it did, 9 = it did not.
    """
    from ckptsync.actions.confirm import ConfirmOptions, confirm_log
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json, printable, table
    from ckptsync.config import load
    from ckptsync.errors import PreflightError, UsageError
    from ckptsync.units import parse_duration

    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise UsageError("cannot read --timeout", where=timeout, why=str(error)) from None
    options = ConfirmOptions(train_log, before, step, follow, timeout_s, steps)
    found = confirm_log(
        open_node(load(config, output_dir=output_dir)), options, say=lambda line: typer.echo(printable(line), err=True)
    )
    if json:
        print_json(found.to_json())
    else:
        table(("check", "status", "what"), [(name, out.status, out.message) for name, out in found.checks])
        cures: dict[str, list[str]] = {}  # one cure is often for several
        for name, outcome in found.checks:
            if outcome.remedy and outcome.status != "pass":
                cures.setdefault(outcome.remedy, []).append(name)
        for remedy, names in cures.items():
            typer.echo(printable(f"{', '.join(names)}: {remedy}"))
        typer.echo(printable(found.line))
    return 0 if found.ok else PreflightError.exit_code
