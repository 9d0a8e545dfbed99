"""Files of torch.save: whole ones pass, with records that fit their CRCs; damaged ones never do."""

from __future__ import annotations

import io
import itertools
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.formats import inspect, zip_directory
from ckptsync.formats.reading import BytesSource

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def codes(found):
    return [problem.code for problem in found.problems]


@pytest.mark.parametrize(
    "value",
    [
        {str(dtype): torch.ones(33).to(dtype) for dtype in DTYPES},
        {"big": torch.randn(300_000)},
        {f"layers.{i}": torch.full((i,), float(i)) for i in range(200)},
        [],
        {"text": "x" * 100_000, "view": torch.arange(100).view(10, 10)[:, 3]},
    ],
    ids=["dtypes", "big", "many-and-empty", "nothing", "view"],
)
def test_every_record_of_a_whole_file_fits_its_crc(saved, look, value):
    data = saved(value)
    found = look("actor/model.pt", data)
    assert found.format == "torch_zip"
    assert not found.problems
    with zipfile.ZipFile(io.BytesIO(data)) as reference:
        expected = [(info.filename, info.file_size) for info in reference.infolist() if info.file_size]
    assert [(record.name, record.length) for record in found.records] == expected
    for record in found.records:
        assert zlib.crc32(data[record.offset : record.offset + record.length]) == record.crc32


def test_records_of_tensors_are_where_their_bytes_are(saved, look):
    tensor = torch.randn(5000)
    data = saved({"w": tensor})
    (record,) = [r for r in look("x.pt", data).records if r.name.endswith("/data/0")]
    assert data[record.offset : record.offset + record.length] == tensor.numpy().tobytes()


@pytest.mark.parametrize("name", ["random_states_0.pkl", "optimizer.bin", "rng_state.pth", "last.ckpt", "state"])
def test_a_torch_zip_is_known_under_any_name(small_pt, look, name):
    assert look(name, small_pt).format == "torch_zip"
    assert not look(name, small_pt).problems
    assert codes(look(name, small_pt[:-1])) == ["truncated"]


def test_every_truncation_is_found(small_pt, look):
    assert codes(look("x.pt", b"")) == ["empty"]
    for length in range(1, len(small_pt)):
        assert look("x.pt", small_pt[:length]).problems or length < 4, length
    assert codes(look("x.pt", small_pt[: len(small_pt) // 2])) == ["truncated"]


@pytest.mark.parametrize("junk", [b"\0", b"\0" * 4096, b"x", b"PK\5\6" + bytes(18)])
def test_bytes_after_the_end_or_before_the_start_are_found(small_pt, look, junk):
    assert look("x.pt", small_pt + junk).problems
    assert look("x.pt", junk + small_pt).problems


def test_two_files_in_one_are_found_though_zipfile_reads_them(small_pt, look):
    joined = small_pt + small_pt
    assert zipfile.ZipFile(io.BytesIO(joined)).testzip() is None
    assert codes(look("x.pt", joined)) == ["malformed"]


def test_swapped_ranges_are_found(saved, look, damaged):
    data = saved({"w": torch.randn(1000)})
    quarter = len(data) // 4
    swapped = data[:quarter] + data[2 * quarter : 3 * quarter] + data[quarter : 2 * quarter] + data[3 * quarter :]
    assert damaged(look("x.pt", swapped), swapped)
    block = 64
    inner = data[:1024] + data[1024 + block : 1024 + 2 * block] + data[1024 : 1024 + block] + data[1024 + 2 * block :]
    assert damaged(look("x.pt", inner), inner)


def test_each_flipped_byte_is_found_or_harmless_to_torch(small_pt, look, damaged):
    whole = torch.load(io.BytesIO(small_pt), weights_only=True)
    missed = 0
    directory = small_pt.index(b"PK\1\2")
    for at, bit in [(at, bit) for at in range(len(small_pt)) for bit in range(8) if at > directory or bit == at % 8]:
        data = bytearray(small_pt)
        data[at] ^= 1 << bit
        if not damaged(look("x.pt", bytes(data)), data):
            missed += 1
            loaded = torch.load(io.BytesIO(data), weights_only=True)
            assert all(torch.equal(loaded[key], whole[key]) for key in ("w", "b", "empty"))
    assert 0 < missed < 2 * len(small_pt)  # padding, dates and attributes, nothing else


def test_a_hole_of_zeros_is_found(saved, look, damaged):
    data = saved({"w": torch.randn(10_000)})
    hole = data[:5000] + bytes(4096) + data[9096:]
    torch.load(io.BytesIO(hole), weights_only=True)  # torch does not notice
    assert damaged(look("x.pt", hole), hole)
    assert codes(look("x.pt", bytes(4096) + data[4096:])) == ["zeros"]
    assert codes(look("x.pt", bytes(len(data)))) == ["zeros"]


def test_crcs_that_the_writer_switched_off_are_not_checked(saved, look):
    torch.serialization.set_crc32_options(False)
    try:
        data = saved({"w": torch.randn(100)})
    finally:
        torch.serialization.set_crc32_options(True)
    found = look("x.pt", data)
    assert not found.problems
    assert found.records
    assert {record.crc32 for record in found.records} == {None}


def test_the_legacy_format_and_other_content_are_opaque(saved, look):
    legacy = saved({"w": torch.ones(3)}, _use_new_zipfile_serialization=False)
    assert legacy.startswith(bytes.fromhex("80028a0a6cfc9c46f920 6aa850192e".replace(" ", "")))
    for data in (legacy, b"anything else, but not zeros"):
        found = look("x.bin", data)
        assert (found.format, found.problems, found.records) == ("opaque", (), ())


def archive(compression, names=("a/data.pkl", "a/data/0")):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name in names:
            file.writestr(name, b"content " * 50)
    return buffer.getvalue()


def test_a_compressed_zip_is_no_torch_file(look):
    assert codes(look("x.pt", archive(zipfile.ZIP_DEFLATED))) == ["compressed"]


def test_stored_zips_of_other_writers_are_read(look):
    found = look("x.pt", archive(zipfile.ZIP_STORED))
    assert not found.problems
    assert [record.name for record in found.records] == ["a/data.pkl", "a/data/0"]


def test_foreign_zips_are_opaque_even_when_damaged(look):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.ones(3))
    for data in (archive(zipfile.ZIP_DEFLATED, ("code.py",)), buffer.getvalue()):
        assert look("code.zip", data).format == "opaque"
        assert not look("code.zip", data[:-30]).problems


def test_limits_stop_a_directory_that_is_too_large(small_pt, look, monkeypatch):
    monkeypatch.setattr(zip_directory, "ENTRIES_MAX", 3)
    assert codes(look("x.pt", small_pt)) == ["limit"]
    monkeypatch.undo()
    monkeypatch.setattr(zip_directory, "DIRECTORY_BYTES_MAX", 100)
    assert codes(look("x.pt", small_pt)) == ["limit"]


class Counting(BytesSource):
    """Counts reads."""

    reads = 0

    def read(self, offset, length):
        self.reads += 1
        return super().read(offset, length)


def test_thousands_of_small_tensors_take_few_reads(saved):
    data = saved([torch.full((8,), float(i)) for i in range(3000)])
    source = Counting(data)
    assert not inspect("x.pt", source).problems
    assert source.reads < len(data) // 10_000


class Shrinking(BytesSource):
    """A file that has become shorter than its stat said."""

    @property
    def size(self):
        return super().size + 5000


def test_a_file_that_shrinks_while_it_is_read_is_truncated(small_pt):
    assert codes(inspect("x.pt", Shrinking(small_pt))) == ["truncated"]


class Sparse:
    """Pieces of bytes at given offsets, zeros between: a file larger than memory."""

    def __init__(self, pieces, size):
        self.pieces, self.size = pieces, size

    def read(self, offset, length):
        length = max(0, min(length, self.size - offset))
        data = bytearray(length)
        for at, piece in self.pieces.items():
            start, stop = max(at, offset), min(at + len(piece), offset + length)
            if start < stop:
                data[start - offset : stop - offset] = piece[start - at : stop - at]
        return bytes(data)


def beyond_4_gib(size, descriptor_size=None):
    """A zip as torch writes it: one entry of `size` bytes, then a small one that starts beyond 4 GiB."""
    pieces, central, at = {}, b"", 0
    for name, length in ((b"a/data/0", size), (b"a/version", 2)):
        crc = 0x1234
        pieces[at] = struct.pack("<4s5H3L2H", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, len(name), 0) + name
        data = at + len(pieces[at])
        pieces[data + length] = struct.pack("<4sL2Q", b"PK\7\10", crc, descriptor_size or length, length)
        wide = [number for number in (length, length, at) if number >= 0xFFFFFFFF]
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide)
        sizes = [min(number, 0xFFFFFFFF) for number in (length, length, at)]
        head = (b"PK\1\2", 0, 0, 0x808, 0, 0, 0, crc, *sizes[:2], len(name), len(extra), 0, 0, 0, 0, sizes[2])
        central += struct.pack("<4s6H3L5H2L", *head) + name + extra
        at = data + length + 24
    pieces[at] = central
    end = at + len(central)
    tail = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 0, 45, 0, 0, 2, 2, len(central), at)
    tail += struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    pieces[end] = tail + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(central), 0xFFFFFFFF, 0)
    return Sparse(pieces, end + len(pieces[end]))


def test_entries_beyond_4_gib_are_found_where_they_are(hold):
    size = 5 * 2**30
    source = beyond_4_gib(size)
    found = inspect("x.pt", source)
    hold(found, source.size)
    assert not found.problems
    assert [(record.offset, record.length) for record in found.records] == [(38, size), (38 + size + 24 + 39, 2)]
    assert codes(inspect("x.pt", beyond_4_gib(size, size + 1))) == ["malformed"]


@settings(deadline=None)
@given(st.data())
def test_mutated_files_never_raise_nor_give_impossible_records(small_pt, look, data):
    mutated = bytearray(small_pt)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "insert", "zero", "max"]))
        if action == "flip":
            mutated[at] ^= data.draw(st.integers(1, 255))
        elif action == "cut":
            del mutated[at : at + data.draw(st.integers(1, 50))]
        elif action == "insert":
            mutated[at:at] = data.draw(st.binary(max_size=20))
        else:
            stop = min(len(mutated), at + 8)
            mutated[at:stop] = (b"\0" if action == "zero" else b"\xff") * (stop - at)
        if not mutated:
            break
    look("x.pt", bytes(mutated))


def test_overlapping_entries_are_refused(small_pt, look):
    """A directory that names the same bytes twice: the classic way to make a small zip unpack to a huge one."""
    start = small_pt.index(b"PK\1\2")
    lengths = [struct.unpack_from("<H", small_pt, start + 28)[0]]
    entry = small_pt[start : start + 46 + lengths[0]]
    body = small_pt[:start] + entry * 2
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, 2 * len(entry), start, 0)
    assert codes(look("x.pt", body + end)) == ["malformed"]


def test_names_are_unique_in_a_real_file(small_pt, look):
    names = [record.name for record in look("x.pt", small_pt).records]
    assert all(a != b for a, b in itertools.combinations(names, 2))
