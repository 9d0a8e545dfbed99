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

from ckptsync.formats.torch_pickle import Unreadable, read_object
from ckptsync.resume.context import Resumed
from ckptsync.resume.step_json import object_in

__all__ = ["Position", "position"]

_SFT = re.compile(r"data_[0-9]{1,9}\.pt")
_STATE = "trainer_state.json"
_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Position:
    """How far the training had come in its data.

    Attributes:
        source: the file that says so, relative to the step.
        samples: taken from this pass over the data; None = it says only the number of batches.
        batches: the same in batches of the loader; None = not said.
        ended: this pass is over; the next sample is the first of a new one.
        share: it is the position of one data-parallel rank, in its own share of the data.
    """

    source: str
    samples: int | None
    batches: int | None = None
    ended: bool = False
    share: bool = False


def position(resumed: Resumed) -> Position | None:
    """The position that the step keeps; None = it keeps none on this node.

    Raises:
        Unreadable: it is there, and cannot be read, or tells no position.
    """
    files = resumed.listing.files
    sft = next((path for path in sorted(files) if _SFT.fullmatch(path)), None)
    name = "data.pt" if "data.pt" in files else sft
    if name is not None:
        if files[name].size > _BYTES_MAX:
            msg = f"{name} has {files[name].size} bytes: that is a whole dataset, not a position"
            raise Unreadable(msg)
        return _of_loader(name, _read(resumed, name))
    return _of_state(object_in(resumed, _STATE) or {}) if _STATE in files else None


def _read(resumed: Resumed, name: str) -> object:
    try:
        return read_object(os.path.join(resumed.path, name))
    except Unreadable as error:
        msg = f"{name} {error}"
        raise Unreadable(msg) from None
    except OSError as error:
        msg = f"{name} cannot be read: {error.strerror}"
        raise Unreadable(msg) from None


def _of_loader(name: str, state: object) -> Position:
    """From a StatefulDataLoader's state."""
    outer = state if isinstance(state, Mapping) else {}
    inner = _inside(_inside(outer, "_snapshot"), "_main_snapshot") or outer
    samples = _count(_inside(inner, "_sampler_iter_state").get("samples_yielded"))
    batches = _count(inner.get("_sampler_iter_yielded"))
    if samples is None and batches is None:
        msg = f"{name} tells no position: it is not the state of a StatefulDataLoader"
        raise Unreadable(msg)
    ended = outer.get("_iterator_finished") is True
    return Position(name, samples, batches, ended, share=name != "data.pt")


def _of_state(state: Mapping[str, object]) -> Position | None:
    """From a layered trainer's state."""
    loader = _inside(state, "dataloader_state")
    said = (state.get("train_dataset_offset"), loader.get("train_dataset_offset"), loader.get("samples_yielded"))
    samples = next((count for value in said if (count := _count(value)) is not None), None)
    return None if samples is None else Position(_STATE, samples)


def _inside(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = state.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
