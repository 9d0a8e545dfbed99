"""The floating-point tensors of one file, in slices of bounded size. Imports torch: only for `deep_child.py`.

Facts: weights_only loading gives plain containers, tensors, parameters, DTensors; a tensor's view may be larger than
its storage (stride 0), so that a file of 1 KB can announce more numbers than there is time for.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator

import torch

from ckptsync.formats.safetensors import Tensor, read_header

__all__ = ["count_not_finite", "of_object", "of_safetensors"]

SLICE_NUMBERS = 1 << 20

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_COUNTABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)  # no NaN, no Inf, no conversion

Slices = Iterable[torch.Tensor]
"""Tensors of at most SLICE_NUMBERS numbers."""


def count_not_finite(slices: Slices) -> tuple[int, int]:
    """How many NaN and how many Inf; a complex number counts by its parts."""
    nan = inf = 0
    for part in slices:
        numbers = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
        numbers = numbers if numbers.dtype in _COUNTABLE else numbers.to(torch.float32)
        if not torch.isfinite(numbers).all():
            nan += int(torch.isnan(numbers).sum())
            inf += int(torch.isinf(numbers).sum())
    return nan, inf


def of_object(root: object) -> Iterator[tuple[str, Slices]]:
    """Every floating tensor in nested containers, named by its keys joined with dots; shared containers once."""
    stack: list[tuple[str, object]] = [("", root)]
    seen: set[int] = set()
    while stack:
        name, item = stack.pop()
        if isinstance(item, torch.Tensor):
            yield from ((name, _slices(part)) for part in _plain(item))
            continue
        inner = _children(item)
        if inner and id(item) not in seen:
            seen.add(id(item))
            stack.extend((f"{name}.{key}" if name else str(key), child) for key, child in reversed(inner))


def _children(item: object) -> list[tuple[object, object]]:
    if isinstance(item, dict):
        return list(item.items())
    if isinstance(item, (list, tuple, set)):
        return list(enumerate(item))
    return []


def _plain(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense floating tensors that hold a tensor's numbers: its local shard, its values, itself; often none."""
    local = getattr(tensor, "_local_tensor", tensor).detach()
    if local.layout != torch.strided:
        local = local.values() if local.layout != torch.sparse_coo else local._values()  # noqa: SLF001 - as stored
    number = local.is_floating_point() or local.is_complex()
    if not number or local.is_quantized or local.is_meta or local.dtype is _FLOAT4 or local.numel() == 0:
        return []
    return [local]


def _slices(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Halve the longest dimension until the pieces are small; a view larger than its storage gives the storage."""
    storage = tensor.untyped_storage()
    if tensor.numel() * tensor.itemsize > storage.nbytes():
        count = storage.nbytes() // tensor.itemsize - int(tensor.storage_offset())
        tensor = tensor.as_strided((max(0, count),), (1,))
    if tensor.numel() <= SLICE_NUMBERS:
        yield tensor
        return
    tensor = tensor.view(-1) if tensor.is_contiguous() else tensor
    longest = max(range(tensor.dim()), key=tensor.size)
    half = tensor.size(longest) // 2
    yield from _slices(tensor.narrow(longest, 0, half))
    yield from _slices(tensor.narrow(longest, half, tensor.size(longest) - half))


class _File:
    """An open file as a `Source`."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)


def of_safetensors(path: str) -> Iterator[tuple[str, Slices]]:
    """Every floating tensor of a safetensors file, read in slices. Raises what reading the header raises."""
    with open(path, "rb") as file:
        source = _File(file)
        for tensor in read_header(source):
            if tensor.dtype in _DTYPES:
                yield tensor.name, _read_slices(source, tensor)


def _read_slices(source: _File, tensor: Tensor) -> Iterator[torch.Tensor]:
    dtype = _DTYPES[tensor.dtype]
    step = SLICE_NUMBERS * dtype.itemsize
    for at in range(tensor.offset, tensor.offset + tensor.length, step):
        data = source.read(at, min(step, tensor.offset + tensor.length - at))
        yield torch.frombuffer(bytearray(data), dtype=dtype)
