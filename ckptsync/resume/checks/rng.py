"""`rng`: the states of the random generators are there for every rank, and hold what the trainer restores from them.

Facts. verl 0.9.1: `extra_state_*` has `rng` with cpu, numpy, random, and the device's name; a file without `rng`
loads, and the generators start anew without a word (utils/checkpoint/fsdp_checkpoint_manager.py,
checkpoint_manager.py). Hugging Face: `rng_state.pth`, or one for each rank, with python, numpy, cpu, and the devices;
a missing one is a line in the log (transformers 5.24, trainer.py). `verl_layered`: in `trainer_state.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ckptsync.formats.outline import Held
from ckptsync.layouts.base import Layout
from ckptsync.model.step import Listing
from ckptsync.resume.contents.states import FILES_MAX, extras_of, held_in, hf_rng_files, in_dcp
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned
from ckptsync.resume.start import PULL

__all__ = ["check"]

_VERL, _HF = ("cpu", "numpy", "random"), ("cpu", "numpy", "python")
_CODES = frozenset({"rng-state"})
_STATE = "trainer_state.json"
_SHOWN = 3
_LOAD_CONTENTS = "actor_rollout_ref.actor.checkpoint.load_contents"
_RANDOM_ITEMS, _RANDOM_WORDS, _NUMPY_ITEMS = 3, 625, 5
_AFRESH = "the generators would start anew, so the samples differ: resume from another step, or go on knowingly"
_LOOK = "`ckptsync verify --level deep` loads it with torch"


def check(context: Context) -> Outcome:
    """fail: a rank's state is missing, or lacks a generator; skip: it cannot be looked into."""
    resumed, layout = context.resumed, context.node.layout
    if resumed is None or layout is None:
        return skipped("no step on this disk would be resumed from", "see the check `tracker`")
    if layout.name == "verl_layered":
        return _layered(resumed.listing, layout, resumed.step)
    return _of_files(context, resumed.listing, layout)


def _of_files(context: Context, listing: Listing, layout: Layout) -> Outcome:
    extras = extras_of(listing, layout)
    if extras is not None:
        if extras.lacking:
            return _without(context, f"no extra_state, and so no rng state, of {'; '.join(extras.lacking)}")
        return _judge(listing, extras.paths, lambda held: _of_generators(held.get("rng"), _VERL))
    if in_dcp(listing):
        what = "the rng states lie inside a distributed checkpoint, which is not looked into"
        return skipped(what, "the check `integrity` sees that its files are whole; its reader is torch")
    paths, gaps = hf_rng_files(listing)
    if gaps:
        return failed(f"rng_state_*.pth of ranks {', '.join(map(str, gaps))} is missing", PULL)
    if not paths:
        return skipped("no file is known to hold the rng states of this layout", "a check of your own can look")
    return _judge(listing, paths, lambda held: _of_generators(held, _HF))


def _without(context: Context, message: str) -> Outcome:
    contents = context.now.get(_LOAD_CONTENTS)
    if contents is not None and isinstance(contents.value, (list, tuple)) and "extra" not in contents.value:
        return warned(f"{message}; {_LOAD_CONTENTS} leaves them out ({contents.source})", _AFRESH)
    return failed(message, f"{PULL}; or leave `extra` out of {_LOAD_CONTENTS}, and go on with new generators")


def _layered(listing: Listing, layout: Layout, step: int) -> Outcome:
    def read(path: str) -> bytes:
        with open(os.path.join(listing.path, path), "rb") as file:
            return file.read()

    if _STATE not in listing.files:
        return failed(f"{_STATE} is missing, and the rng states with it", PULL)
    sizes = {path: stat.size for path, stat in listing.files.items()}
    faults = [problem for problem in layout.check(sizes, step, read) if problem.path == _STATE]
    mine = [problem for problem in faults if problem.code in _CODES]
    if mine:
        return failed("; ".join(problem.message for problem in mine[:_SHOWN]), _AFRESH)
    if faults and faults[0].code not in ("global-step", "epoch", "dataloader-state"):
        return skipped(f"{_STATE} cannot be read: {faults[0].message}", "see the check `integrity`")
    return passed(f"{_STATE} has the states of python, numpy, torch and cuda")


def _judge(listing: Listing, paths: Sequence[str], fault_of: Callable[[Held], tuple[str, str]]) -> Outcome:
    """All files of one kind; `fault_of` gives what is wrong with one, and what is only to be said of it."""
    unreadable, faults, notes = [], [], []
    for path, held in held_in(listing, paths).items():
        if isinstance(held, str):
            unreadable.append(f"{path} {held}")
            continue
        fault, note = fault_of(held)
        faults += [f"{path}: {fault}"] if fault else []
        notes += [note] if note else []
    if faults:
        return failed(_shown(faults), _AFRESH)
    if unreadable:
        return skipped(_shown(unreadable), _LOOK)
    more = f" (the first {FILES_MAX} were looked into)" if len(paths) > FILES_MAX else ""
    if notes:
        return warned(f"{len(paths)} rng states{more}: {notes[0]}", "resume on the kind of device that it was saved on")
    files = f"{len(paths)} file{'s' if len(paths) > 1 else ''}"  # of a rank there may be one for each role
    return passed(f"the rng states in {files} hold all generators{more}")


def _shown(lines: Sequence[str]) -> str:
    return "; ".join(lines[:_SHOWN]) + (f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")


def _of_generators(rng: Held | None, names: Sequence[str]) -> tuple[str, str]:
    """What is wrong with the states of one rank, and what is to be said of it."""
    if rng is None or rng.keys is None:
        return "it has no rng states", ""
    absent = [name for name in names if name not in rng.keys]
    if absent:
        return f"it has no state of {', '.join(absent)}", ""
    for name in rng.keys:
        state = rng.get(name)
        assert state is not None, "it is one of its keys"
        if fault := _fault(name, state):
            return f"the state of {name} {fault}", ""
    devices = [name for name in rng.keys if name not in names]
    return "", "" if devices else "no device's generator is among them"


def _fault(name: str, state: Held) -> str:
    """What is wrong with a generator's state; "" = nothing."""
    if name == "numpy":
        return _numpy_fault(state)
    if name in ("random", "python"):
        return _python_fault(state)
    tensors = state.items() if state.tensor_bytes is None and state.length is not None else (state,)
    sizes = [tensor.tensor_bytes for tensor in tensors]
    if not sizes or any(size is None for size in sizes):
        return "is no tensor"
    return "" if all(sizes) else "has no bytes"


def _python_fault(state: Held) -> str:
    """`random.getstate()`: a version, 625 words, and a number or nothing."""
    items = state.items()
    sound = state.length == len(items) == _RANDOM_ITEMS and items[1].length == _RANDOM_WORDS
    return "" if sound else "is not what random.getstate() gives"


def _numpy_fault(state: Held) -> str:
    """`numpy.random.get_state()`: a name, an array with the generator's words, and three numbers."""
    items = state.items()
    if not state.length == len(items) == _NUMPY_ITEMS or not isinstance(items[0].outline, str):
        return "is not what numpy.random.get_state() gives"
    array = items[1].state.items()
    return "" if array and _bytes_of(array[-1]) else "has no words"


def _bytes_of(data: Held) -> int:
    """Of an array's content, which older protocols write as text."""
    if data.length is not None:
        return data.length
    arguments = data.items()
    return arguments[0].length or 0 if arguments else 0
