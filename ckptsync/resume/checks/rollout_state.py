"""`rollout_state`: no saved state of the inference engine comes back with the step: it is stale after a restart.

`verl_layered` saves it in `rollout/`, and restores it unless `--no-rollout-state-restore` is given; `[pull] drop`
leaves it out of a pull. With `--fix` the directory is deleted from the step on this disk.
"""

from __future__ import annotations

import os

from ckptsync.disk import durable
from ckptsync.resume.context import Context, Resumed
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned

__all__ = ["check"]

_DIRECTORY = "rollout"
_FLAG = "--no-rollout-state-restore"
_LOCK_S = 10.0
_REMEDY = f"add {_FLAG}, as `ckptsync exec` does; or `ckptsync preflight --fix` deletes the directory"


def check(context: Context) -> Outcome:
    """fail: it is there, and the start would restore it; warn: it is there, and nobody told us the start."""
    resumed, layout = context.resumed, context.node.layout
    if resumed is None or layout is None:
        return skipped("no step on this disk would be resumed from", "see the check `tracker`")
    if layout.name != "verl_layered":
        return passed(f"layout {layout.name} saves no state of the inference engine")
    found = [path for path in resumed.listing.files if path.startswith(f"{_DIRECTORY}/")]
    if not found:
        return passed(f"step {resumed.step} has no {_DIRECTORY}/")
    if _FLAG in context.words:
        return passed(f"{_FLAG} leaves out what is in {_DIRECTORY}/")
    if context.fix:
        return _remove(context, resumed)
    message = f"{os.path.join(resumed.path, found[0])} is stale, and would be restored into the engine"
    return (
        failed(message, _REMEDY) if context.words else warned(f"{message}, if its command says nothing else", _REMEDY)
    )


def _remove(context: Context, resumed: Resumed) -> Outcome:
    """Raises ConflictError: somebody else works on the run. As the disk says."""
    path = os.path.join(resumed.path, _DIRECTORY)
    context.say(f"{path} is deleted")
    lock = context.node.lock()
    lock.acquire(_LOCK_S)
    try:
        durable.remove_tree(path, within=resumed.path)
    finally:
        lock.release()
    return passed(f"{path} was deleted; the daemon verifies the step again")
