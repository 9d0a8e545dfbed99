"""Writing a restored step below a directory of our own, one path component at a time, never through a link."""

from __future__ import annotations

import contextlib
import errno
import os
from types import TracebackType
from typing import final

from ckptsync.disk import durable, syscalls
from ckptsync.disk.faults import guarded
from ckptsync.model.paths import check_relative

__all__ = ["Folder", "Tree", "begin_writeback", "clone", "copy_range", "write_at"]

_COPY_BYTES = 1024 * 1024
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF, errno.ETXTBSY})


@final
class Tree:
    """A directory tree that is being written; a context manager.

    Every path is validated, and opened from the root with O_NOFOLLOW, so that neither a manifest nor a link planted
    meanwhile leads out of it.

    Args:
        root: an existing directory, best fresh and mode 0700 (`Staging.new_restore`).
        owner: (uid, gid) to give everything to; None leaves it to this process.

    Raises:
        FileNotFoundError, ConfigError, CkptsyncError: the root cannot be opened.
    """

    def __init__(self, root: str, owner: tuple[int, int] | None = None) -> None:
        self.root, self._owner = root, owner
        with guarded("cannot open a directory", root):
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def create(self, path: str, *, size: int = 0) -> int:
        """Create the new, empty file `path` with its parents; the caller closes the descriptor.

        Args:
            path: relative to the root.
            size: bytes to reserve, so that a full disk shows at once (0 = none).

        Raises:
            ValueError: the path leads out of the root.
            NoSpaceError, ConfigError, CkptsyncError: it exists, or the disk says no.
        """
        directory, name = self._split(path)
        with self.folder(directory) as folder:
            return folder.create(name, size=size)

    def folder(self, path: str) -> Folder:
        """Open (create) the directory `path` ("" = the root), for who makes many files in it. Raises as `create`."""
        parts = check_relative(path).split("/") if path else []
        return Folder(self._shown(path), self._open_dir(parts))

    def make_dir(self, path: str) -> None:
        """Create the directory `path` with its parents; existing is success. Raises as `create`."""
        os.close(self._open_dir(check_relative(path).split("/")))

    def make_link(self, path: str, target: str) -> None:
        """Create the symbolic link `path`, whose `target` the caller has checked. Raises as `create`."""
        directory, name = self._split(path)
        with self.folder(directory) as folder:
            durable.make_link(target, name, dir_fd=folder.fd)

    def finish_file(self, descriptor: int, *, mode: int, mtime_ns: int) -> None:
        """Give a written file its owner, permission bits and mtime (ns since the epoch). Raises as `guarded`."""
        with guarded("cannot finish a file", self.root):
            self._finish(descriptor, mode, mtime_ns)

    def finish_dir(self, path: str, *, mode: int, mtime_ns: int) -> None:
        """The same for a directory ("" = the root), when nothing more goes into it: children first."""
        descriptor = self._open_dir(check_relative(path).split("/") if path else [])
        try:
            with guarded("cannot finish a directory", self._shown(path)):
                self._finish(descriptor, mode, mtime_ns)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the root."""
        os.close(self._fd)

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, descriptor: int, mode: int, mtime_ns: int) -> None:
        if self._owner is not None:
            found = os.fstat(descriptor)
            if (found.st_uid, found.st_gid) != self._owner:
                os.fchown(descriptor, *self._owner)
        os.fchmod(descriptor, mode)
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))

    def _split(self, path: str) -> tuple[str, str]:
        """(directory, name) of a path that stays inside."""
        directory, _, name = check_relative(path).rpartition("/")
        return directory, name

    def _open_dir(self, parts: list[str]) -> int:
        descriptor = os.dup(self._fd)
        try:
            for part in parts:
                with guarded("cannot create a directory", self._shown("/".join(parts))):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=descriptor)
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    below = os.open(part, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _shown(self, path: str) -> str:
        return os.path.join(self.root, path)


@final
class Folder:
    """One directory of a tree, held open; a context manager.

    Attributes:
        fd: its descriptor.
    """

    def __init__(self, shown: str, fd: int) -> None:
        self._shown, self.fd = shown, fd

    def create(self, name: str, *, size: int = 0) -> int:
        """As `Tree.create`, for a single name."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with guarded("cannot create a file", os.path.join(self._shown, name)):
            descriptor = os.open(_single(name), flags, 0o600, dir_fd=self.fd)
            try:
                _reserve(descriptor, size)
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def open(self, name: str) -> int:
        """Open a file that was created here, for reading and writing; the caller closes it. Raises as `create`."""
        with guarded("cannot write a file", os.path.join(self._shown, name)):
            return os.open(_single(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)


def _single(name: str) -> str:
    if "/" in name:
        msg = f"{name!r} is more than a name"
        raise ValueError(msg)
    return check_relative(name)


def _reserve(descriptor: int, size: int) -> None:
    if size <= 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def begin_writeback(descriptor: int, offset: int, length: int) -> None:
    """Let the disk begin to write a range (bytes) that has just been written, so that a later fsync finds little to do.

    Linux does that at POSIX_FADV_DONTNEED, before it drops what is clean in the range; what is being written stays.
    """
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset` (bytes). Raises OSError."""
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


def copy_range(source_fd: int, source_offset: int, target_fd: int, target_offset: int, length: int) -> int:
    """Copy bytes between two files, sharing their blocks where the file system can.

    The copy is a new file for everybody: an in-place rewrite of one never shows in the other.

    Returns:
        Bytes copied; fewer than `length` only where the source ends.

    Raises:
        OSError: as read(2) and write(2).
    """
    done = 0
    while done < length:
        step = _copy_some(source_fd, source_offset + done, target_fd, target_offset + done, length - done)
        if not step:
            break
        done += step
    return done


def clone(source_fd: int, target_fd: int, length: int) -> bool:
    """Let the new file `target_fd` share all blocks of a file of `length` bytes; False = not possible here."""
    return os.fstat(source_fd).st_size == length and syscalls.reflink(source_fd, target_fd)


def _copy_some(source_fd: int, source_offset: int, target_fd: int, target_offset: int, length: int) -> int:
    try:
        done = os.copy_file_range(source_fd, target_fd, length, source_offset, target_offset)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
        done = 0
    if done:
        return done
    data = os.pread(source_fd, min(length, _COPY_BYTES), source_offset)  # some file systems answer 0 instead
    write_at(target_fd, data, target_offset)
    return len(data)
