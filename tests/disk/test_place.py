import os

import pytest

from ckptsync.disk import place, syscalls
from ckptsync.disk.place import Tree, clone, copy_range, write_at
from ckptsync.errors import CkptsyncError, NoSpaceError


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "root").mkdir()
    with Tree(str(tmp_path / "root")) as tree:
        yield tree


def test_files_dirs_and_links_are_made_with_modes_and_times(tree, tmp_path):
    descriptor = tree.create("a/b/file", size=5)
    write_at(descriptor, b"12345", 0)
    tree.finish_file(descriptor, mode=0o640, mtime_ns=1_000_000_007)
    os.close(descriptor)
    tree.make_dir("c/empty")
    tree.make_dir("c/empty")
    tree.make_link("c/link", "../a/b/file")
    tree.finish_dir("c", mode=0o750, mtime_ns=2_000_000_009)
    tree.finish_dir("", mode=0o755, mtime_ns=3_000_000_001)
    root = tmp_path / "root"
    assert (root / "c" / "link").read_bytes() == b"12345"
    assert (root / "c" / "empty").is_dir()
    seen = [
        (os.stat(path).st_mode & 0o777, os.stat(path).st_mtime_ns) for path in (root / "a/b/file", root / "c", root)
    ]
    assert seen == [(0o640, 1_000_000_007), (0o750, 2_000_000_009), (0o755, 3_000_000_001)]


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../out", "", "a//b", "./a", "a/."])
def test_paths_that_lead_out_are_refused(tree, path):
    for act in (tree.create, tree.make_dir, lambda bad: tree.make_link(bad, "x")):
        with pytest.raises(ValueError, match=r"is|has"):
            act(path)


@pytest.mark.parametrize("name", ["../out", "/etc/x", "..", "", "a/b", "a\0b"])
def test_a_folder_takes_single_names(tree, name):
    with tree.folder("") as folder:
        for act in (folder.create, folder.open):
            with pytest.raises(ValueError, match=r"is|has|holds"):
                act(name)


def test_a_planted_link_is_not_followed(tree, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "dir").symlink_to("../outside")
    (tmp_path / "root" / "file").symlink_to("../outside/file")
    for act in (lambda: tree.create("dir/x"), lambda: tree.create("file"), lambda: tree.make_dir("dir/x")):
        with pytest.raises(CkptsyncError):
            act()
    with tree.folder("") as folder:
        for act in (folder.create, folder.open):
            with pytest.raises(CkptsyncError):
                act("file")
    assert os.listdir(tmp_path / "outside") == []


def test_a_full_disk_shows_when_the_file_is_created(small_disk):
    with Tree(str(small_disk)) as tree, pytest.raises(NoSpaceError):
        tree.create("big", size=4 << 20)


def test_as_root_files_go_to_the_owner(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    with Tree(str(tmp_path), owner=(65534, 65534)) as tree:
        descriptor = tree.create("d/f")
        tree.finish_file(descriptor, mode=0o600, mtime_ns=0)
        os.close(descriptor)
        tree.finish_dir("d", mode=0o700, mtime_ns=0)
    assert {os.stat(tmp_path / path).st_uid for path in ("d", "d/f")} == {65534}


def pair(tmp_path, content):
    (tmp_path / "source").write_bytes(content)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    return source, target


@pytest.mark.parametrize("way", ["kernel", "plain", "clone"])
def test_copies_are_equal_and_independent(tmp_path, monkeypatch, way):
    content = os.urandom(3_000_001)
    if way == "plain":
        monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    if way == "clone":  # what FICLONE does, where this file system has none
        monkeypatch.setattr(syscalls, "reflink", lambda a, b: os.sendfile(b, a, 0, len(content)) == len(content))
    source, target = pair(tmp_path, content)
    if way == "clone":
        assert not clone(source, target, len(content) + 1)
        assert clone(source, target, len(content))
    else:
        assert copy_range(source, 0, target, 0, len(content)) == len(content)
    os.pwrite(target, b"!", 0)
    assert (tmp_path / "target").read_bytes() == b"!" + content[1:]
    assert (tmp_path / "source").read_bytes() == content


def test_ranges_land_where_they_should_and_end_with_the_source(tmp_path, monkeypatch):
    source, target = pair(tmp_path, b"0123456789")

    def refuse(*_):
        raise OSError(place.errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert copy_range(source, 4, target, 2, 3) == 3
    assert copy_range(source, 8, target, 5, 100) == 2
    assert (tmp_path / "target").read_bytes() == b"\0\x00456" + b"89"
