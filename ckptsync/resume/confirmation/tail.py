"""The lines that come to a log while it grows."""

from __future__ import annotations

import contextlib
import os
import stat

from ckptsync.disk.faults import guarded
from ckptsync.errors import ConfigError

__all__ = ["Tail"]

_CHUNK = 4 * 1024 * 1024
_LINE_BYTES_MAX = 1024 * 1024
_LOG_BYTES_MAX = 512 * 1024 * 1024


class Tail:
    """Reads on where it stopped. A log that was replaced, or cut off, is read from its beginning; of one that is longer
    than 512 MiB the last ones. What a line has beyond 1 MiB is left out.

    Args:
        path: of the log; it need not be there yet.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._cut = False

    def read(self) -> list[str]:
        """The next whole lines, at most about 4 MiB of them; [] = none has come.

        Raises:
            ConfigError: it is no regular file, or cannot be read. CkptsyncError: reading fails.
        """
        with contextlib.suppress(FileNotFoundError), guarded("cannot read the train log", self._path):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not hold us up
            try:
                self._find(os.fstat(descriptor))
                data = os.pread(descriptor, _CHUNK, self._offset)
            finally:
                os.close(descriptor)
            self._offset += len(data)
            return self._lines(data)
        return []

    def rest(self) -> list[str]:
        """The last line, if it has no end: when nothing more will come."""
        line, self._rest = self._rest, b""
        return [line.decode("utf-8", "replace")] if line and not self._cut else []

    def _find(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError("cannot read the train log", where=self._path, why="not a file")
        identity = found.st_dev, found.st_ino
        if identity != self._file or found.st_size < self._offset:
            self._file, self._rest = identity, b""
            self._offset = max(found.st_size - _LOG_BYTES_MAX, 0)
            self._cut = self._offset > 0  # begins within a line

    def _lines(self, data: bytes) -> list[str]:
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(self._rest + data)
            return []
        first, *others = (self._rest + whole).split(b"\n")
        lines = others if self._cut else [first, *others]
        self._cut = False
        self._rest = b""
        self._keep(rest)
        return [line[:_LINE_BYTES_MAX].decode("utf-8", "replace") + "\n" for line in lines]

    def _keep(self, rest: bytes) -> None:
        self._rest = rest[:_LINE_BYTES_MAX]
