"""The control socket: who may speak, what is understood, and where it is."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speaking import SAVED, refused, say, trainer
from waiting import until

from ckptsync.config import parse
from ckptsync.daemon.control import Control, Hint, name_of, open_control, parse_hint, socket_for_trainer, socket_path
from ckptsync.errors import ConfigError
from ckptsync.integrations import verl
from ckptsync.testing.checkpoints import verl_step

# -- messages


def test_what_the_callback_sends_is_understood(tmp_path, monkeypatch):
    path = tmp_path / "s"
    monkeypatch.setenv("CKPTSYNC_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        bound.settimeout(20)
        verl.tell(20, "/c/global_step_20")
        assert parse_hint(bound.recv(65536)) == Hint(20, ("/c/global_step_20",), settled=True, chosen=True)
        verl.tell(20, "/c/global_step_20", async_save=True)
        assert not parse_hint(bound.recv(65536)).settled


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 8000,
        b"1" * 5000,
        json.dumps({**SAVED, "format": 2}).encode(),
        json.dumps({**SAVED, "saved": True}).encode(),
        json.dumps({**SAVED, "saved": -1}).encode(),
        json.dumps({**SAVED, "saved": 10**13}).encode(),
        json.dumps({**SAVED, "saved": "20"}).encode(),
        json.dumps({**SAVED, "directories": "/c/global_step_20"}).encode(),
        json.dumps({**SAVED, "directories": ["x" * 9000]}).encode(),
    ],
    ids=lambda data: ascii(data[:30]),
)
def test_what_is_no_message_is_dropped(data):
    assert parse_hint(data) is None


@given(st.binary(max_size=300) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(repr))
def test_no_bytes_make_the_parser_raise(data):
    found = parse_hint(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    assert found is None or isinstance(found, Hint)


def test_a_hint_is_about_a_directory_of_this_run(make_home):
    home = make_home()
    verl_step(home.out, 20)
    node = home.daemon().node
    node.config = node.config.model_copy(
        update={"run": node.config.run.model_copy(update={"trainer_dir": "/workspace/c"})}
    )

    def found(directory, step=20, *, chosen=False):
        return name_of(Hint(step, (directory,), settled=True, chosen=chosen), node)

    assert found(f"{home.out}/global_step_20") == "global_step_20"
    assert found(f"{home.out}/global_step_20/") == "global_step_20"
    assert found("/workspace/c/global_step_20") == "global_step_20"
    assert found("/elsewhere/global_step_20") is None
    assert found("/elsewhere/global_step_20", chosen=True) == "global_step_20"
    assert found(f"{home.out}/global_step_20", step=21) is None
    for odd in ("", "/", "..", "/c/..", f"{home.out}/actor", "\0", "\ud800", "/c/global_step_20/../.."):
        assert found(odd, chosen=True) is None


# -- the socket


def test_a_hint_is_heard_and_wakes(tmp_path):
    woken = []
    control = Control(str(tmp_path / "control.sock"), lambda: woken.append(1))
    say(tmp_path / "control.sock", SAVED)
    until(lambda: woken)
    assert [hint.step for hint in control.take()] == [20]
    assert list(control.take()) == []
    control.close()
    assert not (tmp_path / "control.sock").exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_group_may_write_and_nobody_else(tmp_path, umask):
    before = os.umask(umask)
    try:
        control = Control(str(tmp_path / "new" / "control.sock"), lambda: None)
    finally:
        os.umask(before)
    mode = (tmp_path / "new" / "control.sock").lstat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o660)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750
    control.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_a_process_of_the_group_gets_in_and_another_does_not(public_dir):
    group, woken = 54321, []
    os.setegid(group)
    try:
        control = Control(str(public_dir / "run" / "control.sock"), lambda: woken.append(1))
    finally:
        os.setegid(0)
    code = (
        "import os, socket, sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(54399); "
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[2]); s.send(sys.argv[3].encode())"
    )
    arguments = [sys.executable, "-I", "-S", "-c", code]
    target = [str(public_dir / "run" / "control.sock"), json.dumps(SAVED)]
    other = subprocess.run([*arguments, "54322", *target], capture_output=True, text=True, check=False)
    assert "PermissionError" in other.stderr
    assert woken == []
    subprocess.run([*arguments, str(group), *target], check=True)
    until(lambda: woken)
    control.close()


def test_a_path_beyond_what_the_kernel_takes_works(tmp_path):
    path = tmp_path / ("d" * 150) / "control.sock"
    woken = []
    control = Control(str(path), lambda: woken.append(1))
    trainer("/c/global_step_20", 20, path)
    until(lambda: woken)
    again = Control(str(tmp_path / "other.sock"), lambda: None)
    with pytest.raises(ConfigError, match="another daemon listens there"):
        Control(str(path), lambda: None)
    control.close()
    again.close()
    assert not path.exists()


def test_a_socket_that_a_killed_daemon_left_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    woken = []
    control = Control(str(tmp_path / "control.sock"), lambda: woken.append(1))
    say(tmp_path / "control.sock", SAVED)
    until(lambda: woken)
    control.close()


def test_what_stands_there_otherwise_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(ConfigError, match="something else is there"):
            Control(str(tmp_path / name), lambda: None)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot listen on the control socket"):
        Control(str(tmp_path / "file" / "control.sock"), lambda: None)


def test_another_ones_socket_is_not_taken_away_at_the_end(tmp_path):
    control = Control(str(tmp_path / "control.sock"), lambda: None)
    (tmp_path / "control.sock").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "control.sock"))
        control.close()
        assert (tmp_path / "control.sock").exists()


def test_a_flood_is_held_back_in_the_kernel(tmp_path):
    """The sender gets EAGAIN; the daemon looks a few times a second, and keeps a bounded number of hints."""
    woken = []
    control = Control(str(tmp_path / "control.sock"), lambda: woken.append(1))
    began, held_back = time.monotonic(), False
    while time.monotonic() - began < 1.5 or not held_back:
        if refused(tmp_path / "control.sock", SAVED):
            held_back = True
            time.sleep(0.01)
    assert 0 < len(woken) <= 4 * (time.monotonic() - began) + 2
    control.close()


def test_where_it_listens(make_home):
    home = make_home()

    def path(text="", **env):
        config = parse(home.config.read_bytes() + text.encode(), str(home.config), {})
        return socket_path(config, env)

    assert path() == f"{home.state}/control.sock"
    assert path(RUNTIME_DIRECTORY="/run/ckptsync/run") == "/run/ckptsync/run/control.sock"
    assert path(RUNTIME_DIRECTORY="/run/ckptsync") == "/run/ckptsync/run/control.sock"
    assert path(RUNTIME_DIRECTORY="/run/slurm") == f"{home.state}/control.sock"
    assert path('[daemon]\nsocket = "off"\n', RUNTIME_DIRECTORY="/run/ckptsync/run") is None
    assert path('[daemon]\nsocket = "/shared/c.sock"\n', RUNTIME_DIRECTORY="/run/ckptsync/run") == "/shared/c.sock"


def test_what_a_trainer_is_told(make_home, tmp_path):
    """The socket of the service, if there is one; else where a daemon beside the trainer would listen."""
    home = make_home()

    def told(text="", **env):
        config = parse(home.config.read_bytes() + text.encode(), str(home.config), {})
        return socket_for_trainer(config, env, root=str(tmp_path / "run"))

    assert told() == f"{home.state}/control.sock"
    (tmp_path / "run/run").mkdir(parents=True)
    (tmp_path / "run/run/control.sock").touch()
    assert told() == f"{tmp_path}/run/run/control.sock"
    assert told(CKPTSYNC_SOCKET="/in/the/container.sock") is None
    assert told('[daemon]\nsocket = "off"\n') is None
    assert told('[daemon]\nsocket = "/shared/c.sock"\n') == "/shared/c.sock"


def test_a_place_where_nothing_can_be_made_is_a_line_in_the_log(make_home, caplog):
    home = make_home(tables='[daemon]\nsocket = "/proc/control.sock"\n')
    assert open_control(home.daemon().node, lambda: None) is None
    assert "cannot listen on the control socket" in caplog.text
