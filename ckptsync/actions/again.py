"""`exec --again`: the command of this node's newest launch, with all that must stay as it was said explicitly."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckptsync.actions.recording import GIVEN
from ckptsync.app import Node
from ckptsync.errors import UsageError
from ckptsync.resume.running.rewriting import again
from ckptsync.sync.launches import Launches

__all__ = ["recorded_command"]


def recorded_command(node: Node, extra: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The command, and where it was started.

    Args:
        node: this node.
        extra: arguments that go before the recorded ones.

    Raises:
        UsageError: none is recorded, its directory is gone, or a secret has to be given again.
        StoreError: the store, where it is recorded, cannot be reached.
    """
    remote, name = node.remote(create=False), node.config.node.name
    launches = Launches(remote)
    record = launches.newest(name) if remote.run_id else None
    if record is None or not record.argv:
        remedy = "give the command: ckptsync exec -- CMD..."
        raise UsageError("no launch of this node is recorded", where=f"{remote.store.url}, node {name}", remedy=remedy)
    noted = launches.noted(record, GIVEN) or {}
    given = noted.get("argv")
    words = [str(word) for word in given] if isinstance(given, list) and given else record.argv
    if not os.path.isdir(record.cwd):
        what, remedy = (
            "the recorded command was started in a directory that is not here",
            "make it, or give the command",
        )
        raise UsageError(what, where=record.cwd, remedy=remedy)
    return again(words, record.settings, extra), record.cwd
