"""The tools that a user would pick instead, with the options that their manuals begin with."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Usage, run
from benchmarks.server import Server

__all__ = ["PEERS", "WANTED", "Peer", "Place", "available"]

Words = list[str | Path]

WANTED = "CKPTSYNC_BENCH_PEERS"
"""Names, separated by commas; unset = all."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one peer keeps one round's copy.

    Attributes:
        server: the store.
        prefix: below its bucket.
        work: a directory of its own: caches, logs.
    """

    server: Server
    prefix: str
    work: Path

    @property
    def url(self) -> str:
        """Of the prefix, as most tools write it."""
        return f"s3://{self.server.bucket}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Peer:
    """One tool.

    Attributes:
        name: as it calls itself.
        program: what must be on the PATH or beside the interpreter.
        push: command that uploads a directory.
        pull: command that brings the copy back into an empty directory.
        start: command before the first push, not measured.
        environ: variables besides the credentials.
    """

    name: str
    program: str
    push: Callable[[Place, Path], Words]
    pull: Callable[[Place, Path], Words]
    start: Callable[[Place], Words] | None = None
    environ: Callable[[Place], dict[str, str]] = lambda _: {}

    def begin(self, place: Place) -> None:
        """What must be done once for a place."""
        place.work.mkdir(parents=True, exist_ok=True)
        if self.start is not None:
            self._run(place, self.start(place))

    def upload(self, place: Place, source: Path) -> Usage:
        """Push `source`; the copy is then below the place's prefix."""
        return self._run(place, self.push(place, source))

    def download(self, place: Place, target: Path) -> Usage:
        """Pull the copy into `target`, which is made."""
        target.mkdir(parents=True)
        return self._run(place, self.pull(place, target))

    def _run(self, place: Place, words: Sequence[str | Path]) -> Usage:
        found = program(self.program)
        if found is None:
            msg = f"{self.program} is not installed"
            raise FileNotFoundError(msg)
        return run([found, *words], cwd=place.work, environ={**place.server.environ, **self.environ(place)})


def program(name: str) -> str | None:
    """The program's path: beside the interpreter (the benchmarks' own environment), else on the PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def available(names: Collection[str]) -> list[Peer]:
    """The peers of these names that are installed here, and wanted (`--peers`)."""
    wanted = os.environ.get(WANTED, "").split(",") if os.environ.get(WANTED) else names
    return [peer for peer in PEERS if peer.name in names and peer.name in wanted and program(peer.program)]


def _rclone(place: Place) -> str:
    return f":s3:{place.server.bucket}/{place.prefix}"


def _rclone_environ(place: Place) -> dict[str, str]:
    """Options by environment: an endpoint with a colon needs no quoting there."""
    return {
        "RCLONE_S3_PROVIDER": "SeaweedFS",
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_ENDPOINT": place.server.endpoint,
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
        "RCLONE_CONFIG": "/dev/null",
    }


def _restic(place: Place, *words: str | Path) -> Words:
    return ["--quiet", "--cache-dir", place.work / "cache", *words]


def _restic_environ(place: Place) -> dict[str, str]:
    return {
        "RESTIC_REPOSITORY": f"s3:{place.server.endpoint}/{place.server.bucket}/{place.prefix}",
        "RESTIC_PASSWORD": "not-a-secret",
    }


def _naive(name: str) -> Peer:
    def words(direction: str, place: Place, path: Path) -> Words:
        return ["-m", "benchmarks.naive", name, direction, path, place.server.bucket, place.prefix]

    return Peer(
        name,
        Path(sys.executable).name,
        lambda place, source: words("push", place, source),
        lambda place, target: words("pull", place, target),
        environ=lambda _: {"PYTHONPATH": str(Path(__file__).parents[1])},
    )


PEERS = (
    Peer(
        "s5cmd",
        "s5cmd",
        lambda place, source: ["cp", f"{source}/", f"{place.url}/"],
        lambda place, target: ["cp", f"{place.url}/*", f"{target}/"],
        environ=lambda place: {"S3_ENDPOINT_URL": place.server.endpoint},
    ),
    Peer(
        "rclone",
        "rclone",
        lambda place, source: ["copy", source, _rclone(place)],
        lambda place, target: ["copy", _rclone(place), target],
        environ=_rclone_environ,
    ),
    Peer(
        "aws s3 cp",
        "aws",
        lambda place, source: ["s3", "cp", "--recursive", "--only-show-errors", source, place.url],
        lambda place, target: ["s3", "cp", "--recursive", "--only-show-errors", place.url, target],
    ),
    Peer(
        "restic",
        "restic",
        lambda place, source: _restic(place, "backup", source),
        lambda place, target: _restic(place, "restore", "latest", "--target", target),
        start=lambda place: _restic(place, "init"),
        environ=_restic_environ,
    ),
    _naive("boto3"),
    _naive("s3fs"),
)
"""In the order of the tables."""
