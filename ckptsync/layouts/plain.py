"""plain: any trainer that numbers its step directories. The fallback of detection.

Wholeness is file structure, references between files, and quiet; names add only what is safe to say for every trainer:
a DCP directory needs its `.metadata`, and a Hugging Face checkpoint its `trainer_state.json`. The pointer stays in the
state directory: DeepSpeed owns the name `latest`, OpenRLHF and Accelerate count what lies beside the steps.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from typing import ClassVar, NamedTuple

from ckptsync.layouts.base import Layout, Seen
from ckptsync.layouts.dcp import METADATA, dcp_directories, missing_metadata
from ckptsync.layouts.shards import missing_locally
from ckptsync.model.step import Problem, Shard

__all__ = ["Plain"]

_NAME = re.compile(r"((?:checkpoint|ckpt|global_step|step|iteration|iter|epoch)[-_=]?)([0-9]{1,12})")
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp", ".pkl")
_RANK = (re.compile(r"rank_?([0-9]{1,9})"), re.compile(r"^__([0-9]{1,9})_"), re.compile(r"[-_]([0-9]{1,9})"))
_NUMBER = re.compile(r"[0-9]+")
_HF_STATE = "trainer_state.json"
_HF_ARGS = "training_args.bin"
_HF_RNG = re.compile(r"rng_state(?:_[0-9]+)?\.pth")
_SENTINEL = "checkpoint-is-incomplete.txt"


class _Pattern(NamedTuple):
    """`prefix` and the number, padded with zeros to `width` digits."""

    prefix: str
    width: int

    def name(self, step: int) -> str:
        return f"{self.prefix}{step:0{self.width}d}"

    def step(self, name: str) -> int | None:
        """The number, if this pattern would give exactly this name."""
        match = _NAME.fullmatch(name)
        return int(match[2]) if match and self.name(int(match[2])) == name else None


class Plain(Layout):
    """Numbered step directories of one naming pattern.

    Without arguments every known pattern is read. `for_names` binds the layout to the pattern that is in use, so that
    a directory of another pattern (`epoch_1` beside `step_100`) is not taken for a step of the same count.

    Args:
        prefix: what stands before the number ("iter_"); None = any that is known.
        width: digits to pad to with zeros (0 = not padded).
    """

    name: ClassVar[str] = "plain"

    def __init__(self, prefix: str | None = None, width: int = 0) -> None:
        self._bound = None if prefix is None else _Pattern(prefix, width)

    @classmethod
    def for_names(cls, names: Collection[str]) -> Plain:
        """Bound to the pattern that reproduces most of the names; then the one with the highest number."""
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        if not matches:
            return cls()
        patterns = {_Pattern(match[1], _width(match[2])) for match in matches}
        best = max(sorted(patterns), key=lambda pattern: _support(pattern, names))
        return cls(*best)

    def step_of(self, name: str) -> int | None:
        """The number behind a known prefix (or in the pattern this layout is bound to)."""
        if self._bound is not None:
            return self._bound.step(name)
        match = _NAME.fullmatch(name)
        return int(match[2]) if match else None

    def recognise(self, paths: Collection[str]) -> bool:
        """Anything that is not only temporary."""
        return any(not self.is_temporary(path) for path in paths)

    def is_temporary(self, path: str) -> bool:
        """`*.tmp`, `.tmp*`, `*-unfinished`, Orbax's temporary directories, and transformers' sentinel file."""
        return any(
            part.endswith((".tmp", "-unfinished"))
            or part.startswith(".tmp")
            or ".orbax-checkpoint-tmp" in part
            or part == _SENTINEL
            for part in path.split("/")
        )

    def shard(self, path: str) -> Shard | None:
        """Files with weights or state, by suffix. Role = directory, kind = name; their numbers are left out.

        Numbers may be ranks, steps or counts: only what is left compares from step to step.
        """
        if not path.endswith(_WEIGHTS):
            return None
        directory, name = posixpath.split(path)
        match = next((match for pattern in _RANK if (match := pattern.search(name))), None)
        return Shard(_NUMBER.sub("*", directory), _NUMBER.sub("*", name), int(match[1]) if match else 0)

    def closing(self, paths: Collection[str]) -> frozenset[str]:
        """`trainer_state.json` (Hugging Face), and `.metadata` of each DCP directory."""
        metadata = {posixpath.join(directory, METADATA) for directory in dcp_directories(paths)}
        return frozenset(path for path in paths if path == _HF_STATE or path in metadata)

    def missing(self, sizes: Mapping[str, int]) -> tuple[Problem, ...]:
        """`.metadata` beside `.distcp` files, `trainer_state.json` beside other files of the Hugging Face trainer."""
        hf = any(path == _HF_ARGS or _HF_RNG.fullmatch(path) for path in sizes)
        empty = () if sizes else (Problem("", "missing", "there is no file in it"),)
        return (*empty, *missing_metadata(sizes, here=False), *_missing_state(sizes, expected=hf))

    def missing_here(self, sizes: Mapping[str, int], seen: Seen) -> tuple[Problem, ...]:
        """As `missing`, on the node of the rank that writes the one or the other."""
        shards = [shard for path in sizes if (shard := self.shard(path)) is not None]
        return (
            *missing_locally(shards, seen),
            *missing_metadata(sizes, here=True),
            *_missing_state(sizes, expected=_HF_ARGS in sizes),
        )

    def is_husk(self, paths: Collection[str]) -> bool:
        """A directory without files."""
        return not paths


def _missing_state(paths: Collection[str], *, expected: bool) -> tuple[Problem, ...]:
    if not expected or _HF_STATE in paths:
        return ()
    return (Problem(_HF_STATE, "missing", "missing: the trainer writes it when the rest is done"),)


def _width(digits: str) -> int:
    """How far `digits` show that numbers are padded."""
    return len(digits) if len(digits) > 1 and digits[0] == "0" else 0


def _support(pattern: _Pattern, names: Collection[str]) -> tuple[int, int]:
    steps = [step for name in names if (step := pattern.step(name)) is not None]
    return len(steps), max(steps)
