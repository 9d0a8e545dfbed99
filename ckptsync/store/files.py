"""A directory as a store: the embedded default, or a file system that all nodes mount.

Puts go through disk/durable.py: all or nothing, on the disk when they return, one winner among creators. What a
killed put leaves behind has a name that no list shows. Permissions follow the umask: on a shared mount the group may
read what others wrote.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence

from ckptsync.disk import durable
from ckptsync.errors import StoreError
from ckptsync.store import keys
from ckptsync.store.base import Blob, Capabilities, ObjectMeta
from ckptsync.store.faults import incomplete, local_faults, missing, too_large

__all__ = ["FileStore"]

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class FileStore:
    """The Store protocol over a directory, which is created at the first put.

    Args:
        root: the directory, absolute.
        url: how messages name it.
    """

    def __init__(self, root: str, *, url: str) -> None:
        self._root, self._url = root, url
        self._capabilities = Capabilities(atomic_create=True)

    def __repr__(self) -> str:
        return f"FileStore({self._url!r})"

    @property
    def url(self) -> str:
        """The store as the user wrote it."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """One winner per created key."""
        return self._capabilities

    def put_new(self, key: str, data: Blob) -> bool:
        """Create `key` if it is absent. True = created, False = something is there already."""
        with local_faults("cannot create an object", self._where(key)):
            return durable.publish_new(self._path(key), data)

    def put(self, key: str, data: Blob) -> None:
        """Create or replace `key`."""
        with local_faults("cannot write an object", self._where(key)):
            durable.publish(self._path(key), data)

    def get(self, key: str, *, max_size: int) -> bytes:
        """The whole object. Raises KeyMissing; CorruptObject if it is larger than `max_size` bytes."""
        with local_faults("cannot read an object", self._where(key)):
            descriptor = self._open(key)
            with os.fdopen(descriptor, "rb") as file:
                size = os.fstat(descriptor).st_size
                if size > max_size:
                    raise too_large(self._where(key), size, max_size)
                data = file.read(size + 1)
        if len(data) != size:
            raise incomplete(self._where(key), len(data), size)
        return data

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, None if absent."""
        with local_faults("cannot look at an object", self._where(key)):
            try:
                found = os.lstat(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return ObjectMeta(key, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every object below `prefix + "/"`, in key order; files that cannot be ours are passed over."""
        with local_faults("cannot list", self._where(prefix)):
            found = list(self._walk(keys.check_prefix(prefix)))
        return iter(found)

    def children(self, prefix: str) -> tuple[str, ...]:
        """The next path components below `prefix + "/"` that have something below them, sorted."""
        with local_faults("cannot list", self._where(prefix)):
            entries = self._entries(keys.check_prefix(prefix))
            directories = [(key, entry.name) for key, entry in entries if entry.is_dir(follow_symlinks=False)]
            return tuple(sorted(name for key, name in directories if next(self._walk(key), None) is not None))

    def delete(self, key: str) -> None:
        """Remove `key`; absent is success."""
        path = self._path(key)
        with local_faults("cannot delete an object", self._where(key)):
            durable.remove(path)

    def clear_leftovers(self, prefix: str, before_ns: int, *, dry_run: bool = False) -> int:
        """Delete what puts below a prefix left behind when they were killed before `before_ns`; returns its bytes."""
        freed = 0
        with local_faults("cannot delete leftovers", self._where(prefix)):
            for directory, _, names in os.walk(self._path(prefix)):
                for path in (os.path.join(directory, name) for name in names if durable.is_temporary_name(name)):
                    found = _regular(path)
                    if found is None or found.st_mtime_ns >= before_ns:
                        continue
                    freed += found.st_size
                    if not dry_run:
                        durable.remove(path)
        return freed

    def _open(self, key: str) -> int:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in _ABSENT:
                raise missing(self._where(key)) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise missing(self._where(key))
        return descriptor

    def _walk(self, prefix: str) -> Iterator[ObjectMeta]:
        for key, entry in self._entries(prefix):
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(key)
            elif entry.is_file(follow_symlinks=False):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted since it was listed
                    continue
                yield ObjectMeta(key, found.st_size, found.st_mtime_ns)

    def _entries(self, prefix: str) -> Sequence[tuple[str, os.DirEntry[str]]]:
        """What lies directly below a prefix, in key order: a directory sorts by its name and a slash."""
        try:
            with os.scandir(self._path(prefix) if prefix else self._root) as scan:
                entries = [entry for entry in scan if keys.is_valid(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        entries.sort(key=lambda entry: entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name)
        return [(f"{prefix}/{entry.name}" if prefix else entry.name, entry) for entry in entries]

    def _path(self, key: str) -> str:
        path = f"{self._root}/{keys.check(key)}"
        if len(os.fsencode(path)) >= os.pathconf("/", "PC_PATH_MAX"):
            what = "path too long"
            raise StoreError(what, where=self._where(key), remedy="use a shorter directory")
        return path

    def _where(self, key: str) -> str:
        return f"{self._url.rstrip('/')}/{key}"


def _regular(path: str) -> os.stat_result | None:
    """What stat says of a regular file; None = it is none, or is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
