"""safetensors: 8 bytes of header length, a JSON header, the tensors without gaps. And the index of several of them.

Source of facts: the format section of the safetensors README; what its Rust library refuses is refused here.
"""

from __future__ import annotations

import math
import posixpath
from typing import Any, NamedTuple

from ckptsync.formats.base import Format, Inspection, Record, Reference, Source
from ckptsync.formats.json_text import parse_json
from ckptsync.formats.reading import Defect, all_of, exactly, failed, refuse_empty
from ckptsync.model.paths import check_relative
from ckptsync.model.step import Problem

__all__ = ["HEADER_BYTES_MAX", "INDEX_BYTES_MAX", "Safetensors", "Tensor", "WeightIndex", "read_header"]

HEADER_BYTES_MAX = 100_000_000
INDEX_BYTES_MAX = 64 * 1024 * 1024
PROBLEMS_MAX = 20
_LENGTH_BYTES = 8
_DIMENSIONS_MAX = 64
_INT_MAX = 2**63 - 1

_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_NUMBER_BYTES = {"C64": 4, "F4": 1, "F6_E2M3": 1, "F6_E3M2": 1}


class Tensor(NamedTuple):
    """One tensor of the header; offset and length in bytes, in the file."""

    name: str
    dtype: str
    offset: int
    length: int


class Safetensors(Format):
    """`*.safetensors`."""

    name = "safetensors"

    def claims(self, path: str, head: bytes) -> bool:  # noqa: ARG002 - an interface
        """By suffix: the format has no magic."""
        return path.endswith(".safetensors")

    def inspect(self, path: str, source: Source) -> Inspection:
        """Problems: `empty`, `truncated`, `size`, `malformed`, `limit`."""
        try:
            tensors = read_header(source)
        except Defect as defect:
            return failed(self.name, path, defect)
        return Inspection(self.name, tuple(_record(tensor) for tensor in tensors if tensor.length))


def _record(tensor: Tensor) -> Record:
    itemsize = _NUMBER_BYTES.get(tensor.dtype, _BITS.get(tensor.dtype, 0) // 8)
    return Record(tensor.name, tensor.offset, tensor.length, itemsize=itemsize)


def read_header(source: Source) -> list[Tensor]:
    """The tensors, ascending by offset, checked against the file's size.

    Raises:
        Defect: `empty`, `truncated`, `size`, `malformed`, `limit`.
        OSError: from the source.
    """
    refuse_empty(source)
    length = int.from_bytes(exactly(source, 0, _LENGTH_BYTES), "little")
    if length > HEADER_BYTES_MAX:
        msg = f"announces a header of {length} bytes; the limit is {HEADER_BYTES_MAX}"
        raise Defect(msg, "limit")
    header = parse_json(exactly(source, _LENGTH_BYTES, length))
    if not isinstance(header, dict):
        msg = "its header is not an object"
        raise Defect(msg)
    header.pop("__metadata__", None)
    base = _LENGTH_BYTES + length
    tensors = sorted((_tensor(name, item, base) for name, item in header.items()), key=lambda t: (t.offset, t.length))
    _check_tiling(tensors, base, source.size)
    return tensors


def _tensor(name: str, item: Any, base: int) -> Tensor:
    try:
        dtype, shape, (begin, end) = item["dtype"], item["shape"], item["data_offsets"]
        sound = isinstance(dtype, str) and all(type(n) is int and 0 <= n <= _INT_MAX for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or begin > end or not _fits(dtype, shape, end - begin):
        msg = f"tensor {name!r:.120} has a header entry that contradicts itself"
        raise Defect(msg)
    return Tensor(name, dtype, base + begin, end - begin)


def _fits(dtype: str, shape: list[int], length: int) -> bool:
    """Whether shape and length agree; a dtype newer than this code cannot be checked."""
    bits = _BITS.get(dtype)
    return bits is None or (len(shape) <= _DIMENSIONS_MAX and math.prod(shape) * bits == length * 8)


def _check_tiling(tensors: list[Tensor], base: int, size: int) -> None:
    at = base
    for tensor in tensors:
        if tensor.offset != at:
            msg = f"tensor {tensor.name!r:.120} does not start where the one before it ends"
            raise Defect(msg)
        at += tensor.length
    if size != at:
        msg = f"has {size} bytes, but its header says {at}"
        raise Defect(msg, "truncated" if size < at else "size")


class WeightIndex(Format):
    """`*.safetensors.index.json` and `*.bin.index.json`: which file holds which weight."""

    name = "weight_index"

    def claims(self, path: str, head: bytes) -> bool:  # noqa: ARG002 - an interface
        """By suffix."""
        return path.endswith((".safetensors.index.json", ".bin.index.json"))

    def inspect(self, path: str, source: Source) -> Inspection:
        """Problems: `empty`, `malformed`, `limit`, `reference` (a target that leaves the directory)."""
        try:
            targets = _targets(source)
        except Defect as defect:
            return failed(self.name, path, defect)
        directory = posixpath.dirname(path)
        problems = [Problem(path, "reference", why) for why in map(_why_not, targets) if why]
        sound = [Reference(posixpath.join(directory, target)) for target in targets if not _why_not(target)]
        return Inspection(self.name, (Record("text", 0, source.size),), tuple(problems[:PROBLEMS_MAX]), tuple(sound))


def _why_not(target: str) -> str:
    """Why a target cannot be a file of the step; empty = it can."""
    try:
        check_relative(target)
    except ValueError as error:  # UnicodeError is one: a name that no file system call could take
        return f"names {target!r:.120}, which {error}"
    return ""


def _targets(source: Source) -> list[str]:
    refuse_empty(source)
    if source.size > INDEX_BYTES_MAX:
        msg = f"has {source.size} bytes; the limit for an index is {INDEX_BYTES_MAX}"
        raise Defect(msg, "limit")
    document = parse_json(all_of(source))
    weights = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(target, str) for target in weights.values()):
        msg = "has no weight_map from names to file names"
        raise Defect(msg)
    return sorted(set(weights.values()))
