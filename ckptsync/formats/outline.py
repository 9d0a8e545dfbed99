"""What torch files hold, without loading them: the pickle in each, outlined by a child process (outline_child.py).

Source of facts: torch 2.13 writes `<name>/data.pkl`, and the numbers of each tensor as `<name>/data/<key>`; a tensor is
`torch._utils._rebuild_tensor_v2` over the persistent id ("storage", class, key, location, count).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptsync.formats.base import Source
from ckptsync.formats.child import run_child
from ckptsync.formats.reading import Defect, exactly
from ckptsync.formats.torch_zip import ZIP_MAGIC, zip_records

__all__ = ["Held", "TorchPickle", "outlines", "torch_pickle"]

PICKLE_BYTES_MAX = 4 * 1024 * 1024
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_TIMEOUT_S = 30
_MEMORY_BASE = 256 * 1024 * 1024
_MEMORY_PER_BYTE = 48
_PICKLE = "/data.pkl"
_TENSOR = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")


@dataclass(frozen=True, slots=True)
class TorchPickle:
    """The pickle of a torch file, and the bytes that the file holds of each stored tensor, by key."""

    data: bytes
    stored: Mapping[str, int]


def torch_pickle(source: Source) -> TorchPickle:
    """Read the pickle out of a torch file, and nothing else.

    Raises:
        Defect: it is no zip of torch's, damaged, or its pickle is larger than 4 MiB.
        OSError: from the source.
    """
    if source.read(0, len(ZIP_MAGIC)) != ZIP_MAGIC:
        msg = "is not in torch's zip format"
        raise Defect(msg, "opaque")
    records = {record.name: record for record in zip_records(source)}
    name = next((name for name in records if name.endswith(_PICKLE)), None)
    if name is None:
        msg = "has no data.pkl"
        raise Defect(msg, "opaque")
    if records[name].length > PICKLE_BYTES_MAX:
        msg = f"has a pickle of {records[name].length} bytes; the limit is {PICKLE_BYTES_MAX}"
        raise Defect(msg, "limit")
    prefix = f"{name.removesuffix(_PICKLE)}/data/"
    stored = {each.removeprefix(prefix): r.length for each, r in records.items() if each.startswith(prefix)}
    return TorchPickle(exactly(source, records[name].offset, records[name].length), stored)


@dataclass(frozen=True, slots=True)
class Held:
    """A value inside a pickle, as its outline tells; `stored` is of the file."""

    outline: Any
    stored: Mapping[str, int]

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The (first) text keys of a dict; None = it is no dict."""
        return tuple(self.outline[2]) if self._is("dict") else None

    @property
    def length(self) -> int | None:
        """How many items a container or text has; None = it is none."""
        if self._is("dict", "list", "text", "bytes"):
            return int(self.outline[1])
        return len(self.outline) if isinstance(self.outline, str) else None

    def get(self, key: str) -> Held | None:
        """What a dict has under a text key; None = no dict, or no such key."""
        found = self.outline[2] if self._is("dict") else {}
        return Held(found[key], self.stored) if key in found else None

    def items(self) -> tuple[Held, ...]:
        """The first items of a list or tuple, or the arguments of an object."""
        found = self.outline[2] if self._is("list", "object") else ()
        return tuple(Held(item, self.stored) for item in found)

    @property
    def state(self) -> Held:
        """The state that an object was given."""
        return Held(self.outline[3] if self._is("object") else None, self.stored)

    @property
    def tensor_bytes(self) -> int | None:
        """How many bytes the file holds of a tensor's storage; 0 = none; None = it is no tensor."""
        if not self._is("object") or self.outline[1] not in _TENSOR or not self.outline[2]:
            return None
        storage = self.outline[2][0]
        if (
            not isinstance(storage, list)
            or storage[0] != "stored"
            or len(storage[1]) < len(("storage", "class", "key"))
        ):
            return None
        return self.stored.get(str(storage[1][2]), 0)

    def _is(self, *kinds: str) -> bool:
        return isinstance(self.outline, list) and self.outline[0] in kinds


def outlines(pickles: Sequence[TorchPickle]) -> list[Held | str]:
    """The outline of each, in their order; a text says why there is none. One child process reads all."""
    if not pickles:
        return []
    script, size = str(Path(__file__).with_name("outline_child.py")), sum(len(each.data) for each in pickles)
    memory = _MEMORY_BASE + _MEMORY_PER_BYTE * size
    command = [sys.executable, "-I", "-S", script, str(memory), str(_TIMEOUT_S)]
    outcome = run_child(command, _framed(pickles), timeout_s=_TIMEOUT_S, output_max=_ANSWER_BYTES_MAX)
    try:
        answers = json.loads(outcome.output)
    except ValueError:
        why = outcome.stopped or f"the reading process ended with {outcome.code}"
        return [f"cannot be read: {why}"] * len(pickles)
    return [
        Held(answer["outline"], each.stored) if "outline" in answer else f"cannot be read: {answer['error']}"
        for answer, each in zip(answers, pickles, strict=True)
    ]


def _framed(pickles: Sequence[TorchPickle]) -> Iterator[bytes]:
    for each in pickles:
        yield len(each.data).to_bytes(4, "big") + each.data
