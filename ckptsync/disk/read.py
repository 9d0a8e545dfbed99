"""Reading a trainer's files without costing it its page cache.

What was not in memory before we read it is dropped again (`POSIX_FADV_DONTNEED`) once it has been used; what was
stays, because somebody may need it. Residency is asked with `preadv(RWF_NOWAIT)`, a byte at each end of a window
and, where these differ, of each block in it: mincore(2) would see single pages but is not among the calls that
hardened units allow. So a resident run shorter than a window, strictly inside it, may go unnoticed.

Windows are asked backwards, many before the first is read: a probe or a read may set off the kernel's read-ahead,
which then only touches what has been asked already. The read-ahead is off for our own reads; the next window is
requested explicitly instead. A file of one block is asked and read by one and the same call: steps can have tens of
thousands of them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import final

from ckptsync.disk.scan import file_stat
from ckptsync.model.step import FileStat

__all__ = ["WINDOW_BYTES", "FileSource", "Pass", "WindowReader", "read_file"]

WINDOW_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 128 * 1024
_PAGE = mmap.PAGESIZE
_BATCH = 64  # windows asked before the first of them is read
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)

Ranges = Iterable[tuple[int, int]]
"""(offset, length) pairs, bytes."""


@final
class FileSource:
    """A `formats.base.Source` over one open file; a context manager.

    Args:
        path: the file; a fifo or device in its place is refused instead of waited for.

    Attributes:
        fd: its descriptor.
        opened: its stat when it was opened.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """

    def __init__(self, path: str) -> None:
        self.fd, raw = _open(path)
        self.opened = file_stat(raw)
        self.size = raw.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length); shorter only where the file ends. Raises OSError."""
        pieces: list[bytes] = []
        while length > 0:
            piece = os.pread(self.fd, length, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stat(self) -> FileStat:
        """The open file's stat, whatever its name points to by now."""
        return file_stat(os.fstat(self.fd))

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WindowReader:
    """Reads files window by window into one buffer that is used again for every window of every file.

    Args:
        window: bytes of one window.
    """

    def __init__(self, window: int = WINDOW_BYTES) -> None:
        self._byte = bytearray(1)
        self._window = window

    @cached_property
    def _buffer(self) -> memoryview:
        return memoryview(bytearray(self._window))  # not made for who brings a buffer of his own

    def windows(self, source: FileSource, ranges: Ranges | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, bytes) over the whole file, or over `ranges` in the order given.

        The memory is valid until the next one is asked for. A file that ends early ends the iteration.

        Raises:
            OSError: the file cannot be read.
        """
        if ranges is None and source.size <= min(_BLOCK_BYTES, self._window):
            if view := _read_block(source, self._buffer):
                yield 0, view
            return
        yield from self._read(source, ((0, source.size),) if ranges is None else ranges, lambda _: self._buffer)

    def fill(self, source: FileSource, offset: int, out: memoryview) -> int:
        """Read straight into `out` what lies from `offset` on; returns the bytes read, fewer only where the file ends.

        Raises:
            OSError: the file cannot be read.
        """
        if not offset and len(out) == source.size <= _BLOCK_BYTES:
            return len(_read_block(source, out))
        read = self._read(source, ((offset, len(out)),), lambda start: out[start - offset :])
        return sum(len(view) for _, view in read)

    def _read(
        self, source: FileSource, ranges: Ranges, room: Callable[[int], memoryview]
    ) -> Iterator[tuple[int, memoryview]]:
        with contextlib.closing(self.passes(source, ranges)) as passes:
            for each in passes:
                view = each.read(room(each.offset))
                if view:
                    yield each.offset, view
                if len(view) < each.length:
                    return

    def passes(self, source: FileSource, ranges: Ranges) -> Generator[Pass, None, None]:
        """The same without reading: the caller uses the bytes of a window before it asks for the next one.

        Every window is fetched before it is yielded, and what was absent of it is dropped afterwards.
        """
        with contextlib.suppress(OSError):
            os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_RANDOM)
        plan = self._plan(source.fd, ranges)
        following = next(plan, None)
        while following is not None:
            current, following = following, next(plan, None)
            if following is not None:
                following.request()
            try:
                yield current
            finally:
                current.drop()

    def _plan(self, fd: int, ranges: Ranges) -> Iterator[Pass]:
        places = self._cut(ranges)
        while batch := list(itertools.islice(places, _BATCH)):
            yield from reversed(self._ask(fd, batch))

    def _cut(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        for offset, length in ranges:
            for start in range(offset, offset + length, self._window):
                yield start, min(self._window, offset + length - start)

    def _ask(self, fd: int, places: Sequence[tuple[int, int]]) -> list[Pass]:
        """The windows at `places`, last first, each with what is absent of it."""
        windows: list[Pass] = []
        behind = (-1, False)  # where the window after this one starts, and whether that is resident
        for offset, length in reversed(places):
            first, last = _inside(offset, length)
            end = behind[1] if behind[0] == offset + length else self._resident(fd, last)
            start = self._resident(fd, first)
            behind = (offset, start)
            whole = [] if start else [(offset, length)]
            absent = whole if start == end else self._absent_blocks(fd, offset, length)
            windows.append(Pass(fd, offset, length, absent))
        return windows

    def _absent_blocks(self, fd: int, offset: int, length: int) -> list[tuple[int, int]]:
        blocks = range(offset, offset + length, _BLOCK_BYTES)
        absent = [
            block
            for block in reversed(blocks)
            if not self._resident(fd, min(-(-block // _PAGE) * _PAGE, blocks.stop - 1))
        ]
        return [(block, min(_BLOCK_BYTES, offset + length - block)) for block in absent]

    def _resident(self, fd: int, offset: int) -> bool:
        """Whether the page at `offset` is in memory; where the system cannot tell, yes, so that nothing is dropped."""
        if _NOWAIT is None:
            return True
        try:
            return os.preadv(fd, [self._byte], offset, _NOWAIT) > 0
        except BlockingIOError:
            return False
        except OSError:  # no such probe here; a real fault shows when the window is read
            return True


@dataclass(frozen=True, slots=True)
class Pass:
    """One window of a file, and what of it was absent before we came, so that it is ours to drop.

    Attributes:
        fd: the file.
        offset, length: the window, bytes.
        absent: (offset, length) pairs, bytes.
    """

    fd: int
    offset: int
    length: int
    absent: Sequence[tuple[int, int]]

    def request(self) -> None:
        """Ask the kernel to fetch what is absent; returns at once."""
        for start, length in self.absent:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fd, start, length, os.POSIX_FADV_WILLNEED)

    def drop(self) -> None:
        """Take what was absent out of the page cache again, with the pages that it shares with its neighbours.

        The kernel leaves pages alone of which only a part is meant (POSIX_FADV_DONTNEED, posix_fadvise(2)).
        """
        for start, length in self.absent:
            begin, end = start - start % _PAGE, -(-(start + length) // _PAGE) * _PAGE
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fd, begin, end - begin, os.POSIX_FADV_DONTNEED)

    def read(self, buffer: memoryview) -> memoryview:
        """Fill the buffer; shorter than `length` only where the file ends. Raises OSError."""
        view, done = buffer[: self.length], 0
        while done < self.length:
            got = os.preadv(self.fd, [view[done:]], self.offset + done)
            if not got:
                break
            done += got
        return view[:done]


def read_file(path: str, window: int = WINDOW_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) over one file, as `WindowReader.windows`. Raises OSError."""
    with FileSource(path) as source:
        yield from WindowReader(min(window, max(source.size, 1))).windows(source)


def _read_block(source: FileSource, buffer: memoryview) -> memoryview:
    """The whole of a small file; dropped again if not even its first page was in memory. Raises OSError."""
    resident, view = 0, buffer[: source.size]
    if _NOWAIT is not None:
        try:
            resident = os.preadv(source.fd, [view], 0, _NOWAIT)
        except BlockingIOError:
            resident = -1
        except OSError:  # no such probe here; a real fault shows below
            resident = 0
    if resident == source.size:
        return view
    whole = Pass(source.fd, 0, source.size, ((0, source.size),) if resident < 0 else ())
    try:
        return whole.read(buffer)
    finally:
        whole.drop()


def _inside(offset: int, length: int) -> tuple[int, int]:
    """Where to ask whether a range is resident: in its first and last whole page, which no neighbour has touched."""
    first, end = -(-offset // _PAGE) * _PAGE, (offset + length) // _PAGE * _PAGE
    return (first, end - 1) if first < end else (offset, offset + length - 1)


def _open(path: str) -> tuple[int, os.stat_result]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    raw = os.fstat(descriptor)
    if not stat.S_ISREG(raw.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor, raw
