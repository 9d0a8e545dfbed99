import errno
import os
import subprocess
import sys
import threading

import pytest

from ckptsync.disk import durable, faults
from ckptsync.errors import CheckpointError, CkptsyncError, ConfigError, NoSpaceError, StepChanged
from ckptsync.testing import crash

PUBLISH = "from ckptsync.disk import durable\ndurable.publish(sys.argv[1], b'new' * 1000)"
PUBLISH_NEW = "from ckptsync.disk import durable\ndurable.publish_new(sys.argv[1], b'new' * 1000)"


def test_publish_new_creates_once_and_keeps_the_first(tmp_path):
    path = str(tmp_path / "a" / "b" / "key")
    assert durable.publish_new(path, b"one")
    assert not durable.publish_new(path, b"two")
    assert os.listdir(tmp_path / "a" / "b") == ["key"]
    with open(path, "rb") as file:
        assert file.read() == b"one"


def test_publish_new_has_one_winner_among_racing_threads(tmp_path):
    path, won, gate = str(tmp_path / "key"), [], threading.Barrier(8)

    def race(number):
        gate.wait()
        if durable.publish_new(path, b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "key").read_bytes() == b"%d" % won[0]
    assert os.listdir(tmp_path) == ["key"]


def test_publish_new_never_replaces_a_dangling_link(tmp_path):
    (tmp_path / "key").symlink_to("nowhere")
    assert not durable.publish_new(str(tmp_path / "key"), b"x")
    assert os.readlink(tmp_path / "key") == "nowhere"


def test_publish_new_without_hard_links_still_creates_once(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert durable.publish_new(str(tmp_path / "key"), b"one")
    assert not durable.publish_new(str(tmp_path / "key"), b"two")
    assert os.listdir(tmp_path) == ["key"]


def test_a_link_whose_reply_was_lost_counts_as_created(tmp_path, monkeypatch):
    link = os.link

    def link_twice(source, target, **options):
        link(source, target, **options)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", link_twice)
    assert durable.publish_new(str(tmp_path / "key"), b"one")


@pytest.mark.parametrize("label", ["write.before-fsync", "publish.before-rename", "publish.after-rename"])
def test_killed_publish_leaves_old_or_new_content(tmp_path, killed_at, label):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    killed_at(label, PUBLISH, path)
    assert path.read_bytes() == (b"new" * 1000 if label == "publish.after-rename" else b"old")
    durable.remove_leftovers(str(tmp_path))
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("label", ["make-dirs.created", "publish-new.before-link", "publish-new.after-link"])
def test_killed_publish_new_leaves_nothing_or_all(tmp_path, killed_at, label):
    path = tmp_path / "sub" / "file"
    killed_at(label, PUBLISH_NEW, path)
    assert path.exists() == (label == "publish-new.after-link")
    durable.publish_new(str(path), b"new" * 1000)
    assert path.read_bytes() == b"new" * 1000


def test_an_in_place_writer_fails_the_same_check(tmp_path, killed_at):
    """The control: without the protocol the kill leaves a torn file, so the tests above can fail."""
    in_place = (
        "from ckptsync.disk.durable import crash_point\n"
        "file = open(sys.argv[1], 'wb', buffering=0)\nfile.write(b'new')\ncrash_point('publish.before-rename')"
    )
    path = tmp_path / "file"
    path.write_bytes(b"old content")
    killed_at("publish.before-rename", in_place, path)
    assert path.read_bytes() not in (b"old content", b"new" * 1000)


def test_publish_makes_its_temporary_file_where_it_is_told(tmp_path, killed_at):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    code = "from ckptsync.disk import durable\ndurable.publish(sys.argv[1], b'40', temp_dir=sys.argv[2])"
    killed_at("publish.before-rename", code, tmp_path / "out" / "tracker", tmp_path / "tmp")
    assert os.listdir(tmp_path / "out") == []
    assert [durable.is_temporary_name(name) for name in os.listdir(tmp_path / "tmp")] == [True]


def test_full_disk_is_no_space_and_keeps_the_old_file(small_disk):
    path = str(small_disk / "file")
    durable.publish(path, b"old")
    for act in (durable.publish, durable.publish_new):
        with pytest.raises(NoSpaceError) as caught:
            act(path, bytes(4 << 20))
        assert "free some space" in str(caught.value)
    assert (small_disk / "file").read_bytes() == b"old"
    assert os.listdir(small_disk) == ["file"]


def test_foreign_directory_is_a_config_error_with_the_remedy(public_dir, as_nobody):
    code = "try:\n    durable.publish(sys.argv[1], b'x')\nexcept ConfigError as error:\n    print(error)"
    printed = as_nobody(code, public_dir / "file")
    assert str(public_dir / "file") in printed
    assert "run as the user that owns output_dir" in printed


def test_failed_fsync_is_reported_and_not_repeated(tmp_path, monkeypatch):
    calls = []

    def fail(descriptor):
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CkptsyncError):
        durable.publish(str(tmp_path / "file"), b"x")
    assert len(calls) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_directory_fsync_may_be_unknown_but_not_fail(tmp_path, monkeypatch, code, passes):
    def fail(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    if passes:
        durable.fsync_dir(str(tmp_path))
    else:
        with pytest.raises(CkptsyncError):
            durable.fsync_dir(str(tmp_path))


def test_fsync_tree_syncs_files_then_directories_from_the_leaves_up(tmp_path, make_step, monkeypatch):
    make_step(tmp_path, {"a/b/x": b"1", "c": b"2"})
    order = []
    monkeypatch.setattr(durable, "fsync_file", order.append)
    monkeypatch.setattr(durable, "fsync_dir", order.append)
    durable.fsync_tree("/r", ["a/b/x", "c"], ["", "a", "a/b"])
    assert order == ["/r/a/b/x", "/r/c", "/r/a/b", "/r/a", "/r/"]


def test_fsync_tree_tells_a_vanished_file_from_a_failing_disk(tmp_path, make_step, monkeypatch):
    make_step(tmp_path, {"x": b"1"})
    with pytest.raises(StepChanged):
        durable.fsync_tree(str(tmp_path), ["gone"], [""])

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError) as caught:
        durable.fsync_tree(str(tmp_path), ["x"], [""])
    assert not caught.value.retryable


@pytest.mark.parametrize("kind", ["file", "empty directory", "dangling link"])
def test_move_dir_never_replaces(tmp_path, kind):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    if kind == "file":
        target.write_bytes(b"x")
    elif kind == "empty directory":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    with pytest.raises(CkptsyncError):
        durable.move_dir(str(source), str(target))
    assert source.is_dir()
    assert target.is_symlink() or target.exists()


def test_move_dir_without_the_kernel_call_refuses_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(durable.syscalls, "rename_noreplace", lambda *_: False)
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(CkptsyncError):
        durable.move_dir(str(tmp_path / "source"), str(tmp_path / "target"))
    durable.move_dir(str(tmp_path / "source"), str(tmp_path / "free"))
    assert sorted(os.listdir(tmp_path)) == ["free", "target"]


def test_move_dir_across_mounts_names_the_common_parent(small_disk):
    source = small_disk.parent / "source"
    source.mkdir()
    with pytest.raises(ConfigError) as caught:
        durable.move_dir(str(source), str(small_disk / "target"))
    assert f"ReadWritePaths={small_disk.parent}" in str(caught.value)


def test_hard_link_across_mounts_is_a_value_not_an_error(small_disk):
    source = small_disk.parent / "file"
    source.write_bytes(b"x")
    assert durable.hard_link(str(source), str(small_disk / "file")) is durable.LinkRefusal.OTHER_MOUNT


def test_hard_link_takes_the_file_behind_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert durable.hard_link(str(tmp_path / "link"), str(tmp_path / "new")) is None
    assert os.path.samestat(os.lstat(tmp_path / "new"), os.lstat(tmp_path / "file"))


def test_remove_tree_deletes_links_but_not_what_they_name(tmp_path, make_step):
    make_step(tmp_path / "outside", {"keep": b"1"})
    tree = make_step(tmp_path / "root" / "tree", {"a/b": b"2", "c": b"3"})
    (tree / "a" / "dir-link").symlink_to(tmp_path / "outside")
    (tree / "file-link").symlink_to(tmp_path / "outside" / "keep")
    os.chmod(tree / "a", 0o555)
    durable.remove_tree(str(tree), within=str(tmp_path / "root"))
    durable.remove_tree(str(tree), within=str(tmp_path / "root"))
    assert not tree.exists()
    assert (tmp_path / "outside" / "keep").read_bytes() == b"1"


@pytest.mark.parametrize(
    "path", ["root", "root/", "root/..", "root/../other", "root/link/x", "other", "root/.", "root-2"]
)
def test_remove_tree_refuses_what_is_not_inside(tmp_path, path):
    for name in ("root", "other/x", "root-2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root" / "link").symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="refusing"):
        durable.remove_tree(f"{tmp_path}/{path}", within=str(tmp_path / "root"))
    assert (tmp_path / "other" / "x").is_dir()


def test_killed_deletion_can_be_repeated(tmp_path, make_step, killed_at):
    tree = make_step(tmp_path / "tree", {f"d{n}/f": b"x" for n in range(4)})
    code = "from ckptsync.disk import durable\ndurable.remove_tree(sys.argv[1], within=sys.argv[2])"
    killed_at("remove-tree.unlinked", code, tree, tmp_path, nth=2)
    assert tree.exists()
    durable.remove_tree(str(tree), within=str(tmp_path))
    assert not tree.exists()


def test_remove_is_idempotent_and_survives_a_kill(tmp_path, killed_at):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    killed_at("remove.after-unlink", "from ckptsync.disk import durable\ndurable.remove(sys.argv[1])", path)
    durable.remove(str(path))
    assert not path.exists()


def test_every_crash_point_is_listed_and_an_unknown_one_is_refused():
    assert {"promote.before-link", "replace-link.before-rename", "stage.before-rename"} <= set(crash.labels())
    with pytest.raises(ValueError, match="no such crash point"):
        crash.arm("no.such-place")


def test_crash_points_do_nothing_by_default():
    assert faults._crash_hook is None
    durable.crash_point("anything")


def test_the_crash_command_lists_every_label():
    done = subprocess.run([sys.executable, "-m", "ckptsync.testing.crash", "--list"], capture_output=True, check=True)
    assert done.stdout.decode().split() == list(crash.labels())
