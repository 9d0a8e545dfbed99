import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.disk.place import Tree
from ckptsync.disk.read import FileSource
from ckptsync.errors import NoSpaceError
from ckptsync.model.manifest import Extent, FileEntry
from ckptsync.sync.assemble import Assembly

MTIME_NS = 1_700_000_000_000_000_003


def entry(path, content, pieces):
    extents = tuple(Extent(index, 0, len(piece)) for index, piece in enumerate(pieces))
    return FileEntry(path, len(content), 0o640, MTIME_NS, blake3(content).hexdigest(), extents)


def not_cloned(*_):
    return False


def finished(path):
    found = os.stat(path)
    return (found.st_mode & 0o777, found.st_mtime_ns) == (0o640, MTIME_NS)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_pieces_in_any_order_from_many_threads_make_the_files(tmp_path_factory, data, seed):
    rng, pieces, files, contents = random.Random(seed), [], {}, {}
    for name in data.draw(st.lists(st.sampled_from(["a", "b/c", "b/d", "e/f/g"]), unique=True)):
        parts = [rng.randbytes(rng.choice([1, 100, 70_000])) for _ in range(data.draw(st.integers(0, 5)))]
        contents[name] = b"".join(parts)
        files[name] = entry(name, contents[name], parts)
        starts = [sum(map(len, parts[:index])) for index in range(len(parts))]
        pieces += [([(name, start, 0, len(part))], part) for start, part in zip(starts, parts, strict=True)]
    rng.shuffle(pieces)
    root = tmp_path_factory.mktemp("tree")
    with Tree(str(root)) as tree, ThreadPoolExecutor(4) as pool:
        assembly = Assembly(tree, files)
        assembly.prepare(not_cloned)
        list(pool.map(lambda piece: assembly.write(piece[0], memoryview(piece[1])), pieces))
    assert not assembly.wrong
    assert {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()} == contents
    assert all(finished(root / name) for name in files)


@pytest.mark.parametrize("pieces", [[b"one piece"], [b"two ", b"pieces"]])
def test_what_lies_in_the_file_is_compared_not_what_was_meant(tmp_path, monkeypatch, pieces):
    content = b"".join(pieces)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, b"!" * len(data), at))
    with Tree(str(tmp_path)) as tree:
        assembly = Assembly(tree, {"f": entry("f", content, pieces)})
        assembly.prepare(not_cloned)
        for index, piece in enumerate(pieces):
            assembly.write([("f", sum(map(len, pieces[:index])), 0, len(piece))], memoryview(piece))
        assert assembly.wrong == {"f"}
        assert not finished(tmp_path / "f")
        monkeypatch.undo()
        assembly.again(["f"])
        for index, piece in enumerate(pieces):
            assembly.write([("f", sum(map(len, pieces[:index])), 0, len(piece))], memoryview(piece))
    assert not assembly.wrong
    assert (tmp_path / "f").read_bytes() == content
    assert finished(tmp_path / "f")


@pytest.mark.parametrize("source", [b"0123456789", b"0123456x89", b"0123"])
def test_a_copy_is_only_as_good_as_its_source(tmp_path, source):
    (tmp_path / "source").write_bytes(source)
    (tmp_path / "tree").mkdir()
    with Tree(str(tmp_path / "tree")) as tree, FileSource(str(tmp_path / "source")) as file:
        assembly = Assembly(tree, {"f": entry("f", b"56789", [b"56789"])})
        assembly.copy([("f", 0, 3, 5)], file, 2)
    assert assembly.wrong == (set() if source == b"0123456789" else {"f"})


def test_a_source_that_cannot_be_read_makes_the_file_wrong_and_a_full_disk_is_told(tmp_path, monkeypatch):
    (tmp_path / "source").write_bytes(b"0123456789")
    (tmp_path / "tree").mkdir()
    for code in (5, 28):  # EIO, ENOSPC

        def fail(*_, code=code):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "copy_file_range", fail)
        with Tree(str(tmp_path / "tree")) as tree, FileSource(str(tmp_path / "source")) as file:
            assembly = Assembly(tree, {f"f{code}": entry(f"f{code}", b"0123", [b"0123"])})
            if code == 5:
                assembly.copy([("f5", 0, 0, 4)], file, 0)
                assert assembly.wrong == {"f5"}
            else:
                with pytest.raises(NoSpaceError):
                    assembly.copy([("f28", 0, 0, 4)], file, 0)


def test_a_clone_is_compared_too(tmp_path):
    content = os.urandom(2 << 20)
    files = {name: entry(name, content, [content]) for name in ("right", "wrong")}

    def clone(found, descriptor):
        os.pwrite(descriptor, content if found.path == "right" else content[::-1], 0)
        return True

    with Tree(str(tmp_path)) as tree:
        assembly = Assembly(tree, files)
        assert assembly.prepare(clone) == ["right", "wrong"]
        for name in files:
            assembly.check(name)
    assert assembly.wrong == {"wrong"}
    assert finished(tmp_path / "right")
