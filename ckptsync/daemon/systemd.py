"""Talking to systemd: sd_notify(3) without a library. Does nothing when not started by systemd."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

__all__ = ["notify", "watchdog_interval_s"]

_MICRO = 1e-6


def notify(state: str, env: Mapping[str, str] = os.environ) -> bool:
    r"""Send one notification: "READY=1", "WATCHDOG=1", "STATUS=...", or several lines of these.

    Returns:
        Whether it was handed over; False also when nobody listens, which never is a reason to stop working.
    """
    address = env.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address.startswith("@") else address  # @ stands for the abstract namespace
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(target)
        sender.sendall(state.encode())
        return True
    return False


def watchdog_interval_s(env: Mapping[str, str] = os.environ) -> float | None:
    """Seconds within which systemd wants a "WATCHDOG=1"; None if it wants none from this process."""
    microseconds, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not microseconds.isascii() or not microseconds.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) * _MICRO or None
