"""A fresh S3 server for each round, and what is asked of it directly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.store import S3Store

from ckptsync.testing.seaweed import SeaweedFS

if TYPE_CHECKING:
    from obstore import ObjectMeta

__all__ = ["Server", "as_server", "object_directory", "serving"]

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory with a random name is made in it
_ROOM = 12 << 30


def object_directory(otherwise: Path) -> Path:
    """Where servers shall keep their objects: in memory if there is room, since a store's disk is not what is measured.

    Args:
        otherwise: a directory on the disk.
    """
    if not os.access(_IN_MEMORY, os.W_OK):
        return otherwise
    found = os.statvfs(_IN_MEMORY)
    room = min(found.f_bavail * found.f_frsize, _memory_available())
    return _IN_MEMORY if room >= _ROOM else otherwise


def _memory_available() -> int:
    """Bytes that could be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)


@dataclass(frozen=True, slots=True)
class Server:
    """A running S3 server with one bucket.

    Attributes:
        endpoint: http URL.
        bucket: its bucket.
        environ: credentials and endpoint for a client's environment.
    """

    endpoint: str
    bucket: str
    environ: Mapping[str, str]

    def at(self, endpoint: str) -> Server:
        """The same server by another address, as of a proxy."""
        return replace(self, endpoint=endpoint, environ={**self.environ, "AWS_ENDPOINT_URL": endpoint})

    def stored(self, prefix: str) -> tuple[int, int]:
        """(bytes, objects) below a prefix."""
        sizes = [meta["size"] for meta in self._list(prefix)]
        return sum(sizes), len(sizes)

    def keys(self, prefix: str) -> list[str]:
        """All keys below a prefix."""
        return [meta["path"] for meta in self._list(prefix)]

    def _list(self, prefix: str) -> list[ObjectMeta]:
        return [meta for page in obstore.list(self._store(), f"{prefix}/") for meta in page]

    def _store(self) -> S3Store:
        return S3Store(
            self.bucket,
            endpoint=self.endpoint,
            region=self.environ["AWS_DEFAULT_REGION"],
            access_key_id=self.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=self.environ["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True, "timeout": timedelta(seconds=60), "proxy_excludes": "*"},
        )


def as_server(weed: SeaweedFS) -> Server:
    """What clients need to know of a started server. No proxy of this machine may stand between."""
    host = weed.endpoint.removeprefix("http://").rpartition(":")[0]
    return Server(weed.endpoint, weed.bucket, {**weed.environ, "NO_PROXY": host, "no_proxy": host})


@contextmanager
def serving(*, idle: bool = False) -> Iterator[Server]:
    """A server on 127.0.0.1, removed with all its objects at the end.

    Args:
        idle: give it only the CPU time that nothing else wants: it stands for another machine, where it would take
            none of ours.
    """
    with SeaweedFS("bench") as weed:
        if idle:
            _make_idle(weed)
        yield as_server(weed)


def _make_idle(weed: SeaweedFS) -> None:
    """Move all threads of the server into the idle class; new ones inherit it."""
    port = weed.endpoint.rpartition(":")[2]
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if f"-s3.port={port}".encode() not in file.read().split(b"\0"):
                    continue
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
            with suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as share:  # of its session, which is its own
                share.write("19")
        except (FileNotFoundError, ProcessLookupError):
            continue
