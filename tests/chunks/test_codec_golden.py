"""Objects written by format 1.0 stay readable: these bytes were written once and must never be written again."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import zstandard

from ckptsync.chunks.codec import decode, encode
from ckptsync.chunks.header import FLOATS, PLANES, RAW, ZSTD
from ckptsync.model.manifest import digest_of

GOLDEN = Path(__file__).parent / "golden"

# name -> codec, item size, raw bytes, BLAKE3 of the raw bytes
EXPECTED = {
    "raw": (RAW, 1, 12, "74dc41d9f76eefd2a96d8bea53dedbc4e539f43dcd9a7d37608b567dc020cb4d"),
    "raw_empty": (RAW, 1, 0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
    "zstd": (ZSTD, 1, 700, "8cd387f162661250ec9baef3b21f8d14378a445e174197279a2bbaf82cca17d9"),
    "planes2": (PLANES, 2, 1401, "12492d722e6215bf4e45f5048c959f7fb060b94e06ff3fd14d010fcb6c226ef2"),
    "planes4": (PLANES, 4, 2003, "ba5c1cb8b7cef05f0e9c188bbfdfa792449321028772fbd6b3969e6900269a54"),
    "planes8": (PLANES, 8, 2407, "ceaafe8533d2c0122bd5b24f25cfb6b2c474ebfeecdb58c9f39ea6fa2284c02e"),
    "floats2": (FLOATS, 2, 4003, "a086e3c65ca949e2b9f651032f5e1dd42fecc93e94f81fc167b1540e4f0b0417"),
    "floats4": (FLOATS, 4, 8007, "89f2358ef97c9303e5f15a0db54c6c1dd91c45cbbf1790ff0852209d546cf6d5"),
    "floats8": (FLOATS, 8, 12004, "221167c4edd3183149302a4bd67e1304d2042e05636ca6c56da1d5084224451d"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_chunk_is_still_read(name):
    codec, itemsize, size, digest = EXPECTED[name]
    blob = (GOLDEN / f"{name}.chunk").read_bytes()
    assert (blob[:6], blob[6], blob[7]) == (b"CKSC\x01\x00", codec, itemsize)
    assert digest_of(decode(blob, size)) == digest


def test_every_codec_and_item_size_has_its_golden_chunk():
    assert {(codec, itemsize) for codec, itemsize, _, _ in EXPECTED.values()} == {
        (RAW, 1),
        (ZSTD, 1),
        (PLANES, 2),
        (PLANES, 4),
        (PLANES, 8),
        (FLOATS, 2),
        (FLOATS, 4),
        (FLOATS, 8),
    }
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXPECTED)


def read_as_documented(blob: bytes) -> bytes:
    """A second reader, written from docs/format.md alone, byte by byte."""
    magic, major, _, codec, _, flags, start, _ = struct.unpack("<4sBBBBHHI", blob[:16])
    assert (magic, major, flags) == (b"CKSC", 1, 0)
    if codec == RAW:
        return blob[start:]
    if codec == ZSTD:
        return zstandard.decompress(blob[start:])
    return floats_as_documented(blob) if codec == FLOATS else planes_as_documented(blob)


def planes_as_documented(blob: bytes) -> bytes:
    itemsize, start, size = blob[7], *struct.unpack_from("<HI", blob, 10)
    cuts = {2: [(0,), (1,)], 4: [(0, 1), (2,), (3,)], 8: [(0, 1, 2, 3), (4, 5), (6,), (7,)]}[itemsize]
    count, tail = divmod(size, itemsize)
    raw = bytearray(size)
    for index, places in enumerate(cuts):
        plane, start = part_as_documented(blob, index, start, count * len(places))
        for offset, place in enumerate(places):
            raw[place : count * itemsize : itemsize] = plane[offset :: len(places)]
    raw[size - tail :] = blob[start:]
    return bytes(raw)


def floats_as_documented(blob: bytes) -> bytes:
    itemsize, start, size = blob[7], *struct.unpack_from("<HI", blob, 10)
    widths = {2: [1], 4: [2, 1], 8: [4, 2, 1]}[itemsize]
    count = 2 * (size // (2 * itemsize))
    rotation, base = blob[16 + 4 * (len(widths) + 2) :][:2]
    parts = []
    for index, width in enumerate(widths):
        part, start = part_as_documented(blob, index, start, count * width)
        parts.append([part[i : i + width] for i in range(0, len(part), width)])
    pairs, start = part_as_documented(blob, len(widths), start, count // 2)
    places = [place for pair in pairs for place in (pair & 15, pair >> 4)]
    outliers, start = part_as_documented(blob, len(widths) + 1, start, places.count(15))
    rest, raw = iter(outliers), b""
    for *lower, fraction, place in zip(*parts, places, strict=True):
        exponent = next(rest) if place == 15 else (place + base) % 256
        rotated = exponent << 8 | fraction[0]
        upper = (rotated >> rotation | rotated << (16 - rotation)) & 0xFFFF
        raw += b"".join(lower) + struct.pack("<H", upper)
    return raw + blob[start:]


def part_as_documented(blob: bytes, index: int, start: int, size: int) -> tuple[bytes, int]:
    """A part, and where the next one begins."""
    (stored,) = struct.unpack_from("<I", blob, 16 + 4 * index)
    part = blob[start : start + stored]
    return (part if stored == size else zstandard.decompress(part)), start + stored


@pytest.mark.parametrize("name", EXPECTED)
def test_the_documented_format_is_the_one_written(name):
    _, _, size, digest = EXPECTED[name]
    raw = read_as_documented((GOLDEN / f"{name}.chunk").read_bytes())
    assert (len(raw), digest_of(raw)) == (size, digest)
    assert read_as_documented(encode(raw, compression="auto")) == raw
