"""The systemd unit of one run: what is written where. Pure: text and paths in, text and paths out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from ckptsync.config import Config
from ckptsync.errors import ConfigError
from ckptsync.model.step import Level

__all__ = ["STATE_ROOT", "UNIT_DIR", "Unit", "drop_in", "writable_paths"]

UNIT_DIR = "etc/systemd/system"
STATE_ROOT = "/var/lib/ckptsync"
_DROP_IN = "10-install.conf"
_HOMES = ("/home", "/root", "/run/user")
_TEMPS = ("/tmp", "/var/tmp")  # noqa: S108 - told apart, not used
_STOP_SPARE_S = 30.0
_DEEP_SPARE = 1024**3


@dataclass(frozen=True, slots=True)
class Unit:
    """The names of a run's unit: the plain one, or an instance of the template."""

    instance: str | None = None

    @property
    def name(self) -> str:
        """What systemctl is told: "ckptsync.service" or "ckptsync@NAME.service"."""
        return "ckptsync.service" if self.instance is None else f"ckptsync@{self.instance}.service"

    @property
    def file(self) -> str:
        """The unit file's name."""
        return "ckptsync.service" if self.instance is None else "ckptsync@.service"

    @property
    def drop_in(self) -> str:
        """The drop-in, relative to the directory of the unit files."""
        return f"{self.name}.d/{_DROP_IN}"


def writable_paths(config: Config) -> tuple[str, ...]:
    """The directories that the service must be able to write to, none inside another; the state directory apart.

    Raises:
        ConfigError: the parent of output_dir is the root directory, which would open everything.
    """
    parent = str(PurePosixPath(config.run.output_dir).parent)
    if parent == "/":
        what, why = "output_dir cannot lie in the root directory", "staging needs a place beside it"
        raise ConfigError(what, where=config.run.output_dir, why=why, remedy="move it one directory down")
    wanted = [parent]
    if not _inside(config.state_dir, STATE_ROOT):
        wanted.append(config.state_dir)
    if config.upload.store.startswith("file://"):
        wanted.append(config.upload.store.removeprefix("file://"))
    if config.promote.link.startswith("/"):
        wanted.append(str(PurePosixPath(config.promote.link).parent))
    outside = [path for path in wanted if not _inside(path, config.state_dir) or path == config.state_dir]
    return tuple(
        path for path in dict.fromkeys(outside) if not any(other != path and _inside(path, other) for other in outside)
    )


def drop_in(config: Config, *, user: str, executable: str, config_file: str) -> str:
    """The lines of the unit that differ from machine to machine.

    Args:
        config: read with $STATE_DIRECTORY as the unit will have it.
        user: the account to run as.
        executable: absolute path of `ckptsync`.
        config_file: absolute path of the configuration.

    Raises:
        ConfigError: as `writable_paths`; or a path or name that no unit file can hold.
    """
    paths = writable_paths(config)
    for text in (user, executable, config_file, *paths):
        _require_one_line(text)
    # an empty directory setting takes its mode away, too (systemd 252): it is said again
    lines = [
        "# Written by `ckptsync service install`; `ckptsync service uninstall` removes it.",
        "[Unit]",
        *(f"RequiresMountsFor={_quoted(path)}" for path in paths),
        "[Service]",
        f"User={user}",
        "ExecStart=",
        f"ExecStart={_quoted(executable, command=True)} run --config {_quoted(config_file, command=True)}",
        *(f"ReadWritePaths={_quoted(path)}" for path in paths),
        f"TimeoutStopSec={config.daemon.stop_timeout + _STOP_SPARE_S:.0f}s",
        "StateDirectory=",
    ]
    if _inside(config.state_dir, STATE_ROOT):
        lines += [f"StateDirectory=ckptsync/{config.run.name}", "StateDirectoryMode=0700"]
    lines += ["RuntimeDirectory=", f"RuntimeDirectory=ckptsync/{config.run.name}", "RuntimeDirectoryMode=0750"]
    if any(_inside(path, home) for path in (*paths, executable, config_file) for home in _HOMES):
        lines += ["# Something above lies in a home directory.", "ProtectHome=read-only"]
    if any(_inside(path, temp) for path in (*paths, executable, config_file) for temp in _TEMPS):
        lines += ["# Something above lies in a directory for temporary files.", "PrivateTmp=no"]
    if config.verify.level is Level.DEEP:
        lines += ["# The process that loads shards.", f"MemoryHigh={config.verify.deep_memory + _DEEP_SPARE}"]
    return "\n".join(lines) + "\n"


def _require_one_line(text: str) -> None:
    if not text.isprintable():
        what, why = "cannot be written into a unit file", "it holds a control character, or is not UTF-8"
        raise ConfigError(what, where=ascii(text), why=why, remedy="choose a plainer name")


def _inside(path: str, directory: str) -> bool:
    return PurePosixPath(path).is_relative_to(directory)


def _quoted(path: str, *, command: bool = False) -> str:
    """A path as systemd reads it: quoted, specifiers and (in a command) variables escaped."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if command else text}"'
