import ctypes
import mmap
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.disk import read
from ckptsync.disk.pieces import read_into, read_pieces
from ckptsync.disk.read import FileSource, WindowReader, read_file

PAGE = mmap.PAGESIZE
MIB = 1 << 20


def resident(path):
    """Which pages of a file are in the page cache, as mincore(2) says."""
    size = path.stat().st_size
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as area:
        pages = (ctypes.c_ubyte * ((size + PAGE - 1) // PAGE))()
        start = ctypes.c_ubyte.from_buffer(area)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages) == 0
        del start
    return [page & 1 for page in pages]


@pytest.fixture
def cold_file(tmp_path):
    """A file of 24 MiB on the disk and not in memory."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB) * 24)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if sum(resident(path)) > 8:
        pytest.skip("this file system keeps its pages (tmpfs)")
    return path


def test_what_we_brought_in_is_dropped(cold_file):
    total = sum(len(data) for _, data in read_file(str(cold_file)))
    assert total == 24 * MIB
    assert sum(resident(cold_file)) * PAGE <= MIB


def test_the_control_a_plain_read_fills_the_cache(cold_file):
    cold_file.read_bytes()
    assert sum(resident(cold_file)) * PAGE >= 23 * MIB


def test_hot_pages_are_never_evicted(cold_file):
    with open(cold_file, "rb") as file:
        os.pread(file.fileno(), 7 * MIB, 6 * MIB)
    before = resident(cold_file)
    assert sum(before) * PAGE >= 7 * MIB
    for _ in read_file(str(cold_file)):
        pass
    after = resident(cold_file)
    assert not [page for page, hot in enumerate(before) if hot and not after[page]]
    assert sum(after) * PAGE <= sum(before) * PAGE + MIB


@pytest.mark.parametrize("length", [3_000, 50_000, 400_000, 5_000_000])
def test_pieces_that_share_pages_do_not_keep_each_other_in_memory(cold_file, length):
    """Records begin at multiples of 64 bytes, and several threads read neighbours at the same time."""
    pieces = [(cold_file.name, start, length) for start in range(64, 24 * MIB - length, length)][:400]
    with ThreadPoolExecutor(4) as pool:
        assert all(len(data) == length for data in pool.map(lambda p: read_pieces(str(cold_file.parent), [p]), pieces))
    assert sum(resident(cold_file)) * PAGE <= MIB


def test_an_abandoned_read_drops_its_window_too(cold_file):
    windows = read_file(str(cold_file))
    next(windows)
    windows.close()
    assert sum(resident(cold_file)[: 4 * MIB // PAGE]) * PAGE <= MIB // 4


def _small(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(os.urandom(90_000))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(path)):
        pytest.skip("this file system keeps its pages (tmpfs)")
    return path


def _fill(path):
    out = memoryview(bytearray(os.path.getsize(path)))
    with FileSource(str(path)) as source:
        assert WindowReader().fill(source, 0, out) == len(out)
    return bytes(out)


@pytest.mark.parametrize("read_all", [lambda path: b"".join(bytes(p) for _, p in read_file(str(path))), _fill])
def test_a_small_file_leaves_the_cache_as_it_was_found(tmp_path, read_all):
    path = _small(tmp_path)
    read_all(path)
    assert not any(resident(path))
    content = path.read_bytes()
    assert all(resident(path))
    assert read_all(path) == content
    assert all(resident(path))


def test_without_the_probe_nothing_is_dropped(cold_file, monkeypatch):
    cold_file.read_bytes()
    monkeypatch.setattr(read, "_NOWAIT", None)
    for _ in read_file(str(cold_file)):
        pass
    assert sum(resident(cold_file)) * PAGE >= 23 * MIB


def test_without_the_probe_a_small_file_stays(tmp_path, monkeypatch):
    path = _small(tmp_path)
    monkeypatch.setattr(read, "_NOWAIT", None)
    assert _fill(path) == path.read_bytes()
    assert all(resident(path))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 40_000), window=st.sampled_from([1, 7, 4096, 10_000, 1 << 20]), data=st.data())
def test_windows_and_ranges_give_the_bytes_of_the_file(tmp_path_factory, size, window, data):
    if window < 100:
        size %= 200
    path = tmp_path_factory.getbasetemp() / "ranges"
    content = os.urandom(size)
    path.write_bytes(content)
    whole = [(offset, bytes(piece)) for offset, piece in read_file(str(path), window)]
    assert b"".join(piece for _, piece in whole) == content
    ranges = data.draw(st.lists(st.tuples(st.integers(0, size), st.integers(0, 300)), max_size=5))
    ranges = [(offset, min(length, size - offset)) for offset, length in ranges]
    with FileSource(str(path)) as source:
        got = b"".join(bytes(piece) for _, piece in WindowReader(window).windows(source, ranges))
    assert got == b"".join(content[offset : offset + length] for offset, length in ranges)


def test_a_file_cut_short_while_it_is_read_ends_early(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with FileSource(str(path)) as source:
        windows = WindowReader(40).windows(source)
        assert len(next(windows)[1]) == 40
        os.truncate(path, 50)
        assert sum(len(data) for _, data in windows) == 10
        assert source.read(45, 100) == bytes(5)


def test_a_fifo_in_the_place_of_a_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        FileSource(str(tmp_path / "fifo"))


@settings(deadline=None)
@given(
    pieces=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40_000), st.integers(0, 40_000)), max_size=6),
)
def test_pieces_are_read_into_one_buffer_or_counted_short(tmp_path_factory, pieces):
    root = tmp_path_factory.getbasetemp() / "pieces"
    root.mkdir(exist_ok=True)
    content = {name: random.Random(name).randbytes(50_000) for name in "ab"}
    for name, data in content.items():
        (root / name).write_bytes(data)
    expected = b"".join(content[name][offset : offset + length] for name, offset, length in pieces)
    out = memoryview(bytearray(sum(length for _, _, length in pieces)))
    assert read_into(str(root), pieces, out) == len(expected)
    assert bytes(out[: len(expected)]) == read_pieces(str(root), pieces) == expected
