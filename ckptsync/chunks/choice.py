"""How to encode a chunk, told by a sample of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptsync.chunks import floats, frames, planes
from ckptsync.chunks.floats import Coding
from ckptsync.chunks.frames import Buffer
from ckptsync.chunks.planes import Words

__all__ = ["Choice", "Floats", "Packer", "Planes", "Zstd", "choose"]

Packer = Callable[[Buffer], bytes]

WINDOW, WINDOWS = 2048, 8  # the sample: 16 KiB, spread over the chunk; a multiple of every item size
WORTHWHILE = 0.97  # below this share of its size, compressing pays for the time of a restore
_PACKED = 0.01  # what packing one more plane must save, as a share of all: it takes as long as the exponents do
_DENSE = 0.7  # zstd alone makes less than this of text, and no numbers hide in it
_PERIOD = 8  # the largest item size
_LOOK = 1024  # bytes of each window that tell the item size
_ALIKE_BITS = 0.35  # by which the entropy of like bytes may differ in so small a sample


@dataclass(frozen=True, slots=True)
class Zstd:
    """One frame."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Planes of bytes, and how to compress each; None = as it is."""

    itemsize: int
    packers: tuple[Packer | None, ...]


@dataclass(frozen=True, slots=True)
class Floats:
    """Exponents in pairs; `packers` are those of the other planes."""

    coding: Coding
    packers: tuple[Packer | None, ...]


Choice = Zstd | Planes | Floats


def choose(view: memoryview, hint: int) -> Choice | None:
    """The codec that makes the least of a chunk; None = none is worth while.

    Args:
        view: the raw bytes of the chunk, at least one.
        hint: bytes of one number where the file's format tells (2, 4, 8), else 0: then the sample tells.
    """
    sample = _sample(view)
    plain = len(frames.pack(sample))
    tried: list[tuple[int, Choice]] = [(plain, Zstd())]
    for itemsize in _itemsizes(sample, hint, plain):
        whole = sample[: len(sample) - len(sample) % (2 * itemsize)]
        if whole:  # where the exponents fit into a window, planes are no smaller (fp64: by 1.5 %), and slower
            codings = floats.fit(whole, itemsize)
            tried += [_try_floats(whole, coding) for coding in codings] or [_try_planes(whole, itemsize)]
    size, best = min(tried, key=lambda attempt: attempt[0])
    return best if size < WORTHWHILE * len(sample) else None


def _itemsizes(sample: memoryview, hint: int, plain: int) -> tuple[int, ...]:
    """The item sizes worth a trial; `plain`: bytes that zstd alone makes of the sample."""
    itemsize = hint if hint in planes.WIDTHS else _itemsize(sample)
    if itemsize:
        return (itemsize,)
    # small tensors and what lies between them do not begin at multiples of the item size
    return tuple(planes.WIDTHS) if plain > _DENSE * len(sample) else ()


def _itemsize(sample: memoryview) -> int:
    """Bytes of a number: the least distance at which bytes are alike; 0 = no numbers are to be seen.

    The bytes of a number differ in their entropy (those of its fraction are noise, those of its exponent are not), and
    do so again with every number. Even neighbours are alike in text and in noise.
    """
    array = np.frombuffer(sample, dtype=np.uint8)
    if len(sample) == WINDOW * WINDOWS:
        array = array.reshape(WINDOWS, WINDOW)[:, :_LOOK]
    columns = array.ravel()[: array.size - array.size % _PERIOD].reshape(-1, _PERIOD)
    bits = _entropies(columns)
    for distance in (1, 2, 4):
        if np.abs(bits[distance:] - bits[:-distance]).max() < _ALIKE_BITS:
            return distance if distance in planes.WIDTHS else 0
    return _PERIOD


def _entropies(columns: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Bits per byte in each column."""
    places = columns + np.arange(_PERIOD, dtype=np.uint16) * np.uint16(256)
    shares = np.bincount(places.ravel(), minlength=_PERIOD * 256).reshape(_PERIOD, 256) / max(len(columns), 1)
    bits: npt.NDArray[np.float64] = -(shares * np.log2(np.maximum(shares, 1e-9))).sum(axis=1)
    return bits


def _sample(view: memoryview) -> memoryview:
    if len(view) <= WINDOW * WINDOWS:
        return view
    # Multiples of the window keep every number whole: a chunk begins with one.
    step = (len(view) // WINDOW - 1) / (WINDOWS - 1)
    starts = (int(i * step) * WINDOW for i in range(WINDOWS))
    return memoryview(b"".join(view[start : start + WINDOW] for start in starts))


def _try_planes(sample: memoryview, itemsize: int) -> tuple[int, Planes]:
    size, packers = _best_packers(planes.split(sample, itemsize))
    return size, Planes(itemsize, packers)


def _try_floats(sample: memoryview, coding: Coding) -> tuple[int, Floats]:
    others, pairs, outliers = floats.split(sample, coding)
    size, packers = _best_packers(others)
    size += len(frames.pack_numbers(pairs.data)) + len(outliers)
    return size + int(_PACKED * len(sample)) * sum(packer is not None for packer in packers), Floats(coding, packers)


def _best_packers(found: list[Words]) -> tuple[int, tuple[Packer | None, ...]]:
    """The bytes that the planes come to, and the packer for each plane like these."""
    best = [_best_packer(plane.data.cast("B")) for plane in found]
    return sum(size for size, _ in best), tuple(packer for _, packer in best)


def _best_packer(plane: memoryview) -> tuple[int, Packer | None]:
    size = len(frames.pack_numbers(plane))
    if size >= WORTHWHILE * len(plane):
        return len(plane), None
    size_of_runs = len(frames.pack_runs(plane))
    return (size_of_runs, frames.pack_runs) if WORTHWHILE * size_of_runs < size else (size, frames.pack_numbers)
