"""`scheduler`: the learning rate's schedule is in the step, and not empty: else it would begin again with its warm-up.

Facts. verl 0.9.1: `lr_scheduler` in every `extra_state_*`; where it is None, nothing is loaded, without a word
(utils/checkpoint/fsdp_checkpoint_manager.py). Hugging Face: `scheduler.pt`. `verl_layered`: `actor/scheduler.pt`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptsync.formats.outline import Held
from ckptsync.layouts.base import Layout
from ckptsync.model.step import Listing
from ckptsync.resume.contents.states import FILES_MAX, extras_of, held_in, in_dcp
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, failed, passed, skipped
from ckptsync.resume.start import PULL

__all__ = ["check"]

_FILES = ("scheduler.pt", "scheduler.bin")
_LAYERED = "actor/scheduler.pt"
_SHOWN = 3
_AGAIN = "the learning rate would begin anew: resume from another step"


def check(context: Context) -> Outcome:
    """fail: there is none, or it is empty; skip: it cannot be looked into."""
    resumed, layout = context.resumed, context.node.layout
    if resumed is None or layout is None:
        return skipped("no step on this disk would be resumed from", "see the check `tracker`")
    return _of_files(resumed.listing, layout)


def _of_files(listing: Listing, layout: Layout) -> Outcome:
    if layout.name == "verl_layered":
        return _judge(listing, [_LAYERED], "") if _LAYERED in listing.files else failed(f"{_LAYERED} is missing", PULL)
    extras = extras_of(listing, layout)
    if extras is not None and extras.paths:
        return _judge(listing, extras.paths, "lr_scheduler")
    if extras is not None:
        return failed("there is no extra_state file, and so no schedule", f"{PULL}; {_AGAIN}")
    if in_dcp(listing):
        what = "the schedule lies inside a distributed checkpoint, which is not looked into"
        return skipped(what, "`ckptsync confirm` compares the learning rate in the train log")
    found = [path for path in _FILES if path in listing.files]
    return _judge(listing, found, "") if found else _none_known(listing)


def _none_known(listing: Listing) -> Outcome:
    """Hugging Face writes one beside its optimizer; of other trainers nothing is known."""
    if "optimizer.pt" in listing.files and "trainer_state.json" in listing.files:
        return failed("scheduler.pt is missing beside optimizer.pt", _AGAIN)
    return skipped("no file is known to hold the schedule of this layout", "a check of your own can look")


def _judge(listing: Listing, paths: Sequence[str], key: str) -> Outcome:
    """The schedule in each file: all of it, or what it has under `key`."""
    faults, unreadable = [], []
    for path, held in held_in(listing, paths).items():
        if isinstance(held, str):
            unreadable.append(f"{path} {held}")
        elif fault := _fault(held, key):
            faults.append(f"{path}: {fault}")
    if faults:
        return failed("; ".join(faults[:_SHOWN]), _AGAIN)
    if unreadable:
        return skipped("; ".join(unreadable[:_SHOWN]), "`ckptsync verify --level deep` loads it with torch")
    more = f" (the first {FILES_MAX} were looked into)" if len(paths) > FILES_MAX else ""
    return passed(f"the schedule is in {len(paths)} file{'s' if len(paths) > 1 else ''}, and not empty{more}")


def _fault(held: Held, key: str) -> str:
    schedule = held.get(key) if key else held
    if schedule is None:
        return f"it has no {key}"
    if schedule.outline is None:
        return "the schedule is None"
    return "" if schedule.length or schedule.length is None else "the schedule is empty"
