from __future__ import annotations

import os
import socket

import pytest

from ckptsync.daemon.systemd import notify, watchdog_interval_s


@pytest.fixture
def listener():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(10)
        yield receiver


def test_a_notification_reaches_a_socket_in_the_file_system(listener, tmp_path):
    path = str(tmp_path / "notify")
    listener.bind(path)
    assert notify("READY=1\nSTATUS=x", {"NOTIFY_SOCKET": path})
    assert listener.recv(100) == b"READY=1\nSTATUS=x"


def test_a_notification_reaches_an_abstract_socket(listener):
    name = f"ckptsync-test-{os.getpid()}"
    listener.bind("\0" + name)
    assert notify("WATCHDOG=1", {"NOTIFY_SOCKET": "@" + name})
    assert listener.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("env", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"NOTIFY_SOCKET": "/none"}])
def test_nobody_listening_is_no_fault(env):
    assert notify("READY=1", env) is False


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval(env, seconds):
    assert watchdog_interval_s(env) == seconds
