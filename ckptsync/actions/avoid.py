"""`pull --avoid N`: the commit that failed to load is marked for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckptsync.app import Node
from ckptsync.sync.committed import newest_commit
from ckptsync.sync.history import History, mark_bad
from ckptsync.sync.remote import Remote

__all__ = ["avoid"]


def avoid(node: Node, remote: Remote, steps: Iterable[int], say: Callable[[str], None]) -> None:
    """Mark, for each of the steps, the commit that a resume was last made from; saying it twice changes nothing.

    That is the one that was decided for last; else the one that was restored here; else the newest. So a save of that
    number that comes later is not hit, though the launch script may still say `--avoid N`.

    Raises:
        StoreError: it cannot be marked.
    """
    history = History(remote, node.layout_of(), node.window_ns).refresh()
    for step in steps:
        digest = history.decided_last(step) or _restored(node, step) or _newest(history, step)
        if not digest:
            say(f"step {step} has no commit that could be avoided")
        elif digest not in history.bad:
            mark_bad(remote, step, digest, node=node.config.node.name, why="pull --avoid")
            say(f"step {step}: commit {digest[:12]} is marked as bad for the whole run")


def _restored(node: Node, step: int) -> str:
    saves = node.saves.load()
    return next((save.commit for save in reversed(saves) if save.part.step == step and save.commit), "")


def _newest(history: History, step: int) -> str:
    index = history.remote.index(step)
    found = newest_commit(history, {step: index}, [], forced=True)
    return found.commit if found is not None else ""
