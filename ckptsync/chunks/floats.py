"""Floats <-> planes in which the exponents of two numbers share a byte.

The exponents of a tensor lie close together, and everything else in its numbers is noise. So the two upper bytes of
each number (sign, exponent, first bits of the fraction) are turned into a *fraction* byte, which is stored as it is,
and an *exponent* byte, of which nearly all values fall into a window of 15. Their places in the window, two to a
byte, are what an entropy coder gets: a quarter of the symbols that the upper halves of the numbers have, in fewer
bits. Exponents outside the window are *outliers*, listed apart.

Where signs vary, the upper half is rotated by one bit first, so that the sign joins the fraction and (for bf16 and
fp32) the exponent fills its byte. Where all signs are equal (second moments) they are better left where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ckptsync.chunks.planes import Words, bands, dtype, widen

__all__ = ["OUTLIER", "WIDTHS", "Coding", "fit", "join", "outliers_in", "split"]

WIDTHS = {2: (1,), 4: (2, 1), 8: (4, 2, 1)}
"""Item size -> bytes per number in each plane besides the exponents, from the least significant up."""
WINDOW = 15
OUTLIER = 15
"""The place that says: look among the outliers."""
_OUTLIERS_MAX = 0.02  # of all numbers: each costs a byte, and time


@dataclass(frozen=True, slots=True)
class Coding:
    """How the numbers of a chunk are taken apart.

    Attributes:
        itemsize: bytes of a number: 2, 4 or 8, little endian.
        rotation: bits by which its upper 16 bits are rotated left: 0 or 1.
        base: the least exponent byte of the window; the window wraps at 256.
    """

    itemsize: int
    rotation: int
    base: int


def fit(sample: memoryview, itemsize: int) -> list[Coding]:
    """The codings that suit numbers like these (whole ones, at least one): none, or one for a rotation, or two."""
    words: Words = np.frombuffer(sample, dtype=dtype(itemsize))
    upper = (words >> (8 * itemsize - 16)).astype("<u2")
    found = []
    for rotation in (0, 1):
        counts = np.bincount(_rotate(upper, rotation) >> 8, minlength=256)
        sums = np.concatenate(([0], np.cumsum(np.concatenate((counts, counts[: WINDOW - 1])))))
        inside = sums[WINDOW:] - sums[:-WINDOW]
        base = int(inside.argmax())
        if inside[base] >= (1 - _OUTLIERS_MAX) * len(words):
            found.append(Coding(itemsize, rotation, base))
    return found


def split(raw: memoryview, coding: Coding) -> tuple[list[Words], Words, Words]:
    """Take an even count of whole numbers apart.

    Returns:
        The planes besides the exponents, least significant first (WIDTHS); the places of the exponents, two to a
        byte; the exponent bytes of the outliers, in order.
    """
    words: Words = np.frombuffer(raw, dtype=dtype(coding.itemsize))
    planes: list[Words] = [np.empty(len(words), dtype=dtype(width)) for width in WIDTHS[coding.itemsize]]
    pairs: Words = np.empty(len(words) // 2, dtype=np.uint8)
    outliers: list[Words] = [np.empty(0, dtype=np.uint8)]
    for band in bands(len(words)):
        rest = words[band]
        for plane in planes[:-1]:
            plane[band] = rest  # the cast keeps the lower half
            rest = (rest >> (8 * plane.itemsize)).astype(plane.dtype)
        rest = _rotate(rest, coding.rotation)
        planes[-1][band] = rest
        exponents = (rest >> 8).astype(np.uint8)
        places = exponents - np.uint8(coding.base)
        outside = np.flatnonzero(places >= WINDOW)
        if len(outside):
            outliers.append(exponents[outside])
            places[outside] = OUTLIER
        both = places.view("<u2")
        pairs[band.start // 2 : band.start // 2 + len(both)] = both | (both >> 4)
    return planes, pairs, np.concatenate(outliers)


def outliers_in(pairs: bytes | memoryview) -> int:
    """How many numbers are outliers."""
    array = np.frombuffer(pairs, dtype=np.uint8)
    return int(np.count_nonzero(array >= OUTLIER << 4) + np.count_nonzero(array & OUTLIER == OUTLIER))


def join(
    planes: Sequence[bytes | memoryview], pairs: bytes | memoryview, outliers: bytes | memoryview, coding: Coding
) -> Words:
    """The inverse of `split`, as bytes.

    Every plane must hold twice as many numbers as `pairs` has bytes, and `outliers` as many as `outliers_in` says.
    """
    lower: list[Words] = [
        np.frombuffer(data, dtype=dtype(width)) for data, width in zip(planes, WIDTHS[coding.itemsize], strict=True)
    ]
    packed, rest = np.frombuffer(pairs, dtype=np.uint8), np.frombuffer(outliers, dtype=np.uint8)
    words: Words = np.empty(2 * len(packed), dtype=dtype(coding.itemsize))
    for band in bands(len(words)):
        exponents, rest = _exponents(packed[band.start // 2 : band.stop // 2], rest, coding.base)
        upper = _rotate(widen(exponents, lower[-1][band]), 16 - coding.rotation)
        for plane in reversed(lower[:-1]):
            upper = widen(upper, plane[band])
        words[band] = upper
    return words.view(np.uint8)


def _exponents(packed: Words, outliers: Words, base: int) -> tuple[Words, Words]:
    """The exponent bytes of a band, and the outliers that come after it."""
    both = packed.astype("<u2")
    both |= both << 4
    both &= 0x0F0F
    places = both.view(np.uint8)
    exponents = places + np.uint8(base)
    if not len(outliers):
        return exponents, outliers
    outside = np.flatnonzero(places == OUTLIER)
    exponents[outside] = outliers[: len(outside)]
    return exponents, outliers[len(outside) :]


def _rotate(halves: Words, bits: int) -> Words:
    """16-bit words rotated left."""
    if not bits % 16:
        return halves
    rotated = np.left_shift(halves, bits)
    rotated |= np.right_shift(halves, 16 - bits)
    return rotated
