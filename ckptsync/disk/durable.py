"""The only module that renames, links, fsyncs and unlinks: what returns from here has reached the disk.

The order inside each function is its point: content, then name, then directory, each fsynced before the next
step may rely on it. A failed fsync is never repeated: Linux marks the pages clean and the second one lies.
Faults leave as one-line errors: a full disk as NoSpaceError, refused access as ConfigError with the remedy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator

from ckptsync.errors import CkptsyncError, ConfigError, NoSpaceError

__all__ = [
    "crash_point",
    "fsync_dir",
    "fsync_file",
    "guarded",
    "is_temporary_name",
    "make_dirs",
    "publish",
    "publish_new",
    "remove",
    "rename_new",
    "set_crash_hook",
    "temporary_name",
]

_TEMPORARY = re.compile(r"#[0-9a-f]{16}\Z")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_DIR_FSYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_RENAME_NOREPLACE = 1  # linux/fs.h
_AT_FDCWD = -100  # linux/fcntl.h

_crash_hook: Callable[[str], None] | None = None


def set_crash_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook(label)` at every crash point of this process; None switches it off (`ckptsync.testing.crash`)."""
    global _crash_hook  # noqa: PLW0603 - one switch for the process, set before anything runs
    _crash_hook = hook


def crash_point(label: str) -> None:
    """A place where the order of two effects matters; does nothing unless a test asked to be killed here."""
    if _crash_hook is not None:
        _crash_hook(label)


@contextlib.contextmanager
def guarded(what: str, path: str) -> Iterator[None]:
    """Turn an OSError into its one-line error. FileNotFoundError passes: the caller knows what a vanished file means.

    Raises:
        NoSpaceError: the disk or the quota is full.
        ConfigError: this user may not do it.
        CkptsyncError: anything else the system reports (EIO, ...).
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        if error.errno in _NO_SPACE:
            raise NoSpaceError(what, where=path, why=why, remedy="free some space, or raise the quota") from error
        if error.errno in _NO_ACCESS:
            remedy = "run as the user that owns output_dir, and list its parent in ReadWritePaths= of the unit"
            raise ConfigError(what, where=path, why=why, remedy=remedy) from error
        raise CkptsyncError(what, where=path, why=why) from error


def temporary_name(path: str) -> str:
    """A fresh name beside `path` that `is_temporary_name` knows and no reader takes for an object."""
    return f"{path}#{secrets.token_hex(8)}"


def is_temporary_name(name: str) -> bool:
    """Whether a file of this name is something this module was killed over."""
    return _TEMPORARY.search(name) is not None


def fsync_file(path: str) -> None:
    """Make the content of one regular file durable, whoever wrote it. Raises as `guarded`, and FileNotFoundError."""
    with guarded("cannot make a file durable", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fsync_dir(path: str) -> None:
    """Make the names in one directory durable; network file systems that know no such call are let pass."""
    with guarded("cannot make a directory durable", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_DIR_FSYNC:
                raise
        finally:
            os.close(descriptor)


def make_dirs(path: str, mode: int = 0o777) -> None:
    """Create `path` and its missing parents durably; each new name is fsynced in the directory that holds it."""
    missing: list[str] = []
    current = os.path.abspath(path)
    while not os.path.isdir(current):
        missing.append(current)
        parent = os.path.dirname(current)
        if parent == current:
            break
        current = parent
    for directory in reversed(missing):
        with guarded("cannot create a directory", directory), contextlib.suppress(FileExistsError):
            os.mkdir(directory, mode)
        crash_point("make-dirs.created")
        fsync_dir(os.path.dirname(directory))


def publish_new(path: str, data: bytes, *, mode: int = 0o666) -> bool:
    """Create `path` with `data`, all or nothing, durably; of several racing processes exactly one wins.

    Returns:
        True = created; False = something was there already (made durable, too).

    Raises:
        NoSpaceError, ConfigError, CkptsyncError: as `guarded`; `path` is then absent or as it was.
    """
    path = os.path.abspath(path)
    make_dirs(os.path.dirname(path))
    temporary = temporary_name(path)
    try:
        _write(temporary, data, mode)
        crash_point("publish-new.before-link")
        with guarded("cannot create a file", path):
            created = _link_new(temporary, path)
        crash_point("publish-new.after-link")
    finally:
        _discard(temporary)
    fsync_dir(os.path.dirname(path))
    return created


def publish(
    path: str,
    data: bytes,
    *,
    temp_dir: str | None = None,
    mode: int = 0o666,
    owner: tuple[int, int] | None = None,
) -> None:
    """Create or replace `path`, all or nothing, durably.

    Args:
        path: the file.
        data: its whole new content.
        temp_dir: where the temporary file lives (same mount); beside `path` by default.
        mode: permission bits of the new file, before the umask.
        owner: (uid, gid) to give it to; None leaves it to this process.

    Raises:
        NoSpaceError, ConfigError, CkptsyncError: as `guarded`; `path` is then as it was, or already replaced.
    """
    path = os.path.abspath(path)
    make_dirs(os.path.dirname(path))
    temporary = temporary_name(path if temp_dir is None else os.path.join(temp_dir, os.path.basename(path)))
    try:
        _write(temporary, data, mode, owner)
        crash_point("publish.before-rename")
        with guarded("cannot replace a file", path):
            os.replace(temporary, path)
    except BaseException:
        _discard(temporary)
        raise
    crash_point("publish.after-rename")
    fsync_dir(os.path.dirname(path))


def remove(path: str) -> None:
    """Unlink a file or link durably; absent is success. Raises as `guarded`."""
    with guarded("cannot delete a file", path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    crash_point("remove.after-unlink")
    with contextlib.suppress(FileNotFoundError):
        fsync_dir(os.path.dirname(os.path.abspath(path)))


def rename_new(source: str, target: str) -> None:
    """Rename without ever replacing anything, not even an empty directory or a dangling link.

    Raises:
        FileExistsError: `target` is there.
        OSError: as rename(2).
    """
    if _renameat2(source, target):
        return
    if os.path.lexists(target):  # no such call here: the daemon's lock stands in for its atomicity
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(source, target)


def _renameat2(source: str, target: str) -> bool:
    """True = renamed; False = this kernel, C library or file system has no RENAME_NOREPLACE."""
    import ctypes  # noqa: PLC0415 - slow to load, needed only for this

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), source, None, target)


def _write(path: str, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    with guarded("cannot write a file", path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, mode), "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            crash_point("write.before-fsync")
            os.fsync(file.fileno())


def _link_new(temporary: str, path: str) -> bool:
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        # a network file system may repeat a link whose reply was lost; then the name is ours after all
        return os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _rename_onto_nothing(temporary, path)
    return True


def _rename_onto_nothing(temporary: str, path: str) -> bool:
    try:
        rename_new(temporary, path)
    except FileExistsError:
        return False
    return True


def _discard(temporary: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)
