"""How to encode a chunk, told by a sample of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckptsync.chunks import floats, frames, planes
from ckptsync.chunks.floats import Coding
from ckptsync.chunks.frames import Buffer
from ckptsync.chunks.planes import Words

__all__ = ["Choice", "Floats", "Packer", "Planes", "Zstd", "choose"]

Packer = Callable[[Buffer], bytes]

WINDOW, WINDOWS = 4096, 8  # the sample: 32 KiB, spread over the chunk; a multiple of every item size
WORTHWHILE = 0.97  # below this share of its size, compressing pays for the time of a restore


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
        hint: bytes of one number where the file's format tells (2, 4, 8), else 0: then all are tried.
    """
    sample = _sample(view)
    tried: list[tuple[int, Choice]] = [(len(frames.pack(sample)), Zstd())]
    for itemsize in (hint,) if hint in planes.WIDTHS else tuple(planes.WIDTHS):
        whole = sample[: len(sample) - len(sample) % (2 * itemsize)]
        if whole:
            tried.append(_try_planes(whole, itemsize))
            tried += [_try_floats(whole, coding) for coding in floats.fit(whole, itemsize)]
    size, best = min(tried, key=lambda attempt: attempt[0])
    return best if size < WORTHWHILE * len(sample) else None


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
    return size + len(frames.pack_numbers(pairs.data)) + len(outliers), Floats(coding, packers)


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
