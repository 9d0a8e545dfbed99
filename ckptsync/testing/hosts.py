"""Hosts that are real to each other: network namespaces with addresses of their own, on one switch.

Each host is joined to the switch (a bridge, in a namespace of its own) by a veth pair, and so is this machine. A cable
can be cut, and it can be slow, like a real one. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

__all__ = ["Hosts", "why_no_hosts"]

_BLOCK_BITS = 5
_FIRST, _HERE = 1, 30
_BLOCK = os.getpid() % (1 << (16 - _BLOCK_BITS))  # of 32 addresses: test runs side by side do not share any
_DEVICE = "net0"
_COMMAND_S = 20.0


def why_no_hosts() -> str:
    """Why hosts cannot be made here; "" if they can."""
    if os.geteuid():
        return "only root may make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed (iproute2)"
    with suppress(OSError, subprocess.SubprocessError):
        probe = f"ckpt-probe-{os.getpid()}"
        try:
            _call("ip", "netns", "add", probe)
            _call("ip", "-n", probe, "link", "add", "br0", "type", "bridge")
        finally:
            _forget("ip", "netns", "delete", probe)
        return ""
    return "the kernel refuses network namespaces or bridges"


class Hosts:
    """Up to 28 hosts by name; a context manager. Call only if `why_no_hosts` says nothing.

    Raises:
        subprocess.CalledProcessError: the kernel refused.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, _FIRST)}
        assert len(self._numbers) < _HERE, "one block of addresses"
        self._tag = f"ckpt{os.getpid()}"
        self._switch = f"{self._tag}-switch"

    def __enter__(self) -> Hosts:  # noqa: PYI034 - typing.Self is not in Python 3.10
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """IPv4 address of a host."""
        return _address(self._numbers[name])

    def inside(self, name: str) -> tuple[str, ...]:
        """What a command begins with to run on this host."""
        return ("ip", "netns", "exec", self._namespace(name))

    def cut(self, name: str) -> None:
        """Pull a host's cable out of the switch: what is sent from now on is lost without a word."""
        _call("ip", "-n", self._switch, "link", "set", self._port(name), "down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        _call("ip", "-n", self._switch, "link", "set", self._port(name), "up")

    def slow(self, name: str, rate: str) -> None:
        """Let a host's cable carry only so much in each direction, say "2mbit", with a short queue."""
        shape = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms")
        _call("tc", "-n", self._switch, "qdisc", "replace", "dev", self._port(name), *shape)
        _call("tc", "-n", self._namespace(name), "qdisc", "replace", "dev", _DEVICE, *shape)

    def quick(self, name: str) -> None:
        """Undo `slow`, if it was."""
        _forget("tc", "-n", self._switch, "qdisc", "delete", "dev", self._port(name), "root")
        _forget("tc", "-n", self._namespace(name), "qdisc", "delete", "dev", _DEVICE, "root")

    # -- how it is made

    def _build(self) -> None:
        at_switch = ("ip", "-n", self._switch, "link")
        _call("ip", "netns", "add", self._switch)
        _call(*at_switch, "add", "br0", "type", "bridge")
        _call(*at_switch, "set", "br0", "up")
        for name, number in self._numbers.items():
            namespace = self._namespace(name)
            _call("ip", "netns", "add", namespace)
            _call(*at_switch, "add", self._port(name), "type", "veth", "peer", "name", _DEVICE, "netns", namespace)
            _call("ip", "-n", namespace, "link", "set", "lo", "up")
            self._plug(("-n", namespace), _DEVICE, number, self._port(name))
        _call(*at_switch, "add", "here", "type", "veth", "peer", "name", self._tag, "netns", str(os.getpid()))
        self._plug((), self._tag, _HERE, "here")

    def _plug(self, where: tuple[str, ...], device: str, number: int, port: str) -> None:
        _call("ip", *where, "address", "add", f"{_address(number)}/{32 - _BLOCK_BITS}", "dev", device)
        _call("ip", *where, "link", "set", device, "up")
        _call("ip", "-n", self._switch, "link", "set", port, "master", "br0", "up")

    def _remove(self) -> None:
        """Both ends of a pair go with either namespace, once its last socket is gone."""
        _forget("ip", "link", "delete", self._tag)
        for namespace in (*map(self._namespace, self._numbers), self._switch):
            _forget("ip", "netns", "delete", namespace)

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _port(self, name: str) -> str:
        return f"port{self._numbers[name]}"


def _address(number: int) -> str:
    whole = (_BLOCK << _BLOCK_BITS) + number
    return f"10.212.{whole >> 8}.{whole & 255}"


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=_COMMAND_S)


def _forget(*words: str) -> None:
    """What is not there (any more) need not go."""
    with suppress(subprocess.SubprocessError):
        subprocess.run(words, check=False, capture_output=True, timeout=_COMMAND_S)
