"""`clock`: this node's clock against the store's, and no save that seems to come from the future.

Saves are compared by time. ckptsync corrects its own by what the store says, but credentials are signed with the
node's clock, S3 refuses what is more than 15 minutes off, and nobody corrects what the trainer logs.
"""

from __future__ import annotations

import time

from ckptsync.errors import Interrupted, StoreError
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned
from ckptsync.store import keys
from ckptsync.units import format_duration

__all__ = ["check"]

_NS = 10**9
_EXACT_S, _LARGE_S, _REFUSED_S = 2, 60, 15 * 60
_SYNC = "synchronise the clock (chrony, systemd-timesyncd)"


def check(context: Context) -> Outcome:
    """fail: off by 15 min; warn: by a minute, or the step was saved in the future; skip: the store has no clock."""
    node = context.node
    if node.embedded:
        return _future(context, 0) or passed("the store is this machine's own, and has its clock")
    try:
        remote = node.remote(create=False)
        if not remote.run_id:
            unknown = "the run is not in the store yet: nothing is written there to ask its clock"
            return _future(context, 0) or skipped(unknown, "push a step")
        offset_s = remote.clock_offset_ns(node.config.node.name) / _NS
        meta = remote.store.head(keys.probe_key(node.config.run.name, node.config.node.name))
    except (StoreError, Interrupted) as error:
        why = ": ".join(part for part in (error.what, error.why) if part)
        return _future(context, 0) or skipped(f"the store cannot be asked: {why}", "see the check `store`")
    if meta is None or meta.modified_ns is None:
        return skipped("the store gives no times", "compare the nodes' clocks by other means")
    return _future(context, int(offset_s * _NS)) or _judge(offset_s)


def _judge(offset_s: float) -> Outcome:
    by = format_duration(round(abs(offset_s)))
    said = f"this node's clock is {by} {'behind' if offset_s > 0 else 'ahead of'} the store's"
    if abs(offset_s) >= _REFUSED_S:
        return failed(f"{said}: signed requests are refused, and times in logs are wrong", _SYNC)
    if abs(offset_s) >= _LARGE_S:
        return warned(f"{said}: times of saves are corrected by that", _SYNC)
    if abs(offset_s) >= _EXACT_S:
        return passed(f"{said}; times of saves are corrected by that")
    return passed(f"this node's clock agrees with the store's to {_EXACT_S} s")


def _future(context: Context, offset_ns: int) -> Outcome | None:
    """A save that outranks all that follow, until its time has come."""
    resumed = context.resumed
    ahead_s = (resumed.saved_ns - offset_ns - time.time_ns()) / _NS if resumed is not None and resumed.saved_ns else 0.0
    if resumed is None or ahead_s < _LARGE_S:
        return None
    ahead = format_duration(round(ahead_s))
    message = f"step {resumed.step} seems to have been saved {ahead} from now: no save is newer until then"
    return warned(message, f"{_SYNC}; then touch the step's files, or wait")
