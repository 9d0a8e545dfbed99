"""`ckptsync config check`: read the configuration and try its directories."""

from __future__ import annotations

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption
from ckptsync.cli.render import print_json, printable
from ckptsync.config import Config, load
from ckptsync.config_paths import check_paths
from ckptsync.peers.opening import check_peers
from ckptsync.units import format_duration

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback()
def config() -> None:
    """Check the configuration."""


@app.command()
def check(config: ConfigOption = None, output_dir: OutputDirOption = None, json: JsonOption = False) -> None:
    """Read the configuration, try its directories as this user, and show what is in force."""
    loaded = load(config, output_dir=output_dir)
    check_paths(loaded)
    check_peers(loaded)
    if json:
        print_json(loaded.describe())
        return
    for key, value in _summary(loaded):
        typer.echo(f"{key:<11} {printable(value)}")


def _summary(config: Config) -> tuple[tuple[str, str], ...]:
    upload = config.upload
    rhythm = f"{upload.every_steps} steps" if upload.every is None else format_duration(upload.every)
    return (
        ("file", config.file or "none: defaults"),
        ("run", config.run.name),
        ("node", config.node.name),
        ("output_dir", config.run.output_dir),
        ("state_dir", config.state_dir),
        ("store", upload.store),
        ("upload", f"every {rhythm}"),
        ("verify", config.verify.level.value),
    )
