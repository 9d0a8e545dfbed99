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
import stat
from collections.abc import Callable, Iterable

from ckptsync.disk import syscalls
from ckptsync.disk.faults import LinkRefusal, crash_point, guarded, link_refusal, other_mount
from ckptsync.disk.threads import call_each
from ckptsync.errors import CheckpointError, CkptsyncError, ConfigError, NoSpaceError, StepChanged

__all__ = [
    "LinkRefusal",
    "crash_point",
    "fsync_dir",
    "fsync_file",
    "fsync_tree",
    "hard_link",
    "is_temporary_name",
    "make_dirs",
    "make_link",
    "move_dir",
    "publish",
    "publish_new",
    "read_link",
    "remove",
    "remove_leftovers",
    "remove_link",
    "remove_tree",
    "rename_new",
    "replace_link",
    "temporary_name",
]

Beat = Callable[[], None]
_SYNCERS = 16
_TEMPORARY = re.compile(r"#[0-9a-f]{16}\Z")
_NO_DIR_FSYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def temporary_name(path: str) -> str:
    """A fresh name beside `path` that `is_temporary_name` knows and no reader takes for an object."""
    return f"{path}#{secrets.token_hex(8)}"


def is_temporary_name(name: str) -> bool:
    """Whether this module was killed over a file of this name."""
    return _TEMPORARY.search(name) is not None


def fsync_file(path: str) -> None:
    """Make the content of one regular file durable, whoever wrote it. Raises as `guarded`, and FileNotFoundError."""
    with guarded("cannot make a file durable", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not block us
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


def fsync_tree(root: str, files: Iterable[str], dirs: Iterable[str], *, beat: Beat = lambda: None) -> None:
    """Make a whole step durable: files, many at once for a journal's sake, then directories from the leaves up.

    Args:
        root: the step directory.
        files: regular files, relative to it.
        dirs: directories, relative to it; "" is the step directory itself.
        beat: called after each file: a slow disk is not a dead process.

    Raises:
        StepChanged: something vanished meanwhile.
        CheckpointError: the disk could not write it; what it holds now is unknown, so the step is not to be trusted.
        ConfigError: as `guarded`.
    """
    try:
        call_each(lambda path: fsync_file(os.path.join(root, path)), files, threads=_SYNCERS, after=beat)
        crash_point("fsync-tree.files-done")
        for path in sorted(dirs, key=lambda name: (-name.count("/") - bool(name), name)):
            fsync_dir(os.path.join(root, path))
    except FileNotFoundError as error:
        what = "the step changed while it was made durable"
        raise StepChanged(what, where=str(error.filename)) from error
    except (ConfigError, NoSpaceError):
        raise
    except CkptsyncError as error:
        what, remedy = "the disk lost data of a step", "check the disk; later steps are not affected"
        raise CheckpointError(what, where=error.where, why=error.why, remedy=remedy) from error


def make_dirs(path: str, mode: int = 0o777) -> None:
    """Create `path` and its missing parents durably; each new name is fsynced in the directory that holds it."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    make_dirs(os.path.dirname(path))
    try:
        with guarded("cannot create a directory", path), contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
    except FileNotFoundError as error:  # its parent is there: a file system that takes no directories, as /proc
        raise ConfigError("cannot create a directory", where=path, why=error.strerror or str(error)) from error
    crash_point("make-dirs.created")
    fsync_dir(os.path.dirname(path))


def publish_new(path: str, data: bytes | memoryview, *, mode: int = 0o666) -> bool:
    """Create `path` with `data`, all or nothing, durably; of several racing processes exactly one wins.

    Returns True if created, False if something was there already (made durable, too).

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
    data: bytes | memoryview,
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


def remove_leftovers(directory: str, *, prefix: str = "") -> None:
    """Unlink the temporary files and links that killed processes left in `directory`; the caller owns it (lock)."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            ours = entry.name.startswith(prefix) and is_temporary_name(entry.name)
            if ours and not entry.is_dir(follow_symlinks=False):
                _discard(entry.path)


def make_link(target: str, path: str, *, dir_fd: int | None = None) -> None:
    """Create the symbolic link `path` (below `dir_fd`), not yet durable. Raises as `guarded`."""
    with guarded("cannot create a link", path):
        os.symlink(target, path, dir_fd=dir_fd)


def replace_link(link_path: str, target: str, temp_dir: str) -> None:
    """Make `link_path` a symbolic link to `target`, atomically and durably.

    The new link is made under a temporary name in `temp_dir`, or, where a rename from there crosses mounts, beside
    `link_path` under a hidden name that no trainer's pattern matches.

    Raises:
        ConfigError: `link_path` is something other than a link (never replaced), or access is refused.
        NoSpaceError, CkptsyncError: as `guarded`.
    """
    link_path = os.path.abspath(link_path)
    directory, name = os.path.split(link_path)
    if read_link(link_path) != target:
        try:
            _rename_link_over(os.path.join(temp_dir, f".{name}"), target, link_path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _rename_link_over(os.path.join(directory, f".{name}"), target, link_path)
    crash_point("replace-link.before-dir-fsync")
    fsync_dir(directory)


def read_link(link_path: str) -> str | None:
    """What a link says; None if there is nothing. Raises ConfigError for anything that is not a link."""
    try:
        return os.readlink(link_path)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is not a symbolic link" if error.errno == errno.EINVAL else os.strerror(error.errno or 0)
        remedy = "move it away, or set another place in [promote] link"
        what = "cannot use the link"
        raise ConfigError(what, where=link_path, why=why, remedy=remedy) from error


def remove_link(link_path: str) -> None:
    """Unlink a symbolic link durably; absent is success. Raises ConfigError if it is something else."""
    if read_link(link_path) is not None:
        remove(link_path)


def hard_link(source: str, target: str) -> LinkRefusal | None:
    """Link the file `source` (links on the way are followed) to the new name `target`.

    Returns None if linked, else why links are refused here, so that the caller can do without.

    Raises:
        FileNotFoundError: `source` vanished. NoSpaceError, CkptsyncError: as `guarded`.
    """
    with guarded("cannot link a file", target):
        try:
            # link(2) would link a symbolic link itself; realpath looks at every component, for each of many files
            os.link(os.path.realpath(source) if os.path.islink(source) else source, target, follow_symlinks=False)
        except OSError as error:
            refusal = link_refusal(error)
            if refusal is None:
                raise
            return refusal
    return None


def move_dir(source: str, target: str) -> None:
    """Rename a directory to a name that must be free, durably on both sides.

    Raises:
        FileNotFoundError: `source` vanished.
        ConfigError: the two lie on different mounts, or access is refused.
        CkptsyncError: `target` exists, even as an empty directory or a dangling link.
    """
    with guarded("cannot move a directory", target):
        try:
            rename_new(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise other_mount(source, target) from error
    crash_point("move-dir.before-dir-fsync")
    for directory in {os.path.dirname(os.path.abspath(target)), os.path.dirname(os.path.abspath(source))}:
        fsync_dir(directory)


def remove_tree(path: str, *, within: str) -> None:
    """Delete a directory tree or file below `within`; links are deleted, never followed; absent is success.

    Raises:
        ValueError: `path` is not strictly inside `within`.
        ConfigError, CkptsyncError: as `guarded`.
    """
    path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path.rstrip("/")))
    root = os.path.realpath(within)
    if path == root or os.path.commonpath([path, root]) != root or os.path.basename(path) in ("", ".", ".."):
        msg = f"refusing to delete {path!r}: it is not inside {root!r}"
        raise ValueError(msg)
    with guarded("cannot delete", path), contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _empty(path)
            os.rmdir(path)
        else:
            os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        fsync_dir(os.path.dirname(path))


def rename_new(source: str, target: str) -> None:
    """Rename without ever replacing anything, not even an empty directory or a dangling link.

    Raises FileExistsError: `target` is there; OSError: as rename(2).
    """
    if syscalls.rename_noreplace(source, target):
        return
    if os.path.lexists(target):  # no such call here: the daemon's lock stands in for its atomicity
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(source, target)


def _write(path: str, data: bytes | memoryview, mode: int, owner: tuple[int, int] | None = None) -> None:
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


def _rename_link_over(temporary: str, target: str, link_path: str) -> None:
    """Raises OSError EXDEV for the caller to choose another place; everything else as `guarded`."""
    temporary = temporary_name(temporary)
    make_link(target, temporary)
    crash_point("replace-link.before-rename")
    try:
        os.replace(temporary, link_path)
    except OSError as error:
        _discard(temporary)
        if error.errno == errno.EXDEV:
            raise
        with guarded("cannot move the link", link_path):
            raise


def _empty(path: str) -> None:
    for _, dirs, files, descriptor in os.fwalk(path, topdown=False, follow_symlinks=False):
        if not os.fstat(descriptor).st_mode & stat.S_IWUSR:
            os.fchmod(descriptor, stat.S_IRWXU)
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
                crash_point("remove-tree.unlinked")
        for name in dirs:
            _remove_dir(name, descriptor)


def _remove_dir(name: str, dir_fd: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        try:
            os.rmdir(name, dir_fd=dir_fd)
        except NotADirectoryError:  # a link to a directory
            os.unlink(name, dir_fd=dir_fd)


def _discard(temporary: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)
