"""What single configuration values may be, and what stands in for those that are not given. No file is read."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ckptsync.model.selection import parse_strategy

__all__ = [
    "absolute_path",
    "address",
    "fill_defaults",
    "host_url",
    "name",
    "rank_scope",
    "selection",
    "state_dir",
    "store_url",
]

_SYSTEM_STATE = "/var/lib/ckptsync"
_NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}\Z")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z")
_SCOPE = re.compile(r"(all|own|\d+(-\d+)?(,\d+(-\d+)?)*)\Z", re.ASCII)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})\Z", re.ASCII)
_PORT_MAX = 65535
# keys whose value is a path, read relative to the directory of the configuration file
_PATHS = (
    ("run", "output_dir"),
    ("run", "state_dir"),
    ("upload", "ca_file"),
    ("peer", "secret_file"),
    ("confirm", "train_log"),
)


def name(value: str) -> str:
    """A run's or node's name: it becomes part of keys and paths. Raises ValueError."""
    if _NAME.match(value) is None:
        msg = f"{value!r} is not a name: up to 128 letters, digits, dots, dashes and underscores"
        raise ValueError(msg)
    return value


def absolute_path(value: str) -> str:
    """A normalised absolute path. Raises ValueError."""
    if not value.startswith("/") or "\0" in value:
        msg = f"{value!r} is not an absolute path"
        raise ValueError(msg)
    return os.path.normpath(value)


def store_url(value: str) -> str:
    """A store's URL without trailing slashes. Raises ValueError, without repeating what may hold a password."""
    url = _split(value)
    if "://" not in value or _SCHEME.match(url.scheme) is None:
        msg = 'is not a URL: write "s3://bucket/prefix", or "file:///directory" for a directory'
        raise ValueError(msg)
    if url.scheme == "file" and (url.netloc or not url.path.startswith("/")):
        msg = 'needs an absolute path: write "file:///directory"'
        raise ValueError(msg)
    return value.rstrip("/") if url.netloc or url.path.strip("/") else value


def host_url(value: str) -> str:
    """An endpoint: http(s)://host[:port][/path]. Raises ValueError, without repeating what may hold a password."""
    url = _split(value)
    if url.scheme not in {"http", "https"} or not url.hostname:
        msg = 'is not an endpoint: write "https://host:port"'
        raise ValueError(msg)
    return value.rstrip("/")


def _split(value: str) -> SplitResult:
    url = urlsplit(value)
    if url.password is not None or url.query:
        msg = "holds a password or a query: use the environment, a profile or an instance role for credentials"
        raise ValueError(msg)
    return url


def rank_scope(value: str) -> str:
    """Which ranks: "all", "own", or numbers such as "8-15" and "0,4-7". Raises ValueError."""
    if _SCOPE.match(value) is None:
        msg = f'{value!r} is no scope: write "all", "own", or ranks such as "8-15"'
        raise ValueError(msg)
    for ranks in value.split(","):
        first, _, last = ranks.partition("-")
        if last and int(first) > int(last):
            msg = f"the ranks {ranks} run backwards"
            raise ValueError(msg)
    return value


def selection(value: str) -> str:
    """How a step is selected, in the spelling of `Strategy`. Raises ValueError."""
    return str(parse_strategy(value))


def address(value: str) -> str:
    """`host:port`, an IPv6 host in brackets. Raises ValueError."""
    match = _ADDRESS.match(value)
    if match is None or not 0 < int(match[2]) <= _PORT_MAX:
        msg = f'{value!r} is no address: write "0.0.0.0:7070" or "[::]:7070"'
        raise ValueError(msg)
    return value


def fill_defaults(
    raw: Mapping[str, Any], *, base: Path, env: Mapping[str, str], output_dir: str | None
) -> dict[str, Any]:
    """The parsed TOML with absolute paths and with the defaults that depend on the machine.

    Args:
        raw: the parsed file, not validated: what has a wrong type stays as it is.
        base: directory that relative paths in it start from.
        env: the environment.
        output_dir: overrides [run] output_dir; relative to the working directory.
    """
    tables = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    run, node, upload = (_table(tables, key) for key in ("run", "node", "upload"))
    if output_dir is not None:
        run["output_dir"] = str(Path(output_dir).absolute())
    for table, key in _PATHS:
        if value := _get(tables, table, key):
            tables[table][key] = os.path.normpath(base / _expand(value, env))
    directory = _get(tables, "run", "output_dir") or "/missing"  # refused later; only one complaint about it
    run.setdefault("name", Path(directory).name)
    run.setdefault("trainer_dir", directory)
    run_name = _get(tables, "run", "name")
    run.setdefault("state_dir", str(state_dir(run_name if _NAME.match(run_name) else "", env)))
    node.setdefault("name", _node_name(env))
    slurm = env.get("SLURM_NNODES", "")
    if slurm.isdecimal() and int(slurm) > 0:
        node.setdefault("count", int(slurm))
    upload.setdefault("store", f"file://{run['state_dir']}/store")
    return tables


def _node_name(env: Mapping[str, str]) -> str:
    """Slurm's name; what the pod's template says; the index in an Indexed Job, which a pod's successor has, too."""
    index = env.get("JOB_COMPLETION_INDEX", "")
    by_index = f"index-{index}" if index.isdecimal() else ""
    return env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or by_index or os.uname().nodename


def _table(tables: dict[str, Any], key: str) -> dict[str, Any]:
    """The table to fill in; a value that is no table is left for the validation to refuse."""
    table = tables.setdefault(key, {})
    return table if isinstance(table, dict) else {}


def _get(tables: Mapping[str, Any], table: str, key: str) -> str:
    """The value if it is text, else ""."""
    values = tables.get(table)
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, str) else ""


def _expand(path: str, env: Mapping[str, str]) -> str:
    return f"{_home(env)}{path[1:]}" if path == "~" or path.startswith("~/") else path


def _home(env: Mapping[str, str]) -> Path:
    if env.get("HOME"):
        return Path(env["HOME"])
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:  # a container's user without an account
        return Path("/")


def state_dir(run: str, env: Mapping[str, str]) -> Path:
    """Where this node keeps its state of a run, if [run] state_dir does not say.

    Below systemd's $STATE_DIRECTORY (which is the run's own if it is named after the run); else the directory such a
    unit left for this user, so that commands in a shell see the daemon's state; else /var/lib/ckptsync/<run> for root
    and the XDG state directory for others.
    """
    if given := env.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given) if Path(given).name == run else Path(given, run)
    system = Path(_SYSTEM_STATE, run)
    if os.geteuid() == 0 or os.access(system, os.W_OK | os.X_OK):
        return system
    state_home = env.get("XDG_STATE_HOME", "")
    if state_home.startswith("/"):  # the XDG specification: relative paths are ignored
        return Path(state_home, "ckptsync", run)
    return _home(env) / ".local/state/ckptsync" / run
