"""Where in the data a step stands: the dataloader's state, as trainers save it.

verl 0.9.1 saves `StatefulDataLoader.state_dict()` as `data.pt` (torchdata 0.11): `samples_yielded` of the sampler,
batches in `_sampler_iter_yielded`; below `_snapshot._main_snapshot` where workers load. Seen by running it. Layered
trainers have it in `trainer_state.json`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ckptsync.disk.read import FileSource
from ckptsync.formats.outline import Held, outlines, torch_pickle
from ckptsync.formats.reading import Defect
from ckptsync.resume.contents.step_json import object_in
from ckptsync.resume.context import Resumed

__all__ = ["Position", "Unreadable", "position"]

_SFT = re.compile(r"data_[0-9]{1,9}\.pt")
_STATE = "trainer_state.json"


class Unreadable(ValueError):
    """The dataloader's state is there, and tells no position; the message says which file, and why."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the training had come in its data.

    Attributes:
        source: the file that says so, relative to the step.
        samples: taken from this pass over the data; None = it says only the number of batches.
        batches: the same in batches of the loader; None = not said.
        ended: this pass is over; the next sample is the first of a new one.
        share: it is the position of one data-parallel rank, in its own share of the data.
        workers: processes that loaded the data, 0 = none; another number cannot load the state. None = not said.
        shuffled: the state is that of a shuffling sampler, which no other can load; False = it does not say so.
    """

    source: str
    samples: int | None
    batches: int | None = None
    ended: bool = False
    share: bool = False
    workers: int | None = None
    shuffled: bool = False


def position(resumed: Resumed) -> Position | None:
    """The position that the step keeps; None = it keeps none on this node.

    Raises:
        Unreadable: it is there, and cannot be read, or tells no position.
    """
    files = resumed.listing.files
    sft = next((path for path in sorted(files) if _SFT.fullmatch(path)), None)
    name = "data.pt" if "data.pt" in files else sft
    if name is not None:
        return _of_loader(name, _read(resumed, name))
    return _of_state(object_in(resumed, _STATE) or {}) if _STATE in files else None


def _read(resumed: Resumed, name: str) -> Held:
    """The outline of the state: nothing in the file is executed."""
    try:
        with FileSource(os.path.join(resumed.path, name)) as source:
            (found,) = outlines([torch_pickle(source)])
    except (Defect, OSError) as error:
        found = str(error)
    if isinstance(found, str):
        msg = f"{name} {found}"
        raise Unreadable(msg)
    return found


def _of_loader(name: str, state: Held) -> Position:
    """From a StatefulDataLoader's state."""
    inner = _within(state, "_snapshot", "_main_snapshot") or state
    samples = _number(_within(inner, "_sampler_iter_state", "samples_yielded"))
    batches = _number(_within(inner, "_sampler_iter_yielded"))
    if samples is None and batches is None:
        msg = f"{name} tells no position: it is not the state of a StatefulDataLoader"
        raise Unreadable(msg)
    finished = state.get("_iterator_finished")
    return Position(
        name,
        samples,
        batches,
        ended=finished is not None and finished.outline is True,
        share=name != "data.pt",
        workers=0 if state.get("_num_yielded") is not None else _number(inner.get("_num_workers")),
        shuffled=_within(inner, "_sampler_iter_state", "sampler_iter_state", "generator") is not None,
    )


def _within(state: Held, *names: str) -> Held | None:
    found: Held | None = state
    for name in names:
        found = found.get(name) if found is not None else None
    return found


def _number(held: Held | None) -> int | None:
    return _count(held.outline) if held is not None else None


def _of_state(state: Mapping[str, object]) -> Position | None:
    """From a layered trainer's state."""
    loader = state.get("dataloader_state")
    loader = loader if isinstance(loader, Mapping) else {}
    said = (state.get("train_dataset_offset"), loader.get("train_dataset_offset"), loader.get("samples_yielded"))
    samples = next((count for value in said if (count := _count(value)) is not None), None)
    return None if samples is None else Position(_STATE, samples)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
