"""Room for the next saves, a bucket that keeps its promises, and clocks that agree."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from dataclasses import replace

import pytest
from preflighting import fresh, prepared, verified
from resuming import node_of

from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.disk.space import Disk
from ckptsync.errors import KeyMissing, StoreRefused, StoreUnavailable
from ckptsync.resume import registry
from ckptsync.resume.checks import clock, disk, store
from ckptsync.store.base import Capabilities
from ckptsync.store.objects import open_objects
from ckptsync.sync.remote import Remote
from ckptsync.testing.checkpoints import age, verl_step

KEEPING = '[retention.local]\ndelete = true\nkeep_last = 2\nmin_free = "1MB"'


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


# -- disk


def free(monkeypatch, count):
    monkeypatch.setattr(disk, "disk_of", lambda _: Disk(count, 10**12))


def elsewhere(tmp_path):
    """A store that takes no room on the disk of the steps."""
    return f'[upload]\nstore = "memory://{uuid.uuid4().hex}"\n'


def room(tmp_path, more=""):
    return disk.check(prepared(fresh(tmp_path, more or elsewhere(tmp_path))))


def test_without_a_step_the_size_of_a_save_is_not_known(out, tmp_path):
    assert room(tmp_path).status == "skip"
    assert disk.check(replace(prepared(fresh(tmp_path)), resumed=None)).status == "skip"


def test_room_for_the_next_saves_by_the_size_of_the_last(out, tmp_path, monkeypatch):
    size = sum(file.stat().st_size for file in verl_step(out, 20, n=100_000).rglob("*") if file.is_file())
    assert room(tmp_path).status == "pass"
    free(monkeypatch, 2 * size)
    found = room(tmp_path)
    assert (found.status, "room for 2 saves" in found.message) == ("pass", True)
    free(monkeypatch, 2 * size - 1)
    found = room(tmp_path)
    assert (found.status, "the save after the next will not fit" in found.message) == ("warn", True)
    free(monkeypatch, size - 1)
    found = room(tmp_path)
    assert (found.status, "the next save will not fit" in found.message) == ("fail", True)


def test_a_store_on_the_same_disk_takes_room_too(out, tmp_path, monkeypatch):
    size = sum(file.stat().st_size for file in verl_step(out, 20, n=100_000).rglob("*") if file.is_file())
    free(monkeypatch, 2 * size - 1)
    found = room(tmp_path, f'[upload]\nstore = "file://{tmp_path}/not/there/yet"')
    assert (found.status, "in the store on the same disk" in found.message) == ("fail", True)


def test_what_retention_lets_go_counts_as_room(out, tmp_path, monkeypatch):
    for number, step in enumerate((20, 40, 60, 80)):
        age(verl_step(out, step, n=100_000), 400 - 100 * number)
    more = elsewhere(tmp_path)
    verified(fresh(tmp_path, more))
    free(monkeypatch, 1000)
    assert room(tmp_path, more).status == "fail"
    found = room(tmp_path, more + KEEPING)
    assert (found.status, "retention lets go of" in found.message) == ("pass", True)


def test_steps_that_no_daemon_has_verified_are_not_counted_on(out, tmp_path, monkeypatch):
    for number, step in enumerate((20, 40, 60, 80)):
        age(verl_step(out, step, n=100_000), 400 - 100 * number)
    free(monkeypatch, 1000)
    assert room(tmp_path, elsewhere(tmp_path) + KEEPING).status == "fail"


@pytest.mark.parametrize("name", ["ck", "new"])
def test_an_output_dir_that_cannot_be_written_or_made_fails_before_its_room_is_looked_at(read_only, tmp_path, name):
    text = f'[run]\nname = "r"\noutput_dir = "{read_only}/{name}"\nstate_dir = "{tmp_path}/state"\n'
    node = open_node(parse(text.encode(), str(tmp_path / "c.toml"), {}))
    found = registry.run("disk", prepared(node))
    assert (found.status, "read-only file system" in found.message) == ("fail", True)
    assert re.match(r"cannot (write to|create) output_dir: ", found.message)
    assert "read-write" in found.remedy


def test_a_state_directory_that_has_become_read_only_fails(read_only, out, tmp_path):
    verl_step(out, 20)
    subprocess.run(["mount", "-o", "remount,rw", read_only], check=True)
    text = f'[run]\nname = "r"\noutput_dir = "{out}"\nstate_dir = "{read_only}/state"\n'
    node = open_node(parse((text + elsewhere(tmp_path)).encode(), str(tmp_path / "c.toml"), {}))
    assert registry.run("disk", prepared(node)).status == "pass"
    subprocess.run(["mount", "-o", "remount,ro", read_only], check=True)
    found = registry.run("disk", prepared(node))
    assert (found.status, "cannot write to state_dir" in found.message) == ("fail", True)


def test_a_place_beside_output_dir_that_cannot_be_written_is_a_warning(read_only, tmp_path):
    """As where a volume is mounted in a container whose own files cannot be changed."""
    out = read_only / "ck"
    subprocess.run(["mount", "-t", "tmpfs", "none", out], check=True)
    try:
        verl_step(out, 20)
        text = f'[run]\nname = "r"\noutput_dir = "{out}"\nstate_dir = "{tmp_path}/state"\n'
        node = open_node(parse((text + elsewhere(tmp_path)).encode(), str(tmp_path / "c.toml"), {}))
        found = registry.run("disk", prepared(node))
        assert found.status == "warn"
        assert found.message.startswith(
            f"ckptsync cannot write to the parent of output_dir: {read_only}: on a read-only"
        )
        assert "; room for " in found.message
    finally:
        subprocess.run(["umount", "-l", out], check=True)


# -- store


def store_node(tmp_path, url):
    return node_of(tmp_path, f'[upload]\nstore = "{url}"')


def keys_of(url):
    return [meta.key for meta in open_objects(url).list("")]


@pytest.mark.parametrize("kind", ["embedded", "file", "memory", "s3"])
def test_real_stores_keep_their_promises_and_nothing_is_left(out, tmp_path, kind, request):
    if kind == "s3":
        request.getfixturevalue("s3_environ")
        url = request.getfixturevalue("s3_server").url(uuid.uuid4().hex)
    else:
        url = {"embedded": "", "file": f"file://{tmp_path}/store", "memory": f"memory://{uuid.uuid4().hex}"}[kind]
    node = store_node(tmp_path, url) if url else fresh(tmp_path)
    found = store.check(prepared(node))
    assert (found.status, "keeps its promises" in found.message) == ("pass", True)
    assert "may not delete" not in found.message
    if url:
        assert keys_of(url) == []


def test_a_store_that_cannot_be_reached_fails_with_the_reason_and_soon(out, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    more = '[upload]\nstore = "s3://bucket/prefix"\nendpoint = "http://127.0.0.1:9"\nregion = "us-east-1"'
    began = time.monotonic()
    found = store.check(prepared(replace(node_of(tmp_path, more), patience_s=0.2)))
    assert found.status == "fail"
    assert "s3://bucket/prefix" in found.message
    assert found.remedy
    assert time.monotonic() - began < 20


class Weak:
    """A store with one fault."""

    def __init__(self, inner, **methods):
        self._inner, self._methods = inner, methods

    def __getattr__(self, name):
        if name in self._methods:
            return lambda *args, **options: self._methods[name](self._inner, *args, **options)
        return getattr(self._inner, name)


def broken(tmp_path, monkeypatch, **methods):
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(store, "open_store", lambda *_, **__: Weak(open_objects(url), **methods))
    return store.check(prepared(store_node(tmp_path, url))), url


@pytest.mark.parametrize(
    ("methods", "why"),
    [
        ({"put_new": lambda s, key, data: s.put(key, data) or True}, "of 4 writers that create one object 4"),
        ({"put_new": lambda *_: False}, "0 are told that they did"),
        ({"put": lambda s, key, data: None if s.head(key) else s.put(key, data)}, "read as it was before"),
        ({"list": lambda *_: iter(())}, "is not listed"),
        ({"head": lambda *_: None}, "is not found"),
        ({"delete": lambda *_: None}, "is still there"),
    ],
    ids=["overwrites", "never-creates", "never-replaces", "lists-nothing", "heads-nothing", "never-deletes"],
)
def test_each_broken_promise_is_named(out, tmp_path, monkeypatch, methods, why):
    found, _ = broken(tmp_path, monkeypatch, **methods)
    assert found.status == "fail"
    assert why in found.message


def test_deleted_objects_that_can_be_read_are_named(out, tmp_path, monkeypatch):
    kept = {}

    def put(inner, key, data):
        kept[key] = data
        inner.put(key, data)

    def get(inner, key, **options):
        try:
            return inner.get(key, **options)
        except KeyMissing:
            return kept[key]

    found, _ = broken(tmp_path, monkeypatch, put=put, get=get)
    assert (found.status, "that was deleted can be read" in found.message) == ("fail", True)


def test_a_node_that_may_not_delete_uses_the_same_few_objects_again(out, tmp_path, monkeypatch):
    def refuse(*_):
        raise StoreRefused("not allowed", where="x")

    for _ in range(2):
        found, url = broken(tmp_path, monkeypatch, delete=refuse)
        assert (found.status, "three small objects stay" in found.message) == ("pass", True)
        assert len(keys_of(url)) == 3
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(store, "open_store", lambda *_, **__: Weak(open_objects(url), delete=refuse))
    for _ in range(3):
        assert store.check(prepared(store_node(tmp_path, url))).status == "pass"
    assert len(keys_of(url)) == 3


def test_a_store_without_one_winner_is_a_warning(out, tmp_path, monkeypatch):
    url = f"memory://{uuid.uuid4().hex}"
    weak = Weak(open_objects(url))
    weak.capabilities = Capabilities(atomic_create=False)
    monkeypatch.setattr(store, "open_store", lambda *_, **__: weak)
    assert store.check(prepared(store_node(tmp_path, url))).status == "warn"


def test_leftovers_of_a_killed_trial_go(out, tmp_path, monkeypatch):
    node = store_node(tmp_path, f"file://{tmp_path}/store")
    old = tmp_path / f"store/r/probes/contract@{node.config.node.name}/0123-created"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert store.check(prepared(node)).status == "pass"
    assert list(old.parent.iterdir()) == []


# -- clock


class Shifted:
    """A store whose clock is `seconds` ahead; None = it gives no times."""

    def __init__(self, inner, seconds):
        self._inner, self._seconds = inner, seconds

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def head(self, key):
        meta = self._inner.head(key)
        if meta is None:
            return None
        shift = None if self._seconds is None else meta.modified_ns + self._seconds * 10**9
        return replace(meta, modified_ns=shift)


def clock_of(tmp_path, seconds, *, run=True):
    url = f"memory://{uuid.uuid4().hex}"
    node = store_node(tmp_path, url)
    remote = Remote(Shifted(open_objects(url), seconds), "r")
    if run:
        remote.open_run("")
    return clock.check(prepared(replace(node, _remote=remote)))


@pytest.mark.parametrize(
    ("seconds", "status", "words"),
    [
        (0, "pass", "agrees with the store's"),
        (10, "pass", "behind the store's; times of saves are corrected"),
        (-10, "pass", "ahead of the store's"),
        (120, "warn", "2m behind"),
        (-3600, "fail", "1h ahead of"),
    ],
)
def test_clocks_are_compared(out, tmp_path, seconds, status, words):
    verl_step(out, 20)
    found = clock_of(tmp_path, seconds)
    assert (found.status, words in found.message) == (status, True), found


def test_what_gives_no_times_or_does_not_answer_is_skipped(out, tmp_path):
    assert "no times" in clock_of(tmp_path, None).message
    assert "not in the store yet" in clock_of(tmp_path, 0, run=False).message


def test_a_store_on_this_machine_has_its_clock(out, tmp_path):
    found = clock.check(prepared(fresh(tmp_path)))
    assert (found.status, found.message) == ("pass", "the store is this machine's own, and has its clock")

    class Down(Shifted):
        def put(self, *_):
            raise StoreUnavailable("no answer", where="x", why="refused")

    url = f"memory://{uuid.uuid4().hex}"
    node = store_node(tmp_path, url)
    remote = Remote(Down(open_objects(url), 0), "r")
    remote.open_run("")
    found = clock.check(prepared(replace(node, _remote=remote)))
    assert (found.status, "no answer" in found.message) == ("skip", True)


def test_a_save_from_the_future_is_a_warning(out, tmp_path):
    age(verl_step(out, 20), -7200)
    found = clock.check(prepared(fresh(tmp_path)))
    assert (found.status, "from now: no save is newer until then" in found.message) == ("warn", True)
    found = clock_of(tmp_path, 0, run=False)  # nor does it take a store to see that
    assert (found.status, "from now" in found.message) == ("warn", True)
