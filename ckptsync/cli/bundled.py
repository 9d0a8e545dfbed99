"""Files that lie beside the package in a checkout and inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

import ckptsync
from ckptsync.errors import CkptsyncError

__all__ = ["example_config", "unit_file"]

_PACKAGE = Path(ckptsync.__file__).parent


def example_config() -> str:
    """The commented example configuration."""
    return _read("config.example.toml", "config.example.toml")


def unit_file(name: str) -> str:
    """The unit file `name` ("ckptsync.service", "ckptsync@.service")."""
    return _read(f"systemd_units/{name}", f"systemd/{name}")


def _read(installed: str, checkout: str) -> str:
    for path in (_PACKAGE / installed, _PACKAGE.parent / checkout):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    what = "this installation lacks a file of its own"
    raise CkptsyncError(what, where=installed, remedy="install the wheel again")
