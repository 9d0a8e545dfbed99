import os
import signal
import subprocess
import sys
import threading

import pytest

from ckptsync.disk import watch
from ckptsync.disk.lock import RunLock
from ckptsync.disk.watch import Waker, file_system_type
from ckptsync.errors import ConflictError

HOLD = (
    "import sys, time\nfrom ckptsync.disk.lock import RunLock\n"
    "lock = RunLock(sys.argv[1])\nlock.acquire()\nprint('held', flush=True)\ntime.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    path = str(tmp_path / "state" / "lock")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process, path
        process.kill()


def test_a_held_lock_is_refused_and_names_its_holder(holder):
    process, path = holder
    lock, told = RunLock(path), []
    with pytest.raises(ConflictError, match=f"process {process.pid}"):
        lock.acquire(0.3, told.append)
    assert not lock.held
    assert len(told) == 1
    assert str(process.pid) in told[0]


def test_a_killed_holder_frees_the_lock_for_one_who_waits(holder):
    process, path = holder
    lock = RunLock(path)
    lock.acquire(30, lambda _: process.send_signal(signal.SIGKILL))
    assert lock.held
    assert lock.holder() == f"process {os.getpid()}"
    lock.release()
    lock.release()
    assert not lock.held


def test_the_lock_is_free_again_after_the_block_and_not_inherited_by_commands(tmp_path):
    path = str(tmp_path / "lock")
    with RunLock(path) as first:
        child = subprocess.Popen(["sleep", "60"])
        with pytest.raises(ConflictError):
            RunLock(path).acquire()
        first.acquire()
    with RunLock(path) as second:
        assert second.held
    child.kill()
    child.wait()


def test_a_new_file_deep_inside_wakes(tmp_path):
    (tmp_path / "global_step_1" / "actor").mkdir(parents=True)
    waker = Waker(str(tmp_path))
    try:
        assert waker.hint is None
        (tmp_path / "global_step_1" / "actor" / "a.pt").write_bytes(b"x")
        assert waker.wait(30)
    finally:
        waker.close()


def test_our_own_reading_does_not_wake(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    waker = Waker(str(tmp_path))
    try:
        (tmp_path / "file").read_bytes()
        os.listdir(tmp_path)
        assert not waker.wait(0.3)
    finally:
        waker.close()


def test_wake_ends_a_wait_and_time_ends_it_too(tmp_path):
    waker = Waker(str(tmp_path))
    threading.Timer(0.05, waker.wake).start()
    assert waker.wait(30)
    assert not waker.wait(0)
    waker.close()
    waker.close()


def test_no_watches_left_is_a_hint_and_waiting_still_works(tmp_path):
    code = """
import os, resource, sys
import watchdog.events, watchdog.observers
from ckptsync.disk.watch import Waker
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))  # no descriptor is left for inotify
waker = Waker(sys.argv[1])
print(waker.hint)
print(waker.wait(0.01))
waker.wake()
print(waker.wait(1))
waker.close()
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    hint, *waits = done.stdout.splitlines()
    assert "Too many open files" in hint
    assert waits == ["False", "True"]


def test_a_missing_directory_is_a_hint(tmp_path):
    waker = Waker(str(tmp_path / "gone"))
    assert "found by scanning" in waker.hint
    waker.close()


def test_network_file_systems_are_not_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "file_system_type", lambda _: "nfs4")
    waker = Waker(str(tmp_path))
    assert "nfs4" in waker.hint
    waker.close()


def test_the_file_system_type_is_that_of_the_mount(small_disk):
    assert file_system_type(str(small_disk)) == "tmpfs"
    assert file_system_type("/proc/self") == "proc"
    assert file_system_type("/") != ""
