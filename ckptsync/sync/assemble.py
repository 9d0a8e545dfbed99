"""Files put together from pieces that come in any order and from several threads.

What is compared with a file's digest is what lies in the file, not what was meant to: every range is read back as soon
as all before it is there, while its pages are still in memory, and the disk begins to write it at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from blake3 import blake3

from ckptsync.disk.faults import NO_SPACE, guarded
from ckptsync.disk.place import Folder, Tree, begin_writeback, copy_range, write_at
from ckptsync.disk.read import FileSource, WindowReader
from ckptsync.model.manifest import FileEntry

__all__ = ["Assembly", "Patch"]

Patch = tuple[str, int, int, int]
"""(path, offset in the file, offset in the chunk, length), bytes."""
_WINDOW_BYTES = 1024 * 1024
_RESERVE_MIN = 1024 * 1024  # what is written in one go shows a full disk by itself
_own = threading.local()


@dataclass(slots=True)
class _Progress:
    """How far a file of several pieces is: all before `hashed` has been read back, `written` lies beyond."""

    hasher: blake3 = field(default_factory=blake3)
    hashed: int = 0
    written: dict[int, int] = field(default_factory=dict)  # start -> end
    busy: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, start: int, end: int) -> bool:
        """Note a range; True = the caller is the one to go on reading back."""
        with self.lock:
            self.written[start] = end
            self.busy, others = True, self.busy
            return not others

    def next(self) -> int | None:
        """The end of the range that can be read back now; None = it has not come yet, and whoever brings it goes on."""
        with self.lock:
            end = self.written.pop(self.hashed, None)
            self.busy = end is not None
            return end


class Assembly:
    """The files of a tree in the making. A file is given its mode and mtime when it is found to be right.

    Args:
        tree: a fresh one.
        files: what to make, by path.

    Attributes:
        wrong: paths whose content turned out not to have their digest.
    """

    def __init__(self, tree: Tree, files: Mapping[str, FileEntry]) -> None:
        self.wrong: set[str] = set()
        self._tree, self._files = tree, files
        self._progress: dict[str, _Progress] = {}

    def prepare(self, clone: Callable[[FileEntry, int], bool]) -> list[str]:
        """Create what no single piece fills, and reserve the space of what is large.

        Args:
            clone: may fill a new file (by its descriptor) at once; True = it did, and `check` is due.

        Returns:
            The paths that were cloned.

        Raises:
            ValueError, NoSpaceError, ConfigError, CkptsyncError: as `Tree.create`.
        """
        cloned = []
        for path, entry in self._files.items():
            if len(entry.extents) == 1 and entry.size < _RESERVE_MIN:
                continue
            self._progress[path] = _Progress()
            descriptor = self._tree.create(path, size=entry.size)
            try:
                if not entry.size:
                    self._finish(path, entry, descriptor, blake3().hexdigest())
                elif clone(entry, descriptor):
                    cloned.append(path)
            finally:
                os.close(descriptor)
        return cloned

    def check(self, path: str) -> None:
        """Compare a file that was filled otherwise. Raises as `write`."""
        self._put([(path, 0, 0, self._files[path].size)], lambda *_: True)

    def write(self, patches: Iterable[Patch], chunk: memoryview) -> None:
        """Put a chunk into the files it belongs to.

        Raises:
            NoSpaceError, ConfigError, CkptsyncError: the disk says no.
        """

        def put(descriptor: int, offset: int, start: int, length: int) -> bool:
            write_at(descriptor, chunk[start : start + length], offset)
            return True

        self._put(patches, put)

    def copy(self, patches: Iterable[Patch], source: FileSource, source_offset: int) -> None:
        """The same for a chunk that is one range of a local file; what cannot be read there makes its files wrong.

        Blocks are shared where the file system can. The page cache of the source is left as it was found.
        """

        def put(descriptor: int, offset: int, start: int, length: int) -> bool:
            return _copied(source, source_offset + start, descriptor, offset, length)

        self._put(patches, put)

    def again(self, paths: Iterable[str]) -> None:
        """Forget what was put into these files: all of it will come once more."""
        for path in paths:
            self.wrong.discard(path)
            self._progress[path] = _Progress()

    def _put(self, patches: Iterable[Patch], put: Callable[[int, int, int, int], bool]) -> None:
        """Call `put(descriptor, offset in the file, offset in the chunk, length)` for each; false = it is not there."""
        for directory, group in groupby(patches, key=lambda patch: patch[0].rpartition("/")[0]):
            with self._tree.folder(directory) as folder, guarded("cannot write a file", directory):
                for path, offset, start, length in group:
                    descriptor = self._open(folder, path)
                    try:
                        if put(descriptor, offset, start, length):
                            self._wrote(path, descriptor, offset, length)
                        else:
                            self.wrong.add(path)
                    finally:
                        os.close(descriptor)

    def _open(self, folder: Folder, path: str) -> int:
        name = path.rpartition("/")[2]
        return folder.open(name) if path in self._progress else folder.create(name)

    def _wrote(self, path: str, descriptor: int, offset: int, length: int) -> None:
        entry, progress = self._files[path], self._progress.get(path)
        if progress is None:
            hasher = blake3()
            _read_back(descriptor, 0, entry.size, hasher)
            self._finish(path, entry, descriptor, hasher.hexdigest())
        elif progress.add(offset, offset + length):
            self._go_on(path, descriptor, progress)

    def _go_on(self, path: str, descriptor: int, progress: _Progress) -> None:
        """Read back what has become contiguous, for as long as there is more."""
        entry = self._files[path]
        while (end := progress.next()) is not None:
            _read_back(descriptor, progress.hashed, end, progress.hasher)
            begin_writeback(descriptor, progress.hashed, end - progress.hashed)
            progress.hashed = end
            if end == entry.size:
                self._finish(path, entry, descriptor, progress.hasher.hexdigest())
                return

    def _finish(self, path: str, entry: FileEntry, descriptor: int, digest: str) -> None:
        if digest == entry.digest:
            self._tree.finish_file(descriptor, mode=entry.mode, mtime_ns=entry.mtime_ns)
        else:
            self.wrong.add(path)


def _copied(source: FileSource, source_offset: int, descriptor: int, offset: int, length: int) -> bool:
    """Whether the range could be copied. Raises OSError for a full disk."""
    shift, reader = offset - source_offset, WindowReader()
    try:
        with contextlib.closing(reader.passes(source, ((source_offset, length),))) as passes:
            return all(
                copy_range(source.fd, each.offset, descriptor, each.offset + shift, each.length) == each.length
                for each in passes
            )
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        return False


def _read_back(descriptor: int, start: int, end: int, hasher: blake3) -> None:
    """Hash what lies in the file; what it lacks makes the digest a wrong one. Raises OSError."""
    buffer: memoryview | None = getattr(_own, "buffer", None)
    if buffer is None:
        buffer = _own.buffer = memoryview(bytearray(_WINDOW_BYTES))
    while start < end:
        got = os.preadv(descriptor, [buffer[: end - start]], start)
        if not got:
            return
        hasher.update(buffer[:got])
        start += got
