"""The installed checks, through the entry point group `ckptsync.checks` (name -> `check(context) -> Outcome`)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from ckptsync.errors import CkptsyncError, ConfigError
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome

__all__ = ["GROUP", "Check", "names", "run"]

GROUP = "ckptsync.checks"
Check = Callable[[Context], Outcome]


def names() -> tuple[str, ...]:
    """The names of all installed checks, ours in the order of pyproject.toml."""
    return tuple(dict.fromkeys(entry.name for entry in entry_points(group=GROUP)))


def run(name: str, context: Context) -> Outcome:
    """One check. What it raises is its failure: a store that does not answer, a file that cannot be read.

    Raises:
        ConfigError: there is no such check, or its package is broken.
    """
    entry = next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)
    if entry is None:
        raise ConfigError("unknown check", where=repr(name), why=f"installed are {', '.join(names())}")
    try:
        check: Check = entry.load()
    except Exception as error:
        raise ConfigError("cannot load a check", where=entry.value, why=repr(error), remedy="reinstall it") from error
    try:
        return check(context)
    except CkptsyncError as error:
        what = " ".join(": ".join(part for part in (error.what, error.where, error.why) if part).split())
        return Outcome("fail", what, error.remedy or "see the message")
    except Exception as error:  # noqa: BLE001 - one check's bug must not hide what the others found
        return Outcome("fail", f"the check itself failed: {error!r}", "report this, with CKPTSYNC_DEBUG=1")
