"""verl_layered: `step_{N}` with full (unsharded) files of one process, and a JSON state that closes the step.

step_{N}/actor/{pytorch_model.bin,optimizer.pt,scheduler.pt}
         ref/pytorch_model.bin
         rollout/engine_state.json      optional, and not restored into the inference engine
         trainer_state.json             written last
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

from ckptsync.layouts.base import Layout, Seen
from ckptsync.layouts.shards import missing_locally
from ckptsync.layouts.smallfiles import read_object
from ckptsync.model.step import Problem, Shard

__all__ = ["VerlLayered"]

_STEP = re.compile(r"step_(0|[1-9][0-9]{0,11})")
_STATE = "trainer_state.json"
_SHARDS = {
    "actor/pytorch_model.bin": Shard("actor", "model", 0),
    "actor/optimizer.pt": Shard("actor", "optim", 0),
    "actor/scheduler.pt": Shard("actor", "scheduler", 0),
    "ref/pytorch_model.bin": Shard("ref", "model", 0),
}
_NEVER_EMPTY = ("actor/optimizer.pt", "actor/scheduler.pt")
_GENERATORS = ("python", "numpy", "torch", "cuda")


class VerlLayered(Layout):
    """The layered layout (see the module's docstring). One process writes everything, in this order."""

    name: ClassVar[str] = "verl_layered"
    pointer: ClassVar[Literal["output_dir", "state_dir"]] = "output_dir"
    barrier: ClassVar[bool] = True

    def step_of(self, name: str) -> int | None:
        """`step_{N}` exactly."""
        match = _STEP.fullmatch(name)
        return int(match[1]) if match else None

    def recognise(self, paths: Collection[str]) -> bool:
        """By its own files; `trainer_state.json` alone would also be a Hugging Face checkpoint."""
        return any(path in _SHARDS or path == "rollout/engine_state.json" for path in paths)

    def is_temporary(self, path: str) -> bool:
        """`*.tmp`, as writers that rename leave it."""
        return posixpath.basename(path).endswith(".tmp")

    def shard(self, path: str) -> Shard | None:
        """The four weight and optimizer files."""
        return _SHARDS.get(path)

    def closing(self, paths: Collection[str]) -> frozenset[str]:
        """`trainer_state.json`."""
        return frozenset(path for path in paths if path == _STATE)

    def missing(self, sizes: Mapping[str, int]) -> tuple[Problem, ...]:
        """All but `rollout/`."""
        return tuple(
            Problem(path, "missing", "missing" if path != _STATE else "missing: it is written last")
            for path in (*_SHARDS, _STATE)
            if path not in sizes
        )

    def missing_here(self, sizes: Mapping[str, int], seen: Seen) -> tuple[Problem, ...]:
        """The node that writes any of the files writes all; another one may hold nothing but `rollout/`."""
        if any(path in _SHARDS or path == _STATE for path in sizes):
            return self.missing(sizes)
        return missing_locally((), seen)

    def check(self, sizes: Mapping[str, int], step: int, read: Callable[[str], bytes]) -> tuple[Problem, ...]:
        """Whether the state holds all that a resume needs; each thing that is missing or bad is named."""
        empty = [Problem(path, "empty", "is empty") for path in _NEVER_EMPTY if sizes.get(path) == 0]
        if _STATE not in sizes:
            return tuple(empty)
        document = read_object(_STATE, sizes, read)
        if isinstance(document, Problem):
            return (*empty, document)
        return (*empty, *(Problem(_STATE, code, said) for code, said in _faults(document, step)))

    def resume_args(self, path: str) -> list[str]:
        """The engine's saved state is stale after a restart, so it is not restored."""
        return [f"trainer.resume_from_checkpoint={path}", "--no-rollout-state-restore"]


def _faults(state: Mapping[str, Any], step: int) -> Iterator[tuple[str, str]]:
    """(code, message) of everything that is wrong with a trainer state."""
    said = state.get("global_step")
    if "global_step" not in state:
        yield "global-step", "global_step is missing"
    elif type(said) is not int:
        yield "global-step", f"global_step is not a whole number: {said!r}"
    elif said != step:
        yield "global-step", f"global_step is {said}, in the directory of step {step}"
    if "epoch" not in state:
        yield "epoch", "epoch is missing"
    elif type(state["epoch"]) not in (int, float):
        yield "epoch", f"epoch is not a number: {state['epoch']!r}"
    yield from _rng_faults(state.get("rng_states"))
    if state.get("dataloader_state") is None:
        yield "dataloader-state", "dataloader_state is missing"


def _rng_faults(states: object) -> Iterator[tuple[str, str]]:
    if not isinstance(states, dict):
        yield "rng-state", "rng_states is missing" if states is None else "rng_states is not an object"
        return
    for name in _GENERATORS:
        state = states.get(name)
        if name not in states or state is None:
            yield "rng-state", f"rng_states.{name} is missing"
        elif state in ("", [], {}):
            yield "rng-state", f"rng_states.{name} is empty"
        elif not all(_is_base64(text) for text in _texts(state)):
            yield "rng-state", f"rng_states.{name} is not valid base64"


def _texts(state: object) -> list[str]:
    """The strings that must be base64: the state itself, or a list of nothing but strings (one per device)."""
    if isinstance(state, str):
        return [state]
    if isinstance(state, list) and all(isinstance(item, str) for item in state):
        return state
    return []


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return False
