"""Around a confirmation: what the step that was resumed from holds, and where the outcome is kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ckptsync.app import Node
from ckptsync.disk import durable
from ckptsync.disk.scan import list_step
from ckptsync.errors import CkptsyncError
from ckptsync.resume.confirmation.confirm import Confirmation, Confirming, Expected
from ckptsync.resume.confirmation.newest_start import Logged
from ckptsync.resume.contents.step_json import object_in
from ckptsync.resume.context import Resumed
from ckptsync.resume.last_outcome import FILE
from ckptsync.resume.start import step_path

if TYPE_CHECKING:
    from ckptsync.model.launch import LaunchRecord

__all__ = ["NOTE", "expected_of", "judge_log", "keep", "newest_launch"]

NOTE = "confirm"
_STATE = "trainer_state.json"
_EPOCH_MAX = 10**9


def expected_of(node: Node, step: int | None, *, before: Sequence[Logged] = (), steps: int = 1) -> Expected:
    """What a resume from `step` should say. A step that is not here, or cannot be read, tells nothing more.

    `node`: its layout recognised, else nothing is here.
    """
    resumed = None if step is None else _resumed(node, step)
    if resumed is None or _STATE not in resumed.listing.files:
        return Expected(step, before=before, steps=steps)
    epoch = (object_in(resumed, _STATE) or {}).get("epoch")
    whole = int(epoch) if isinstance(epoch, (int, float)) and 0 <= epoch <= _EPOCH_MAX else None
    return Expected(step, epoch=whole, offset=_offset(resumed), before=before, steps=steps)


def _resumed(node: Node, step: int) -> Resumed | None:
    try:
        path = step_path(node, step)
        return Resumed(step, list_step(path)) if path else None
    except CkptsyncError:
        return None


def _offset(resumed: Resumed) -> int | None:
    from ckptsync.resume.contents.dataloader import Unreadable, position  # noqa: PLC0415 - only where it is asked

    try:
        found = position(resumed)
    except Unreadable:
        return None
    return found.samples if found is not None else None


def judge_log(node: Node, confirming: Confirming) -> Confirmation:
    """The result by now; where only the log tells the step, compared with what that step holds."""
    found, expected = confirming.result(), confirming.expected
    if expected.step is not None or found.step is None:
        return found
    known = expected_of(node, found.step)
    return confirming.result(epoch=known.epoch, offset=known.offset)


def newest_launch(node: Node, say: Callable[[str], None]) -> LaunchRecord | None:
    """The newest start by `ckptsync exec` on this node; None = there is none, or the store does not tell."""
    from ckptsync.sync.launches import Launches  # noqa: PLC0415 - the store

    try:
        remote = node.remote(create=False)
        return Launches(remote).newest(node.config.node.name) if remote.run_id else None
    except CkptsyncError as error:
        say(f"the newest launch is not known: {error}")
        return None


def keep(node: Node, record: LaunchRecord | None, found: Confirmation, log: str, *, say: Callable[[str], None]) -> None:
    """Keep an outcome: for `status` in the state directory, and with the launch in the store, if it is that start's."""
    document = {"log": log, "at_s": time.time(), "message": found.line, **found.to_json()}
    durable.publish(os.path.join(node.config.state_dir, FILE), json.dumps(document).encode())
    if record is None:
        return
    if record.resumed_step != found.step:
        say(f"not kept with the newest launch: that resumed from {_from(record.resumed_step)}")
        return
    from ckptsync.sync.launches import Launches  # noqa: PLC0415 - the store

    try:
        Launches(node.remote(create=False)).note(record, NOTE, document)
    except CkptsyncError as error:
        say(f"the outcome is not kept in the store: {error}")


def _from(step: int | None) -> str:
    return "nothing" if step is None else f"step {step}"
