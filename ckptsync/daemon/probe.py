"""Trying, as the user of the service, what the daemon will do: read, link, rename. Only staging stays behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ckptsync.config import Config
from ckptsync.daemon.unit import writable_paths
from ckptsync.disk import durable
from ckptsync.disk.stage import Staging
from ckptsync.errors import ConfigError

__all__ = ["probe"]

_FILES_TRIED = 100


def probe(config: Config) -> tuple[str, ...]:
    """Try the directories of a configuration.

    Returns:
        What works less well than it could, one line each.

    Raises:
        ConfigError: something that the daemon needs is refused.
        NoSpaceError, CkptsyncError: as the disk says.
    """
    for path in writable_paths(config):
        durable.make_dirs(path)
        if not os.access(path, os.W_OK | os.X_OK):
            what = "cannot write to a directory"
            raise ConfigError(what, where=path, why="not writable", remedy="change its owner or permissions")
    staging = Staging(config.run.output_dir)
    staging.ensure()
    files = list(islice(_files(config.run.output_dir), _FILES_TRIED))
    for file in files:
        _read(file)
    return _try_links(config.run.output_dir, files, staging)


def _files(root: str) -> Iterator[str]:
    """Regular files below `root`; a directory that cannot be read is a ConfigError."""
    for directory, _, names in os.walk(root, onerror=_refuse):
        yield from (str(path) for name in names if (path := Path(directory, name)).is_file())


def _refuse(error: OSError) -> None:
    what = "cannot read a checkpoint"
    remedy = "run as the user that wrote it"
    raise ConfigError(what, where=str(error.filename), why=error.strerror or str(error), remedy=remedy)


def _read(file: str) -> None:
    try:
        with open(file, "rb", buffering=0) as stream:
            stream.read(1)
    except FileNotFoundError:  # rotated away meanwhile
        return
    except OSError as error:
        _refuse(error)


def _try_links(output_dir: str, files: list[str], staging: Staging) -> tuple[str, ...]:
    """Link one file of each owner into staging, and a file of our own; a refusal is worth a line."""
    own = durable.temporary_name(str(Path(output_dir, ".probe")))
    durable.publish_new(own, b"")
    try:
        owners = {Path(file).stat().st_uid: file for file in files if Path(file).exists()}
        refusals = [_try_link(file, staging) for file in (own, *owners.values())]
    finally:
        durable.remove(own)
    return tuple(dict.fromkeys(line for line in refusals if line))


def _try_link(file: str, staging: Staging) -> str:
    target = durable.temporary_name(str(Path(staging.temp_dir, "probe")))
    refusal = durable.hard_link(file, target)
    durable.remove(target)
    if refusal is None:
        return ""
    return (
        f"{file} cannot be hard-linked: {refusal.value}; steps being uploaded are held open instead, and a file that "
        "the trainer rewrites in place meanwhile costs another attempt (fs.protected_hardlinks=1 allows links only to "
        "files that the user owns or may write)"
    )
