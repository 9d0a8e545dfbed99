"""Options that say which trainer a start is about; `exec` and `preflight` share them."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["PythonOption", "TrainLogOption"]

TrainLogOption = Annotated[
    str | None,
    typer.Option("--train-log", metavar="FILE", help="A log of the training before.", show_default=False),
]
PythonOption = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="The trainer's Python; the command's.", show_default=False),
]
