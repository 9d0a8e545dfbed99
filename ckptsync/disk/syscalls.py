"""The few Linux calls that Python's os module does not have or not in this way."""

from __future__ import annotations

import errno
import fcntl
import os
import platform

__all__ = ["idle_io", "reflink", "rename_crosses", "rename_noreplace"]

_RENAME_NOREPLACE = 1  # linux/fs.h
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_AT_FDCWD = -100  # linux/fcntl.h
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # asm/unistd.h
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13  # linux/ioprio.h


def rename_noreplace(source: str, target: str) -> bool:
    """Rename unless `target` exists.

    Returns:
        True = renamed; False = this kernel, C library or file system cannot do that.

    Raises:
        FileExistsError: `target` is there, be it an empty directory or a dangling link.
        OSError: as rename(2).
    """
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


def rename_crosses(source_dir: str, target_dir: str) -> bool:
    """Whether a rename between two directories would cross file systems or mounts, found out by trying.

    The target is "target_dir/.": the kernel compares the mounts before it refuses that name, so nothing can move.
    Equal st_dev proves nothing: two mounts of one file system have it, too.
    """
    if os.stat(source_dir).st_dev != os.stat(target_dir).st_dev:
        return True
    try:
        os.rename(os.path.join(source_dir, "."), os.path.join(target_dir, "."))
    except OSError as error:
        return error.errno == errno.EXDEV
    return False


def reflink(source_fd: int, target_fd: int) -> bool:
    """Make the file `target_fd` share the blocks of the file `source_fd`. False = not possible between these two."""
    try:
        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except OSError:
        return False
    return True


def idle_io() -> bool:
    """Let the disk serve everybody else before the calling thread. False = refused, or unknown on this machine."""
    import ctypes  # noqa: PLC0415 - slow to load, needed only for this

    call, number = getattr(ctypes.CDLL(None), "syscall", None), _IOPRIO_SET.get(platform.machine())
    return call is not None and number is not None and call(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE) == 0
