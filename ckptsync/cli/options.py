"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["ConfigOption", "JsonOption", "OutputDirOption"]

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE", help="The configuration file.", show_default=False),
]
OutputDirOption = Annotated[
    str | None,
    typer.Option("--output-dir", metavar="DIR", help="The directory with the step directories.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
