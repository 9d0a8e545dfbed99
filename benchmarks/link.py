"""An S3 server behind a slow link: in a network namespace of its own, reached through veth with `tc ... tbf`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.server import Server, as_server
from ckptsync.testing.seaweed import SeaweedFS

__all__ = ["serving_behind_link", "why_no_link"]

_BLOCK = os.getpid() % (1 << 14)  # of 4 addresses: runs side by side do not share any
_NEAR, _FAR = (f"10.211.{_BLOCK >> 6}.{((_BLOCK & 63) << 2) + end}" for end in (1, 2))
_SHAPE = ("root", "tbf", "rate", "1gbit", "burst", "512kb", "latency", "50ms")


def why_no_link() -> str:
    """Why such a link cannot be made here; "" if it can."""
    if os.geteuid():
        return "only root may make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{missing[0]} is not installed (iproute2)" if missing else ""


@contextmanager
def serving_behind_link() -> Iterator[Server]:
    """A server at the other end of a link of 1 Gbit/s in each direction. Call only if `why_no_link` says nothing.

    Raises:
        subprocess.CalledProcessError: the kernel refused.
    """
    namespace, near, far = (f"ckpt{end}{os.getpid()}" for end in ("ns", "a", "b"))
    try:
        _make_link(namespace, near, far)
        with SeaweedFS("bench", host=_FAR, inside=("ip", "netns", "exec", namespace)) as weed:
            yield as_server(weed)
    finally:
        # takes both ends of the pair along, once the last socket of the namespace is gone
        subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", near], check=False, capture_output=True)


def _make_link(namespace: str, near: str, far: str) -> None:
    inside = ("-n", namespace)
    _call("ip", "netns", "add", namespace)
    _call("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)
    for where, device, address in (((), near, _NEAR), (inside, far, _FAR)):
        _call("ip", *where, "address", "add", f"{address}/30", "dev", device)
        _call("ip", *where, "link", "set", device, "up")
        _call("tc", *where, "qdisc", "add", "dev", device, *_SHAPE)
    _call("ip", *inside, "link", "set", "lo", "up")


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
