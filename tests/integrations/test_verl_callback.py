"""The callback as a trainer has it: one copied file, in a Python without anything else."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ckptsync.integrations import verl
from ckptsync.integrations.verl import SaveCallback, tell

FILE = Path(verl.__file__)


@pytest.fixture
def listener(tmp_path, monkeypatch):
    """A bound socket that the callback is told of, without a daemon."""
    path = tmp_path / "control.sock"
    monkeypatch.setenv("CKPTSYNC_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        bound.setblocking(False)
        yield bound


def heard(listener):
    try:
        return json.loads(listener.recv(65536))
    except BlockingIOError:
        return None


def idle():
    """Wait until no thread of the callback is left: it has sent, or given up."""
    deadline = time.monotonic() + 20
    while verl._telling.locked():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_verls_call_is_told_as_one_message(listener, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    directory = f"{tmp_path}/link/global_step_40"
    SaveCallback(config={"trainer": {}}).on_save(
        trainer=object(), global_step=40, checkpoint_dir=directory, async_save=False, later_version=1
    )
    idle()
    assert heard(listener) == {
        "format": 1,
        "saved": 40,
        "directories": sorted([directory, f"{tmp_path}/real/global_step_40"]),
        "settled": True,
        "chosen": True,
    }
    assert heard(listener) is None


def test_an_asynchronous_save_is_not_said_to_be_over(listener):
    SaveCallback().on_save(trainer=None, global_step=40, checkpoint_dir="/c/global_step_40", async_save=True)
    idle()
    assert heard(listener)["settled"] is False


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError(name)

    def __int__(self):
        raise MemoryError

    def __fspath__(self):
        raise RuntimeError

    def __bool__(self):
        raise ValueError


ODD = [
    None,
    Hostile(),
    object(),
    "",
    "text",
    b"\xff\0",
    -1,
    10**400,
    float("nan"),
    [],
    {"a": 1},
    "x" * 100_000,
    "\ud800",
]


@pytest.mark.parametrize("step", ODD, ids=lambda value: type(value).__name__)
def test_nothing_that_a_trainer_passes_makes_it_raise(listener, step, capfd):
    for directory in ODD:
        SaveCallback(step, directory, other=step).on_save(step, step, directory, directory, step, more=directory)
        tell(step, directory, async_save=step)
    idle()
    assert capfd.readouterr() == ("", "")


def test_without_a_daemon_nothing_happens(tmp_path, monkeypatch, capfd):
    for path in (tmp_path / "no.sock", tmp_path / "no" / "no.sock", tmp_path / ("n" * 200) / "no.sock", tmp_path):
        monkeypatch.setenv("CKPTSYNC_SOCKET", str(path))
        tell(1, "/c/global_step_1")
        idle()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    monkeypatch.setenv("CKPTSYNC_SOCKET", str(tmp_path / "dead.sock"))
    tell(1, "/c/global_step_1")
    idle()
    assert capfd.readouterr() == ("", "")


def test_a_full_buffer_costs_the_hint_and_not_the_training_step(listener):
    """Far more than the kernel queues, and nobody reads."""
    began = time.monotonic()
    for step in range(2000):
        tell(step, f"/c/global_step_{step}")
    assert time.monotonic() - began < 60
    idle()
    kept = 0
    while heard(listener) is not None:
        kept += 1
    assert 0 < kept < 2000


def test_a_file_system_that_hangs_does_not_hold_the_trainer_up(listener, monkeypatch):
    """realpath waits for ever, as it does on a dead NFS mount; later saves do not pile up behind it."""
    dead, called = threading.Event(), []
    monkeypatch.setattr(verl.os.path, "realpath", lambda path: called.append(path) or dead.wait(60) or path)
    began = time.monotonic()
    for step in range(5):
        tell(step, f"/dead/global_step_{step}")
    took = time.monotonic() - began
    monkeypatch.undo()
    dead.set()
    idle()
    assert took < 10
    assert len(called) == 1


def test_a_path_beyond_what_the_kernel_takes_is_reached(tmp_path, monkeypatch):
    folder = tmp_path / ("d" * 150)
    folder.mkdir()
    descriptor = os.open(folder, os.O_PATH)
    monkeypatch.setenv("CKPTSYNC_SOCKET", str(folder / "control.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"/proc/self/fd/{descriptor}/control.sock")
        os.close(descriptor)
        bound.settimeout(20)
        before = set(os.listdir("/proc/self/fd"))
        tell(7, "/c/global_step_7")
        assert json.loads(bound.recv(65536))["saved"] == 7
        idle()
        assert set(os.listdir("/proc/self/fd")) == before


def test_without_the_variable_every_daemon_of_the_machine_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("CKPTSYNC_SOCKET", raising=False)
    monkeypatch.setattr(verl, "DEFAULT_ROOT", str(tmp_path))
    (tmp_path / "dead").mkdir()
    (tmp_path / "file").touch()
    bound = []
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        bound.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        bound[-1].bind(str(tmp_path / run / "control.sock"))
        bound[-1].settimeout(20)
    tell(7, "/c/global_step_7")
    for each in bound:
        message = json.loads(each.recv(65536))
        each.close()
        assert (message["saved"], message["chosen"]) == (7, False)
    idle()


ALONE = """
import sys
sys.path.insert(0, {directory!r})
before = set(sys.modules)
import ckptsync_callback
ckptsync_callback.SaveCallback(config=None).on_save(
    trainer=None, global_step=3, checkpoint_dir="/c/global_step_3", async_save=False
)
print(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""


def test_the_copied_file_works_alone_and_loads_nothing_heavy(listener, tmp_path):
    shutil.copy(FILE, tmp_path / "ckptsync_callback.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE.format(directory=str(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
        env={"CKPTSYNC_SOCKET": os.environ["CKPTSYNC_SOCKET"]},
        cwd=tmp_path,
    )
    assert heard(listener)["saved"] == 3
    loaded = set(eval(done.stdout)) - {"ckptsync_callback"}
    assert loaded <= set(sys.stdlib_module_names)
    assert not loaded & {"asyncio", "logging", "multiprocessing", "ssl", "subprocess", "typing_extensions"}
    assert done.stderr == ""


def test_importing_it_does_nothing_else():
    before = set(os.listdir("/proc/self/fd"))
    names = runpy.run_path(str(FILE))
    assert {"SaveCallback", "tell"} <= names.keys()
    assert set(os.listdir("/proc/self/fd")) == before
