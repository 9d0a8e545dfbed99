"""The configuration: TOML in, one frozen tree of resolved values out (docs/configuration.md).

Everything that has a default has its value after `load`; nothing reads the environment again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError
from pydantic import model_validator as check_table

from ckptsync.config_errors import refusal
from ckptsync.config_tables import (
    CommitTable,
    ConfirmTable,
    DaemonTable,
    NodeTable,
    PeerTable,
    PreflightTable,
    PromoteTable,
    PullTable,
    RetentionTable,
    RunTable,
    ScrubTable,
    Table,
    UploadTable,
    VerifyTable,
    WatchTable,
)
from ckptsync.config_values import fill_defaults
from ckptsync.errors import ConfigError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "find", "load", "parse"]

SYSTEM_FILE = "/etc/ckptsync/config.toml"
LOCAL_FILE = "ckptsync.toml"
_FILE_BYTES_MAX = 1024 * 1024


class Config(Table):
    """The whole configuration, every value resolved."""

    run: RunTable
    node: NodeTable
    watch: WatchTable = WatchTable()
    verify: VerifyTable = VerifyTable()
    promote: PromoteTable = PromoteTable()
    commit: CommitTable = CommitTable()
    upload: UploadTable
    pull: PullTable = PullTable()
    retention: RetentionTable = RetentionTable()
    peer: PeerTable = PeerTable()
    daemon: DaemonTable = DaemonTable()
    confirm: ConfirmTable = ConfirmTable()
    scrub: ScrubTable = ScrubTable()
    preflight: PreflightTable = PreflightTable()
    _file: str | None = PrivateAttr(default=None)

    @check_table(mode="after")
    def _share_known(self) -> Config:
        if self.upload.bandwidth_total is not None and self.node.count is None:
            msg = "[upload] bandwidth_total needs the number of nodes: set [node] count, or [upload] bandwidth instead"
            raise ValueError(msg)
        return self

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that this node may send: its own limit, or its share of the total if that is less."""
        total, count = self.upload.bandwidth_total, self.node.count
        limits = [self.upload.bandwidth, total / count if total is not None and count is not None else None]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def file(self) -> str | None:
        """Absolute path of the file this was read from; None = defaults only."""
        return self._file

    @property
    def state_dir(self) -> str:
        """Absolute path of what this node remembers of the run."""
        return self.run.state_dir

    def describe(self) -> dict[str, Any]:
        """Every effective value as plain JSON types: seconds, bytes, absolute paths."""
        return {"file": self.file, **self.model_dump(mode="json")}


def find(path: str | None, env: Mapping[str, str]) -> str | None:
    """The configuration file: the first of `path`, $CKPTSYNC_CONFIG, ./ckptsync.toml and /etc/ckptsync/config.toml.

    Returns:
        Its absolute path, None if there is none. A file that was named is returned whether it exists or not.
    """
    if named := path or env.get("CKPTSYNC_CONFIG"):
        return str(Path(named).absolute())
    return next((str(file.absolute()) for file in (Path(LOCAL_FILE), Path(SYSTEM_FILE)) if file.exists()), None)


def load(path: str | None = None, env: Mapping[str, str] | None = None, *, output_dir: str | None = None) -> Config:
    """Read, check and resolve the configuration.

    Args:
        path: the file (`--config`); None looks for one as `find` does.
        env: the environment; this process's by default.
        output_dir: overrides [run] output_dir, relative to the working directory.

    Raises:
        ConfigError: unreadable, not TOML, or refused; one line for all problems.
        UsageError: there is neither a file nor an output_dir.
    """
    env = os.environ if env is None else env
    file = find(path, env)
    if file is None and output_dir is None:
        what = "no configuration found"
        remedy = f"write ./{LOCAL_FILE} with `ckptsync init`, name one with --config, or give --output-dir"
        raise UsageError(what, where=f"./{LOCAL_FILE}, {SYSTEM_FILE}", remedy=remedy)
    data = _read(Path(file)) if file else b""
    return parse(data, file, env, output_dir=output_dir)


def parse(data: bytes, file: str | None, env: Mapping[str, str], *, output_dir: str | None = None) -> Config:
    """`load` for a file whose content is at hand already. Raises ConfigError."""
    try:
        raw: dict[str, Any] = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested without end
        what = "the configuration is not valid TOML"
        raise ConfigError(what, where=file or "", why=str(error)) from None
    base = Path(file).parent if file else Path.cwd()
    tables = fill_defaults(raw, base=base, env=env, output_dir=output_dir)
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        raise refusal(Config, error, file or "command line and environment") from None
    config._file = file  # noqa: SLF001 - set once, before anybody else sees the value
    return config


def _read(file: Path) -> bytes:
    """The content of one file, bounded. Raises ConfigError."""
    what, where = "cannot read the configuration", str(file)
    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or str(error)
        denied = isinstance(error, PermissionError)
        remedy = "make it readable for this user" if denied else "name a file, or write one with `ckptsync init`"
        raise ConfigError(what, where=where, why=why, remedy=remedy) from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(what, where=where, why="larger than 1 MiB: not a configuration")
    return data
