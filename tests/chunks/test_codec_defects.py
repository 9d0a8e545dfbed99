"""Damaged, lying and foreign objects: one error with a reason, nothing large allocated, never bytes of a wrong size."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.chunks import frames
from ckptsync.chunks.codec import decode, encode
from ckptsync.chunks.header import FLOATS, HEADER, HEADER_MAX, PLANES, RAW, ZSTD, encoded_max
from ckptsync.errors import CorruptObject

# fp16 has too few exponent bits for codec 3
HALVES = (np.random.default_rng(1).standard_normal(1000) * 0.02).astype("<f2").tobytes() + b"odd"
NUMBERS = (np.random.default_rng(1).standard_normal(1000) * 0.02).astype("<f4").tobytes() + b"odd"
BFLOATS = (np.random.default_rng(1).standard_normal(2000).astype("<f4").view("<u4") >> 16).astype(
    "<u2"
).tobytes() + b"odd"
TEXT = b"once upon a time " * 50
BLOBS = {
    "raw": (encode(NUMBERS, compression="none"), NUMBERS),
    "zstd": (encode(TEXT, compression="auto"), TEXT),
    "planes": (encode(HALVES, compression="auto"), HALVES),
    "floats": (encode(BFLOATS, compression="auto"), BFLOATS),
    "empty": (encode(b"", compression="auto"), b""),
}


def header(codec_number, size, *, major=1, minor=0, itemsize=1, flags=0, table=b"", start=None):
    start = HEADER.size + len(table) if start is None else start
    return HEADER.pack(b"CKSC", major, minor, codec_number, itemsize, flags, start, size) + table


def zstd_blob(frame: bytes, size: int) -> bytes:
    return header(ZSTD, size) + frame


def refused(blob: bytes, size: int) -> str:
    with pytest.raises(CorruptObject) as caught:
        decode(blob, size)
    return str(caught.value)


def test_the_samples_cover_every_codec():
    assert [blob[6] for blob, _ in BLOBS.values()] == [RAW, ZSTD, PLANES, FLOATS, RAW]


@pytest.mark.parametrize("name", BLOBS)
def test_every_truncation_and_extension_is_refused(name):
    blob, raw = BLOBS[name]
    for length in range(len(blob)):
        refused(blob[:length], len(raw))
    for extra in (b"\0", b"CKSC", blob):
        refused(blob + extra, len(raw))


@pytest.mark.parametrize("name", BLOBS)
def test_another_size_than_the_manifest_says_is_refused(name):
    blob, raw = BLOBS[name]
    for size in {0, len(raw) - 1, len(raw) + 1, 2 * len(raw)} - {len(raw), -1}:
        assert "where the manifest says" in refused(blob, size)


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(BLOBS)))
def test_flipped_bits_never_crash_nor_change_the_size(data, name):
    blob, raw = BLOBS[name]
    damaged = bytearray(blob)
    for position in data.draw(st.lists(st.integers(0, 8 * len(blob) - 1), min_size=1, max_size=3)):
        damaged[position // 8] ^= 1 << position % 8
    try:
        assert len(decode(bytes(damaged), len(raw))) == len(raw)
    except CorruptObject as error:
        assert error.why  # noqa: PT017 - the other outcome is as good


@settings(deadline=None)
@given(junk=st.binary(max_size=200), size=st.integers(0, 300))
def test_junk_is_refused(junk, size):
    refused(junk, size)
    if junk:
        refused(header(ZSTD, size) + junk, size)
        refused(header(PLANES, size, itemsize=4) + junk, size)


def test_a_newer_major_version_asks_for_an_upgrade():
    blob = bytearray(BLOBS["planes"][0])
    blob[4] = 2
    for newer in (bytes(blob), b"CKSC\x02"):
        message = refused(newer, len(NUMBERS))
        assert "written in format 2" in message
        assert "upgrade ckptsync" in message


def test_a_newer_minor_version_and_a_longer_header_are_read():
    blob, raw = BLOBS["planes"]
    table, payload = blob[HEADER.size : blob[10]], blob[blob[10] :]
    extended = header(PLANES, len(raw), minor=7, itemsize=2, table=table + bytes(100)) + payload
    assert decode(extended, len(raw)) == raw


def test_unknown_flags_and_codecs_are_refused():
    assert "upgrade ckptsync" in refused(header(RAW, 1, flags=1) + b"x", 1)
    assert "header is damaged" in refused(header(4, 1) + b"x", 1)
    assert "header is damaged" in refused(header(RAW, 1, major=0) + b"x", 1)


@pytest.mark.parametrize("start", [0, 15, 18, 0xFFFF])
def test_a_header_of_impossible_length_is_refused(start):
    assert "header is damaged" in refused(header(RAW, 1, start=start) + b"x", 1)


@pytest.mark.parametrize("itemsize", [0, 1, 3, 16, 255])
def test_planes_of_an_impossible_item_size_are_refused(itemsize):
    assert "table of planes" in refused(header(PLANES, 64, itemsize=itemsize, table=bytes(16)) + bytes(64), 64)


@pytest.mark.parametrize("itemsize", [0, 1, 3, 16, 255])
def test_floats_of_an_impossible_item_size_are_refused(itemsize):
    assert "table of planes" in refused(header(FLOATS, 64, itemsize=itemsize, table=bytes(22)) + bytes(64), 64)


def test_a_rotation_that_is_none_and_a_table_that_is_cut_short_are_refused():
    table = struct.pack("<3I", 4, 2, 0)
    good = header(FLOATS, 8, itemsize=2, table=table + b"\x01\x70") + b"fffe\x00\x00"
    assert decode(good, 8)
    assert "table of planes" in refused(header(FLOATS, 8, itemsize=2, table=table + b"\x02\x70") + good[-6:], 8)
    assert "table of planes" in refused(header(FLOATS, 8, itemsize=2, table=table) + good[-6:], 8)


@pytest.mark.parametrize("listed", [0, 1, 3])
def test_outliers_that_are_not_as_many_as_the_places_say_are_refused(listed):
    def blob(count):
        table = struct.pack("<3I", 4, 2, count) + b"\x01\x70"
        return header(FLOATS, 8, itemsize=2, table=table) + b"fffe\xff\x00" + bytes(count)

    assert decode(blob(2), 8)
    refused(blob(listed), 8)


def test_a_table_that_leaves_the_object_is_refused():
    table = struct.pack("<3I", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    assert "do not fill it" in refused(header(PLANES, 64, itemsize=4, table=table) + bytes(64), 64)
    assert "table of planes" in refused(header(PLANES, 64, itemsize=4) + bytes(64), 64)


def test_a_plane_frame_of_the_wrong_size_is_refused():
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    table = struct.pack("<2I", len(frame), 500)
    assert "1000 bytes where 500 bytes belong" in refused(
        header(PLANES, 1000, itemsize=2, table=table) + frame + bytes(500), 1000
    )


def test_a_bomb_is_refused_before_anything_is_allocated():
    frame = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    tracemalloc.start()
    try:
        assert "67108864 bytes where 1000 bytes belong" in refused(zstd_blob(frame, 1000), 1000)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("declared", [999, 1001, 0, 2**60])
def test_a_frame_that_declares_a_wrong_size_is_refused(declared):
    frame = bytearray(zstandard.ZstdCompressor(level=1).compress(np.random.default_rng(0).bytes(1000)))
    assert frame[4] == 0x60  # two bytes of content size, biased by 256, right after the descriptor
    small = struct.pack("<H", declared - 256) if 256 <= declared < 2**16 else None
    if small is None:  # eight bytes of content size
        frame[4:7] = b"\xe0" + struct.pack("<Q", declared)
    else:
        frame[5:7] = small
    refused(zstd_blob(bytes(frame), 1000), 1000)
    if declared < 2**16:  # the header agrees with the lie, the content does not
        refused(zstd_blob(bytes(frame), declared), declared)


def test_a_frame_without_its_size_is_refused():
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert "undeclared size" in refused(zstd_blob(frame, len(TEXT)), len(TEXT))


def test_a_frame_without_its_end_is_refused():
    compressor = zstandard.ZstdCompressor().compressobj(size=200_000)
    data = np.random.default_rng(0).bytes(200_000)
    whole = compressor.compress(data) + compressor.flush()
    assert "not a whole zstd frame" in refused(zstd_blob(whole[:-4], len(data)), len(data))


def test_a_second_frame_is_refused():
    frame = zstandard.ZstdCompressor().compress(TEXT)
    for more in (frame, b"\x50\x2a\x4d\x18\0\0\0\0"):  # another one; a skippable one
        assert "not a whole zstd frame" in refused(zstd_blob(frame + more, len(TEXT)), len(TEXT))


def test_a_giant_window_is_refused():
    window_log_31 = b"\x28\xb5\x2f\xfd" + bytes([0xC0, (31 - 10) << 3]) + struct.pack("<Q", 1000)
    assert "a window of" in refused(zstd_blob(window_log_31 + b"\x01\0\0", 1000), 1000)


def test_a_frame_with_a_wrong_checksum_is_refused():
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
    assert decode(zstd_blob(bytes(frame), len(TEXT)), len(TEXT)) == TEXT
    frame[-1] ^= 1
    assert "not a whole zstd frame" in refused(zstd_blob(bytes(frame), len(TEXT)), len(TEXT))


def test_an_empty_frame_is_never_right():
    with pytest.raises(frames.FrameError):
        frames.unpack(zstandard.ZstdCompressor().compress(b""), 0)


def test_a_reader_allows_what_later_minor_versions_may_add():
    assert encoded_max(10) == 10 + HEADER_MAX
