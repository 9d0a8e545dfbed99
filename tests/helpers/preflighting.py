"""What a preflight finds out before its checks run, on real directories and a real store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from resuming import node_of

from ckptsync.actions.preflight import PreflightOptions, _Preparation
from ckptsync.actions.push import settle_local
from ckptsync.app import Node
from ckptsync.resume.context import Context


def prepared(
    node: Node, *words: str, cwd: Path | None = None, said: list[str] | None = None, **options: object
) -> Context:
    """As `ckptsync preflight -- WORDS` would give it to the checks."""
    told = said if said is not None else []
    preparation = _Preparation(node, PreflightOptions(words=words, **options), told.append)
    if cwd is not None:
        preparation.cwd = os.fspath(cwd)
    return preparation.context()


def verified(node: Node) -> None:
    """What a daemon would have done: every step here is verified."""
    node.recognise()
    node.local.setup = replace(node.local.setup, settle_s=0.0)
    settle_local(node.local)


def fresh(tmp_path: Path, more: str = "") -> Node:
    """A node as a new process opens it."""
    return node_of(tmp_path, more)
