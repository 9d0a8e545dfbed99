"""`ckptsync init`: write a commented configuration file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ckptsync.cli.bundled import example_config
from ckptsync.cli.options import ConfigOption, OutputDirOption
from ckptsync.cli.render import printable
from ckptsync.config import LOCAL_FILE, parse
from ckptsync.disk.durable import publish_new
from ckptsync.errors import UsageError

__all__ = ["init"]


def init(
    path: Annotated[str, typer.Option("--path", metavar="FILE", help="Where to write it.")] = LOCAL_FILE,
    output_dir: OutputDirOption = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The run's name in the store.", show_default=False)
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store: s3://..., gs://..., az://..., file:///...", show_default=False),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Take part in the run that the store holds under this name.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Write a commented configuration file; with --join, accept the store's run in place of the one remembered here."""
    if join:
        _join(config)
        return
    directory = None if output_dir is None else str(Path(output_dir).absolute())
    text = example_config()
    # a given directory names the run, too, unless it is named explicitly
    name = name or (Path(directory).name if directory else None)
    for key, value in (("output_dir", directory), ("name", name), ("store", store)):
        if value is not None:
            text = _set(text, key, value)
    file = str(Path(path).absolute())
    _refuse_undecodable(text)
    parse(text.encode(), file, os.environ)
    if not publish_new(file, text.encode()):
        what = "will not overwrite a configuration"
        raise UsageError(what, where=file, remedy="remove it, or write elsewhere with --path")
    typer.echo(f"wrote {printable(file)}; next: edit it, then `ckptsync config check -c {printable(path)}`")


def _refuse_undecodable(text: str) -> None:
    line = next((line for line in text.splitlines() if not _is_text(line)), None)
    if line is not None:
        what, why = "cannot write this into a configuration", "TOML is UTF-8, and this is not"
        raise UsageError(
            what, where=printable(line), why=why, remedy="rename it, or go there by a link with a plain name"
        )


def _is_text(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _join(config: str | None) -> None:
    from ckptsync.app import open_node
    from ckptsync.config import load

    node = open_node(load(config))
    lock = node.daemon_lock()
    lock.acquire()  # a daemon would go on with what it remembers
    try:
        typer.echo(f"this node takes part in run {node.config.run.name}, id {node.join()}")
    finally:
        lock.release()


def _set(text: str, key: str, value: str) -> str:
    """Replace the first line that sets `key`, also if it is commented out."""
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"  # JSON strings are TOML strings
    return re.sub(rf"(?m)^#?{key} = .*$", lambda _: line, text, count=1)
