"""One ckptsync at a time works on a run on this node. The kernel drops the lock with the process, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import final

from ckptsync.disk import durable
from ckptsync.disk.faults import guarded
from ckptsync.errors import ConflictError

__all__ = ["RunLock"]

_POLL_SECONDS = 0.1
_TRIES_UNTOLD = 2  # by the second, whoever has just taken the lock has written who it is


@final
class RunLock:
    """An exclusive lock on a file in the state directory; a context manager that releases.

    Args:
        path: the lock file; created, never deleted (deleting it would let two processes lock two files).
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    @property
    def lost(self) -> bool:
        """Whether the file that this object holds is gone, so that another process can lock a new one."""
        if self._fd is None:
            return False
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False  # a server that does not answer says nothing
        return not os.path.samestat(there, os.fstat(self._fd))

    def acquire(self, timeout_s: float = 0.0, waiting: Callable[[str], None] | None = None) -> None:
        """Take the lock, waiting up to `timeout_s` seconds for another process to give it up.

        Args:
            timeout_s: seconds; 0 = only try.
            waiting: told once, in one line, that and for whom we wait.

        Raises:
            ConflictError: another process still holds it.
            ConfigError, NoSpaceError, CkptsyncError: the lock file cannot be used.
        """
        if self._fd is not None:
            return
        durable.make_dirs(os.path.dirname(self._path))
        with guarded("cannot open the run's lock", self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            self._lock(descriptor, time.monotonic() + timeout_s, waiting)
            self._sign(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._fd = descriptor

    def taken(self) -> bool:
        """Whether any process holds the lock now. Looks, takes nothing."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Give the lock up; not holding it is success."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def holder(self) -> str:
        """Who holds (or last held) the lock, for messages: "process 1234", or "another process"."""
        with contextlib.suppress(OSError, ValueError), open(self._path, encoding="ascii") as file:
            return f"process {int(file.readline(32))}"
        return "another process"

    def since_s(self) -> float:
        """When whoever holds (or last held) it took it, in seconds since the epoch; 0 = not known."""
        with contextlib.suppress(OSError):
            return os.stat(self._path).st_mtime
        return 0.0

    def __enter__(self) -> RunLock:
        if self._fd is None:
            self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _lock(self, descriptor: int, deadline: float, waiting: Callable[[str], None] | None) -> None:
        tries = 0
        while not self._try(descriptor):
            if time.monotonic() >= deadline:
                what, remedy = "another ckptsync works on this run", "wait for it, or stop it"
                raise ConflictError(what, where=self._path, why=f"held by {self.holder()}", remedy=remedy)
            tries += 1
            if waiting is not None and tries == _TRIES_UNTOLD:
                waiting(f"waiting for {self.holder()}, which holds {self._path}")
            time.sleep(_POLL_SECONDS)

    def _try(self, descriptor: int) -> bool:
        with guarded("cannot lock the run", self._path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _sign(self, descriptor: int) -> None:
        with guarded("cannot write the run's lock", self._path):
            os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
