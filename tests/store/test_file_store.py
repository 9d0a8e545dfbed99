"""A directory as a store: what only it does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from ckptsync.disk import durable
from ckptsync.errors import KeyMissing, NoSpaceError, StoreError, StoreRefused, StoreUnavailable
from ckptsync.store.fsspec import FsspecStore, open_fsspec
from ckptsync.store.objects import open_objects


@pytest.fixture
def store(tmp_path):
    return open_objects((tmp_path / "store").as_uri())


def test_a_missing_directory_is_empty_and_made_by_the_first_put(store, tmp_path):
    assert list(store.list("")) == []
    assert store.children("") == ()
    assert not (tmp_path / "store").exists()
    store.put("run/a", b"x")
    assert (tmp_path / "store/run/a").read_bytes() == b"x"


def test_leftovers_of_killed_puts_and_foreign_files_are_not_listed(store, tmp_path):
    store.put("run/a", b"x")
    run = tmp_path / "store/run"
    (run / durable.temporary_name("b").rpartition("/")[2]).write_bytes(b"half")
    (run / "sp ace").write_bytes(b"foreign")
    (run / "link").symlink_to(run / "a")
    (run / "loop").symlink_to(run)
    (run / "empty/inner").mkdir(parents=True)
    (run / "half").mkdir()
    (run / "half/c#0123456789abcdef").write_bytes(b"half")
    assert [meta.key for meta in store.list("")] == ["run/a"]
    assert store.children("run") == ()
    assert store.head("run/link") is None
    assert store.head("run/empty") is None


def test_an_emptied_directory_is_no_child(store):
    store.put("run/a/b", b"x")
    assert store.children("run") == ("a",)
    store.delete("run/a/b")
    assert store.children("run") == ()


def test_no_link_is_followed_out_of_the_store(store, tmp_path):
    (tmp_path / "secret").write_bytes(b"s")
    store.put("run/a", b"x")
    (tmp_path / "store/run/b").symlink_to(tmp_path / "secret")
    with pytest.raises((StoreError, KeyMissing)):
        store.get("run/b", max_size=9)
    store.put("run/b", b"mine")
    assert (tmp_path / "secret").read_bytes() == b"s"


def test_a_key_below_an_object_is_absent_and_cannot_be_put(store):
    store.put("run/a", b"x")
    assert store.head("run/a/b") is None
    with pytest.raises(KeyMissing):
        store.get("run/a/b", max_size=1)
    with pytest.raises(StoreError, match="Not a directory"):
        store.put_new("run/a/b", b"x")


def test_modes_follow_the_umask(store, tmp_path):
    old = os.umask(0o027)
    try:
        store.put_new("run/a", b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "store/run/a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "store/run").stat().st_mode & 0o777 == 0o750


def test_a_directory_of_another_user_is_refused(store, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    code = textwrap.dedent(f"""
        from ckptsync.errors import StoreRefused
        from ckptsync.store.objects import open_objects
        import os
        os.seteuid(65534)
        store = open_objects({(tmp_path / "locked").as_uri()!r})
        for call in (lambda: store.put("run/b", b"x"), lambda: store.put_new("run/b", b"x"),
                     lambda: store.get("run/a", max_size=9), lambda: list(store.list("run")),
                     lambda: store.children(""), lambda: store.head("run/a"), lambda: store.delete("run/a")):
            try:
                call()
            except StoreRefused as error:
                print(error)
    """)
    for directory in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        directory.chmod(0o755)
    locked = open_objects((tmp_path / "locked").as_uri())
    locked.put("run/a", b"x")
    (tmp_path / "locked").chmod(0o700)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    assert all("Permission denied" in line and "(give this user" in line for line in lines)


def test_a_full_disk_is_said_to_be_full(store):
    import resource  # noqa: PLC0415 - only here
    import signal  # noqa: PLC0415 - only here

    assert store.put_new("run/a", b"x")
    old_limit, old_handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old_limit[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            store.put_new("run/b", bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert [meta.key for meta in store.list("run")] == ["run/a"]
    assert os.listdir(store._root + "/run") == ["a"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ENOSPC", NoSpaceError),
        ("EDQUOT", NoSpaceError),
        ("EROFS", StoreRefused),
        ("ESTALE", StoreUnavailable),
        ("EIO", StoreError),
    ],
)
def test_what_the_system_says_keeps_its_meaning(store, monkeypatch, code, error):
    import errno  # noqa: PLC0415 - only here

    def fail(*_):
        raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(os, "fsync", fail)
    for call in (lambda: store.put("run/a", b"x"), lambda: store.put_new("run/a", b"x")):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error


def test_a_rename_that_will_not_replace_is_helped(tmp_path):
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - only here

    class Stubborn(LocalFileSystem):
        protocol = "stubborn"

        def mv(self, path1, path2, **kwargs):
            if self.exists(path2):
                raise FileExistsError(path2)
            super().mv(path1, path2, **kwargs)

    store = FsspecStore(Stubborn(skip_instance_cache=True), str(tmp_path), url="stubborn://x")
    assert not store.capabilities.atomic_create
    store.put("run/a", b"1")
    store.put("run/a", b"2")
    assert store.get("run/a", max_size=1) == b"2"
    assert store.put_new("run/a", b"3") is False
    assert os.listdir(tmp_path / "run") == ["a"]


def test_a_directory_that_cannot_be_listed_is_an_error_not_empty(tmp_path):
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - only here

    class Flaky(LocalFileSystem):
        protocol = "flaky"

        def ls(self, path, detail=False, **kwargs):
            if path.endswith("/b"):
                raise OSError("connection reset")
            return super().ls(path, detail=detail, **kwargs)

    store = FsspecStore(Flaky(skip_instance_cache=True), str(tmp_path), url="flaky://x")
    store.put("run/a/x", b"1")
    store.put("run/b/x", b"1")
    assert [meta.key for meta in store.list("run/a")] == ["run/a/x"]
    with pytest.raises(StoreUnavailable, match="connection reset"):
        list(store.list("run"))
    with pytest.raises(StoreUnavailable, match="connection reset"):
        store.children("run")


def test_local_and_file_are_the_same_directory(tmp_path):
    one, other = open_objects(tmp_path.as_uri()), open_fsspec(f"local://{tmp_path}")
    one.put("run/a", b"x")
    assert other.get("run/a", max_size=1) == b"x"
    assert other.put_new("run/a", b"y") is False
    assert other.capabilities.atomic_create


def test_what_killed_puts_left_is_cleared_once_it_is_old(tmp_path):
    store = open_objects(tmp_path.as_uri())
    store.put("run/a/x", b"1")
    store.put("other/a", b"1")
    for place in ("run/a", "other"):
        for name, age_s in (("old", 7200), ("young", 60)):
            left = tmp_path / place / f"{name}#0123456789abcdef"
            left.write_bytes(b"half")
            os.utime(left, ns=(0, time.time_ns() - age_s * 10**9))
    (tmp_path / "run/a/notes#1").write_bytes(b"not ours")
    (tmp_path / "run/a/link#0123456789abcdef").symlink_to("x")
    before_ns = time.time_ns() - 3600 * 10**9
    assert store.clear_leftovers("run", before_ns, dry_run=True) == 4
    assert store.clear_leftovers("run", before_ns) == 4
    assert store.clear_leftovers("run", before_ns) == 0
    assert sorted(os.listdir(tmp_path / "run/a")) == [
        "link#0123456789abcdef",
        "notes#1",
        "x",
        "young#0123456789abcdef",
    ]
    assert sorted(os.listdir(tmp_path / "other")) == ["a", "old#0123456789abcdef", "young#0123456789abcdef"]
