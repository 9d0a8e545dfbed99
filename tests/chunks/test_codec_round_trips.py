"""Whatever goes into the codec comes out of it, and numbers come out smaller than zstd alone makes them."""

from __future__ import annotations

import concurrent.futures
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckptsync.chunks import choice, floats, planes
from ckptsync.chunks.codec import decode, encode
from ckptsync.chunks.header import FLOATS, HEADER, PLANES, RAW, ZSTD, encoded_max
from ckptsync.model.manifest import CHUNK_BYTES_MAX

MIB = 1024 * 1024
COMPRESSIONS = st.sampled_from(["auto", "zstd", "none"])
ITEMSIZES = st.sampled_from([0, 1, 2, 4, 8, 3, 16])


def gaussian(dtype: str, count: int, seed: int = 0) -> bytes:
    return (np.random.default_rng(seed).standard_normal(count) * 0.02).astype(dtype).tobytes()


def bfloat16(count: int) -> bytes:
    return (np.frombuffer(gaussian("<f4", count), "<u4") >> 16).astype("<u2").tobytes()


def widened(halves: bytes) -> bytes:
    return (np.frombuffer(halves, "<u2").astype("<u4") << 16).astype("<u4").tobytes()


def codec_of(blob: bytes) -> int:
    return blob[6]


@settings(deadline=None)
@given(
    unit=st.binary(min_size=0, max_size=64),
    repeat=st.integers(1, 3000),
    tail=st.binary(max_size=9),
    compression=COMPRESSIONS,
    itemsize=ITEMSIZES,
)
@example(unit=b"", repeat=1, tail=b"", compression="auto", itemsize=4)
@example(unit=b"\0", repeat=1, tail=b"", compression="auto", itemsize=8)
@example(unit=b"\x01\x00\xc0\x7f", repeat=3000, tail=b"abc", compression="auto", itemsize=4)  # NaN with a payload
def test_any_bytes_survive(unit, repeat, tail, compression, itemsize):
    raw = unit * repeat + tail
    blob = encode(raw, compression=compression, itemsize=itemsize)
    assert decode(blob, len(raw)) == raw
    assert len(blob) <= len(raw) + HEADER.size <= encoded_max(len(raw))


@settings(deadline=None)
@given(
    width=st.sampled_from([2, 4, 8]),
    count=st.sampled_from([1, 2, 7, 1000, planes.BAND - 1, planes.BAND, planes.BAND + 1, 3 * planes.BAND + 5]),
    extra=st.integers(0, 7),
    seed=st.integers(0, 5),
)
def test_numbers_survive_whatever_the_length(width, count, extra, seed):
    raw = gaussian(f"<f{width}", count, seed) + b"\x7f" * extra
    for hint in (0, width):
        assert decode(encode(raw, compression="auto", itemsize=hint), len(raw)) == raw


@pytest.mark.parametrize("width", [2, 4, 8])
def test_planes_hold_the_bytes_of_equal_significance(width):
    raw = bytes(range(width)) * 3
    found = planes.split(memoryview(raw), width)
    expected = {2: [[0], [1]], 4: [[0, 1], [2], [3]], 8: [[0, 1, 2, 3], [4, 5], [6], [7]]}[width]
    assert [plane.tobytes() for plane in found] == [bytes(unit) * 3 for unit in expected]
    assert planes.join([plane.tobytes() for plane in found], width).tobytes() == raw


@settings(deadline=None)
@given(
    width=st.sampled_from([2, 4, 8]),
    pairs=st.sampled_from([1, 2, 7, 500, planes.BAND // 2 - 1, planes.BAND // 2, planes.BAND // 2 + 1, planes.BAND]),
    rotation=st.integers(0, 1),
    base=st.integers(0, 255),
    seed=st.integers(0, 5),
    spread=st.sampled_from([0, 1, 14, 15, 255]),
)
def test_any_numbers_survive_any_coding(width, pairs, rotation, base, seed, spread):
    """NaNs, infinities, zeros, noise: whatever does not fit into the window is an outlier."""
    random = np.random.default_rng(seed)
    raw = bytearray(random.bytes(2 * pairs * width))
    raw[width - 1 :: width] = random.integers(0, spread + 1, 2 * pairs, dtype="u1").tobytes()
    coding = floats.Coding(width, rotation, base)
    others, places, outliers = floats.split(memoryview(raw), coding)
    assert floats.outliers_in(places.tobytes()) == len(outliers)
    stored = [plane.tobytes() for plane in others]
    assert floats.join(stored, places.tobytes(), outliers.tobytes(), coding).tobytes() == raw


def test_exponents_share_bytes_and_outliers_are_listed_in_order():
    words = np.array([0x3F80, 0xBF80, 0x4000, 0x0000, 0x3F80, 0xFFC1], "<u2")  # 1, -1, 2, 0, 1, a NaN; all bf16
    others, places, outliers = floats.split(words.data.cast("B"), floats.Coding(2, 1, 127))
    assert others[0].tolist() == [0, 1, 0, 0, 0, 0x83]
    assert places.tolist() == [0x00, 0xF1, 0xF0]
    assert outliers.tolist() == [0, 255]


def test_a_window_that_holds_nearly_all_exponents_is_found_even_across_the_wrap():
    random = np.random.default_rng(0)
    exponents = (250 + random.integers(0, 15, 10_000)).astype("u1")  # 250 ... 255, 0 ... 8
    words = exponents.astype("<u2") << 8
    assert floats.Coding(2, 0, 250) in floats.fit(words.data.cast("B"), 2)
    words[::10] = 100 << 8
    assert not [coding for coding in floats.fit(words.data.cast("B"), 2) if coding.rotation == 0]


@pytest.mark.parametrize("hint", [False, True], ids=["sampled", "hinted"])
@pytest.mark.parametrize(
    ("make", "number", "itemsize", "share"),
    [
        (lambda: gaussian("<f4", MIB), FLOATS, 4, 0.91),
        (lambda: bfloat16(MIB), FLOATS, 2, 0.87),
        (lambda: gaussian("<f2", MIB), PLANES, 2, 0.93),
        (lambda: gaussian("<f8", MIB), FLOATS, 8, 0.94),
        (lambda: bytes(2 * MIB) + gaussian("<f4", MIB // 2), PLANES, 4, 0.91),
        (lambda: np.square(np.frombuffer(gaussian("<f4", MIB), "<f4")).tobytes(), FLOATS, 4, 0.91),
        (lambda: np.exp(np.random.default_rng(0).standard_normal(MIB)).astype("<f4").tobytes(), FLOATS, 4, 0.91),
        (lambda: widened(bfloat16(MIB)), FLOATS, 4, 0.91),
    ],
    ids=["fp32", "bf16", "fp16", "fp64", "half zeros", "squares", "second moments", "bf16 in fp32"],
)
def test_numbers_are_split_and_beat_zstd(make, number, itemsize, share, hint):
    raw = make()
    blob = encode(raw, compression="auto", itemsize=itemsize if hint else 0)
    assert (codec_of(blob), blob[7]) == (number, itemsize)
    assert decode(blob, len(raw)) == raw
    assert len(blob) <= share * len(zstandard.ZstdCompressor(level=1).compress(raw))


def test_text_is_plain_zstd_even_under_a_wrong_hint():
    raw = "".join(f'{{"step": {i}, "loss": {i * 7919 % 1000 / 250}}}\n' for i in range(20_000)).encode()
    for itemsize in (0, 4):
        blob = encode(raw, compression="auto", itemsize=itemsize)
        assert codec_of(blob) == ZSTD
        assert len(blob) < len(raw) / 3


def test_noise_is_stored_as_it_is():
    raw = np.random.default_rng(0).bytes(MIB)
    for compression in ("auto", "zstd", "none"):
        blob = encode(raw, compression=compression, itemsize=4)
        assert codec_of(blob) == RAW
        assert len(blob) == HEADER.size + len(raw)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: gaussian("<f8", MIB), 8),
        (lambda: gaussian("<f4", MIB), 4),
        (lambda: bfloat16(MIB), 2),
        (lambda: widened(bfloat16(MIB)), 4),
        (lambda: np.arange(MIB, dtype="<i8").tobytes(), 8),
        (lambda: np.random.default_rng(0).bytes(MIB), 0),
        (lambda: bytes(MIB), 0),
        (lambda: bytes(range(7)) * 100_000, 0),
        (lambda: b"1234567", 0),
    ],
)
def test_the_item_size_shows_in_the_entropy_of_the_bytes(make, expected):
    assert choice._itemsize(choice._sample(memoryview(make()))) == expected


def test_a_sample_that_misleads_costs_space_not_bytes():
    # Compressible exactly where the sample looks, noise elsewhere: the planes turn out not to shrink.
    raw = bytearray(np.random.default_rng(0).bytes(2 * MIB))
    view = memoryview(raw)
    step = (len(view) // choice.WINDOW - 1) / (choice.WINDOWS - 1)
    for i in range(choice.WINDOWS):
        start = int(i * step) * choice.WINDOW
        raw[start : start + choice.WINDOW] = gaussian("<f4", choice.WINDOW // 4)
    blob = encode(raw, compression="auto")
    assert decode(blob, len(raw)) == raw
    assert len(blob) <= len(raw) + HEADER.size


def test_compression_none_and_zstd_are_obeyed():
    raw = gaussian("<f4", MIB)
    assert codec_of(encode(raw, compression="none", itemsize=4)) == RAW
    assert codec_of(encode(raw, compression="zstd", itemsize=4)) == ZSTD


def test_unaligned_and_typed_memory_is_welcome():
    raw = gaussian("<f4", 100_001)
    shifted = memoryview(b"\0" + raw)[1:]
    typed = memoryview(np.frombuffer(raw, "<f4"))
    assert decode(encode(shifted, compression="auto"), len(raw)) == raw
    assert decode(encode(typed, compression="auto"), len(raw)) == raw


def test_a_chunk_larger_than_the_format_allows_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="larger than the format allows"):
        encode(bytes(CHUNK_BYTES_MAX + 1), compression="none")


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_memory_stays_within_a_small_multiple_of_the_chunk(itemsize):
    raw = gaussian(f"<f{itemsize}", 8 * MIB // itemsize)
    encode(raw, compression="auto", itemsize=itemsize)  # contexts of this thread
    tracemalloc.start()
    try:
        blob = encode(raw, compression="auto", itemsize=itemsize)
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
        tracemalloc.reset_peak()
        decode(blob, len(raw))
        assert tracemalloc.get_traced_memory()[1] - len(blob) < 22 * MIB
    finally:
        tracemalloc.stop()


def test_many_threads_do_not_share_contexts():
    raws = [gaussian("<f4", 100_000 + i, seed=i) for i in range(8)] + [b"text " * 10_000 + bytes([i]) for i in range(8)]

    def there_and_back(raw):
        return all(decode(encode(raw, compression="auto"), len(raw)) == raw for _ in range(5))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, raws * 2))
