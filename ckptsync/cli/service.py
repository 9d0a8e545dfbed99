"""`ckptsync service install|uninstall`: the daemon as a systemd service of one run."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ckptsync.cli.bundled import unit_file
from ckptsync.cli.options import ConfigOption
from ckptsync.cli.render import printable
from ckptsync.config import SYSTEM_FILE, Config, load
from ckptsync.daemon.probe import probe
from ckptsync.daemon.unit import STATE_ROOT, UNIT_DIR, Unit, drop_in
from ckptsync.disk.durable import publish, remove, remove_tree
from ckptsync.errors import CkptsyncError, ConfigError, UsageError

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_INSTANCE = re.compile(r"[A-Za-z0-9:_.-]{1,128}\Z")
_PROBE_SECONDS = 300

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Instance of ckptsync@.service, for several runs on one machine.",
        show_default=False,
    ),
]
RootOption = Annotated[str, typer.Option("--root", metavar="DIR", hidden=True)]


@app.callback()
def service() -> None:
    """Install or remove the systemd service."""


@app.command()
def install(
    user: Annotated[str, typer.Option(metavar="USER", help="The account that owns output_dir: the trainer's.")],
    config: ConfigOption = None,
    name: NameOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files, change nothing.")] = False,
    root: RootOption = "/",
) -> None:
    """Write the unit and its drop-in, try the directories as USER, and start the service."""
    unit = _unit(name)
    config_file = str(Path(config or (SYSTEM_FILE if name is None else f"/etc/ckptsync/{name}.toml")).absolute())
    loaded = _load(config_file)
    files = {
        unit.file: unit_file(unit.file),
        unit.drop_in: drop_in(loaded, user=user, executable=_executable(), config_file=config_file),
    }
    if dry_run:
        for path, text in files.items():
            typer.echo(f"# /{UNIT_DIR}/{path}\n{text}")
        return
    live = root == "/"
    if live:
        _require_systemd()
        _try_as(user, loaded, config_file)
    for path, text in files.items():
        file = Path(root, UNIT_DIR, path)
        publish(str(file), text.encode(), mode=0o644)
        typer.echo(f"wrote {printable(str(file))}")
    if live:
        _systemctl("daemon-reload")
        _systemctl("enable", unit.name)
        _systemctl("restart", unit.name)
        typer.echo(f"{unit.name} runs as {user}: `ckptsync status -c {printable(config_file)}` shows what it does")


@app.command()
def uninstall(name: NameOption = None, root: RootOption = "/") -> None:
    """Stop the service and remove its files; configuration, state, checkpoints and the store stay."""
    unit = _unit(name)
    units = Path(root, UNIT_DIR)
    if not (units / unit.drop_in).exists():
        what = "the service is not installed"
        raise UsageError(what, where=str(units / unit.drop_in), remedy="see `systemctl list-units 'ckptsync*'`")
    if root == "/":
        _require_systemd()
        _systemctl("disable", "--now", unit.name)
    for path in _leftovers(units, unit):
        remove(str(path))
        if path.parent != units and not any(path.parent.iterdir()):  # drop-ins of others stay
            remove_tree(str(path.parent), within=str(units))
        typer.echo(f"removed {printable(str(path))}")
    if root == "/":
        _systemctl("daemon-reload")
    typer.echo("configuration, state, checkpoints and the store are as they were")


@app.command("probe", hidden=True)
def probe_command(config: ConfigOption = None) -> None:
    """Try the directories as this user; `install` runs it as the user of the service."""
    for warning in probe(_load(str(config))):
        typer.echo(warning)


def _unit(name: str | None) -> Unit:
    if name is not None and _INSTANCE.match(name) is None:
        what = "not the name of an instance"
        raise UsageError(what, where=name, remedy="letters, digits, dots, colons, dashes and underscores")
    return Unit(name)


def _load(config_file: str) -> Config:
    """The configuration as the service will see it."""
    first = load(config_file, {"STATE_DIRECTORY": STATE_ROOT})
    return load(config_file, {"STATE_DIRECTORY": f"{STATE_ROOT}/{first.run.name}"})


def _leftovers(units: Path, unit: Unit) -> list[Path]:
    """The drop-in, and the unit file unless another instance needs it."""
    others = [path for path in units.glob("ckptsync@*.service.d") if path != (units / unit.drop_in).parent]
    shared = unit.instance is not None and bool(others)
    return [units / unit.drop_in, *([] if shared else [units / unit.file])]


def _executable() -> str:
    """Absolute path of the `ckptsync` command of this installation."""
    beside = Path(sys.executable).parent / "ckptsync"
    found = str(beside) if beside.is_file() else shutil.which("ckptsync")
    if found is None:
        what = "cannot find the ckptsync command"
        raise CkptsyncError(what, where=str(beside), remedy="install the wheel into this Python")
    return str(Path(found).absolute())


def _require_systemd() -> None:
    if os.geteuid() != 0:
        what = "this needs root"
        raise UsageError(what, remedy=f"sudo {_executable()} service ..., or --dry-run to see the files")
    if not Path("/run/systemd/system").is_dir():
        what = "systemd does not run this machine"
        raise UsageError(what, remedy="start `ckptsync run` with what does: a Kubernetes sidecar, a Slurm prolog, tmux")


def _try_as(user: str, config: Config, config_file: str) -> None:
    """Run `service probe` as `user`; its fault is ours."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        what = "there is no such user"
        raise UsageError(what, where=user, remedy="--user takes the account that owns output_dir") from None
    _require_owner(config.run.output_dir, account.pw_uid)
    command = [_executable(), "service", "probe", "--config", config_file]
    what = f"the service could not work as {user}"
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=os.getgrouplist(user, account.pw_gid),
            env={"PATH": os.defpath, "HOME": account.pw_dir, "LC_ALL": "C.UTF-8"},
            cwd="/",
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
            timeout=_PROBE_SECONDS,
        )
    except PermissionError:
        remedy = f"install ckptsync where {user} can read it, for example in a virtual environment below /opt"
        raise ConfigError(what, where=command[0], why="not readable for this user", remedy=remedy) from None
    except subprocess.TimeoutExpired:
        why = f"no answer within {_PROBE_SECONDS} s: a dead network file system?"
        raise ConfigError(what, where=config.run.output_dir, why=why) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(what, why=last.removeprefix("ckptsync: "))
    for warning in done.stdout.splitlines():
        typer.echo(f"note: {printable(warning)}", err=True)


def _require_owner(output_dir: str, uid: int) -> None:
    path = Path(output_dir)
    if path.exists() and path.stat().st_uid != uid:
        owner = path.owner()
        why, remedy = f"it belongs to {owner}", f"--user {owner}"
        what = "the service must run as the user that owns output_dir"
        raise ConfigError(what, where=output_dir, why=why, remedy=remedy)


def _systemctl(*arguments: str) -> None:
    command = ["systemctl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words and our unit
    if done.returncode:
        what = f"`{' '.join(command)}` failed"
        lines = done.stderr.strip().splitlines()
        remedy = f"see `journalctl -u {arguments[-1]}`"
        raise CkptsyncError(what, why=lines[0] if lines else f"exit code {done.returncode}", remedy=remedy)
