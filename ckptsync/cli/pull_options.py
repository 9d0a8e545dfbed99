"""The options of `ckptsync pull`."""

from __future__ import annotations

from typing import Annotated

import typer

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
