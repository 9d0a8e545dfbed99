"""Whether the directories and files that the configuration names can be used by this user. Looks, changes nothing."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from ckptsync.config import Config
from ckptsync.errors import ConfigError

__all__ = ["check_paths", "check_staging", "check_written", "is_absent"]

_CANNOT_CREATE, _CANNOT_WRITE = "cannot create ", "cannot write to "


def check_paths(config: Config, *, absent_ok: bool = False) -> None:
    """Raise ConfigError for the first path that this user cannot use as ckptsync needs it.

    `absent_ok`: output_dir may still come, made by the trainer or with a mount.
    """
    output_dir = Path(config.run.output_dir)
    if not (absent_ok and is_absent(config)):
        _check_output_dir(output_dir)
        _check_creatable(output_dir, "output_dir")
        check_staging(config.run.output_dir)
    _check_creatable(Path(config.state_dir), "state_dir")
    if config.upload.store.startswith("file://"):
        _check_creatable(Path(config.upload.store.removeprefix("file://")), "the store")
    if config.promote.link.startswith("/"):
        _check_creatable(Path(config.promote.link).parent, "the directory of [promote] link")
    for key, file in (("ca_file", config.upload.ca_file), ("secret_file", config.peer.secret_file)):
        if file is not None and not (Path(file).is_file() and os.access(file, os.R_OK)):
            what = f"cannot read {key}"
            raise ConfigError(what, where=file, why="missing, not a file, or not readable for this user")


def check_written(config: Config, output_dir: str) -> None:
    """Raise ConfigError if this user can neither write nor create output_dir (where the steps lie), or state_dir."""
    _check_creatable(Path(output_dir), "output_dir")
    _check_creatable(Path(config.state_dir), "state_dir")


def check_staging(output_dir: str) -> None:
    """Raise ConfigError if this user cannot write beside output_dir."""
    parent = Path(output_dir).parent
    if why := _why_not(parent):
        what, remedy = f"{_CANNOT_WRITE}the parent of output_dir", _remedy(parent)
        why = f"{why}, and staging is a hidden directory beside output_dir"
        raise ConfigError(what, where=str(parent), why=why, remedy=remedy)


def is_absent(config: Config) -> bool:
    """Whether nothing at all stands where output_dir should be."""
    try:
        os.stat(config.run.output_dir)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _check_output_dir(path: Path) -> None:
    what, where = "cannot use output_dir", str(path)
    try:
        stat = path.stat()
    except OSError as error:
        remedy = "create it, or correct [run] output_dir"
        raise ConfigError(what, where=where, why=error.strerror or str(error), remedy=remedy) from None
    if not path.is_dir():
        raise ConfigError(what, where=where, why="not a directory", remedy="correct [run] output_dir")
    if os.geteuid() not in (0, stat.st_uid):
        owner = _user(stat.st_uid)
        why = f"it belongs to {owner}, this is {_user(os.geteuid())}"
        raise ConfigError(what, where=where, why=why, remedy=f"run ckptsync as {owner} (User= in the unit)")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(what, where=where, why="not readable for this user", remedy="correct its permissions")


def _check_creatable(path: Path, what: str) -> None:
    """`path` is a writable directory, or its nearest existing parent is."""
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise ConfigError(_CANNOT_CREATE + what, where=str(path), why=f"{existing} is not a directory")
    if why := _why_not(existing):
        cannot = _CANNOT_WRITE if existing == path else _CANNOT_CREATE
        why = why if existing == path else f"{existing} is {why}"
        remedy = f"{_remedy(existing)}; or choose another place"
        raise ConfigError(cannot + what, where=str(path), why=why, remedy=remedy)


def _why_not(directory: Path) -> str:
    """Why nothing can be made in a directory that is there; "" = it can. A read-only mount holds for root, too."""
    if os.access(directory, os.W_OK | os.X_OK):
        return ""
    return "on a read-only file system" if _is_read_only(directory) else f"not writable for {_user(os.geteuid())}"


def _is_read_only(directory: Path) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _remedy(directory: Path) -> str:
    what = "mount it read-write" if _is_read_only(directory) else f"make it writable for {_user(os.geteuid())}"
    return f"{what}; in a systemd unit list it in ReadWritePaths="


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
