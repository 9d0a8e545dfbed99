"""Every store that obstore does not speak, through fsspec; and S3 through s3fs (`driver = "fsspec"`).

fsspec is made for reading data sets; three habits of it would lose checkpoints here, and are avoided:
its listing caches (switched off), `find` and `walk` that pass over directories they cannot list (we list ourselves),
and files that can be seen half written (a temporary name and a rename, where a put is not one request).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, Literal, cast

import fsspec
from fsspec.spec import AbstractFileSystem

from ckptsync.disk import durable
from ckptsync.errors import (
    CkptsyncError,
    ConfigError,
)
from ckptsync.store import keys
from ckptsync.store.base import Blob, Capabilities, ObjectMeta
from ckptsync.store.faults import (
    EXISTS_CODES,
    check_bucket,
    from_exception,
    incomplete,
    local_faults,
    missing,
    reply_of,
    too_large,
)
from ckptsync.store.options import StoreOptions, check_endpoint, parse_url

__all__ = ["FsspecStore", "open_fsspec"]

Writing = Literal["conditional", "durable", "locked", "request", "rename"]
"""How objects get into a file system.

conditional: one request, with If-None-Match. request: one request, create is a look and a put. rename: a temporary
name, then a rename. durable: a local directory. locked: this process's memory, under a lock.
"""
_ATOMIC: frozenset[Writing] = frozenset({"conditional", "durable", "locked"})

_S3 = frozenset({"s3", "s3a"})
_LOCAL = frozenset({"file", "local"})
_REQUEST = frozenset({"abfs", "abfss", "az", "cos", "gcs", "gs", "hf", "obs", "oci", "oss", "tos"})
_memory_lock = threading.Lock()


def open_fsspec(url: str, options: StoreOptions | None = None) -> FsspecStore:
    """The store behind any URL that an installed fsspec file system speaks. Makes no request yet, where that can be.

    Raises:
        ConfigError: the URL or an option cannot be, or the package for the scheme is not installed.
        StoreError: the file system wants to connect at once, and cannot.
    """
    options = options or StoreOptions()
    scheme = parse_url(url).scheme
    try:
        filesystem, root = fsspec.url_to_fs(url, skip_instance_cache=True, **_arguments(scheme, options))
    except (ImportError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise _unusable(url, why, "install what the scheme needs") from None
    except Exception as error:
        raise from_exception(error, "cannot connect", url) from error
    return FsspecStore(filesystem, str(root), url=url)


def _arguments(scheme: str, options: StoreOptions) -> dict[str, Any]:
    if scheme not in _S3:
        return {}
    client: dict[str, Any] = {"region_name": options.region} if options.region else {}
    if options.ca_file:
        client["verify"] = options.ca_file

    return {
        "anon": options.anonymous,
        "profile": options.profile,
        "endpoint_url": check_endpoint(options.endpoint),
        "use_listings_cache": False,
        "client_kwargs": client,
        "config_kwargs": {
            "connect_timeout": options.connect_timeout_s,
            "read_timeout": options.timeout_s,
            "retries": {"total_max_attempts": 1},
            "s3": {"addressing_style": options.addressing},
            # the newer default, a checksum trailer, is more than many compatible servers understand
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        },
    }


class FsspecStore:
    """The Store protocol over an fsspec file system.

    Args:
        filesystem: the file system; its caches and hidden retries are switched off here.
        root: the path in it below which all keys lie.
        url: how messages name it.

    Raises:
        ConfigError: the file system can neither put in one request nor rename.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str, *, url: str) -> None:
        self._fs, self._url = filesystem, url
        self._root = root.rstrip("/")
        self._writing = _writing_of(filesystem, url)
        self._capabilities = Capabilities(atomic_create=self._writing in _ATOMIC)
        if hasattr(filesystem, "dircache"):
            filesystem.dircache.use_listings_cache = False
        if self._writing == "conditional":
            filesystem.retries = 1  # a hidden retry of a create turns our own success into "exists"

    def __repr__(self) -> str:
        return f"FsspecStore({self._url!r})"

    @property
    def url(self) -> str:
        """The store as the user wrote it."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """`atomic_create` only where the protocol is known for it."""
        return self._capabilities

    def close(self) -> None:
        """Close the connections, where the file system keeps any; the store is of no use afterwards."""
        client = getattr(self._fs, "_s3", None)
        if client is not None:
            self._fs.close_session(self._fs.loop, client)

    def put_new(self, key: str, data: Blob) -> bool:
        """Create `key` if it is absent. True = created, False = something is there already."""
        path = self._path(key)
        with self._faults("cannot create an object", key):
            if self._writing == "conditional":
                return self._create_conditionally(path, data)
            if self._writing == "durable":
                with local_faults("cannot create an object", self._where(key)):
                    return durable.publish_new(path, data)
            with _memory_lock if self._writing == "locked" else contextlib.nullcontext():
                if self._fs.exists(path):
                    return False
                self._put(path, data)
        return True

    def put(self, key: str, data: Blob) -> None:
        """Create or replace `key`. Where a rename will not replace, the old object is deleted a moment before."""
        path = self._path(key)
        with self._faults("cannot write an object", key):
            if self._writing == "durable":
                with local_faults("cannot write an object", self._where(key)):
                    durable.publish(path, data)
            else:
                self._put(path, data)

    def get(self, key: str, *, max_size: int) -> bytes:
        """The whole object. Raises KeyMissing; CorruptObject if it is larger than `max_size` bytes."""
        path = self._path(key)
        meta = self.head(key)
        if meta is None:
            raise missing(self._where(key))
        if meta.size > max_size:
            raise too_large(self._where(key), meta.size, max_size)
        with self._faults("cannot read an object", key):
            try:
                data = bytes(self._fs.cat_file(path))
            except FileNotFoundError:
                raise missing(self._where(key)) from None
        if len(data) != meta.size:
            raise incomplete(self._where(key), len(data), meta.size)
        return data

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, None if absent."""
        path = self._path(key)
        with self._faults("cannot look at an object", key):
            try:
                info = self._fs.info(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                check_bucket(error, "cannot look at an object", self._where(key))
                return None
        return _meta(key, info) if info["type"] == "file" else None

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every object below `prefix + "/"`, in key order; objects that cannot be ours are passed over."""
        keys.check_prefix(prefix)
        with self._faults("cannot list", prefix):
            found = [_meta(key, info) for key, info in self._walk(prefix)]
        found.sort(key=lambda meta: meta.key)
        return iter(found)

    def children(self, prefix: str) -> tuple[str, ...]:
        """The next path components below `prefix + "/"` that have something below them, sorted."""
        keys.check_prefix(prefix)
        with self._faults("cannot list", prefix):
            below = [key for key, info in self._entries(prefix) if info["type"] == "directory"]
            full = [key for key in below if self._writing == "conditional" or any(self._walk(key))]
        return tuple(sorted(key.rpartition("/")[2] for key in full))

    def delete(self, key: str) -> None:
        """Remove `key`; absent is success."""
        path = self._path(key)
        with self._faults("cannot delete an object", key):
            try:
                self._fs.rm_file(path)
            except (FileNotFoundError, KeyError) as error:
                check_bucket(error, "cannot delete an object", self._where(key))

    def _create_conditionally(self, path: str, data: Blob) -> bool:
        try:
            self._fs.pipe_file(path, bytes(data), mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if reply_of(error)[1] in EXISTS_CODES:
                return False
            raise
        return True

    def _put(self, path: str, data: Blob) -> None:
        if self._writing != "rename":
            self._fs.pipe_file(path, bytes(data))
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        temporary = durable.temporary_name(path)
        try:
            self._fs.pipe_file(temporary, bytes(data))
            self._rename(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(temporary)
            raise

    def _rename(self, temporary: str, path: str) -> None:
        try:
            self._fs.mv(temporary, path)
        except Exception:
            if not (self._fs.exists(path) and self._fs.exists(temporary)):
                raise
            self._fs.rm_file(path)
            self._fs.mv(temporary, path)

    def _walk(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The objects below a prefix, in no order."""
        if self._writing == "conditional":  # one paged request for the whole tree, which raises
            yield from self._named(self._find(prefix), prefix)
            return
        todo = [prefix]
        while todo:
            for key, info in self._entries(todo.pop()):
                if info["type"] == "directory":
                    todo.append(key)
                elif info["type"] == "file":
                    yield key, info

    def _find(self, prefix: str) -> Iterable[dict[str, Any]]:
        try:
            return cast("dict[str, dict[str, Any]]", self._fs.find(self._directory(prefix), detail=True)).values()
        except FileNotFoundError as error:
            check_bucket(error, "cannot list", self._where(prefix))
            return []

    def _entries(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What lies directly below a prefix, in no order."""
        self._fs.invalidate_cache()
        try:
            listed = self._fs.ls(self._directory(prefix), detail=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            check_bucket(error, "cannot list", self._where(prefix))
            return iter(())
        return self._named(listed, prefix)

    def _named(self, listed: Iterable[dict[str, Any]], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        base = f"{self._root}/" if self._root else ""
        below = f"{prefix}/" if prefix else ""
        for info in listed:
            name = str(info["name"]).rstrip("/")
            key = name[len(base) :]
            if name.startswith(base + below) and keys.is_valid(key):
                yield key, info

    def _directory(self, prefix: str) -> str:
        return "/".join(part for part in (self._root, prefix) if part)

    def _path(self, key: str) -> str:
        return self._directory(keys.check(key))

    def _where(self, key: str) -> str:
        return f"{self._url.rstrip('/')}/{key}"

    @contextlib.contextmanager
    def _faults(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except CkptsyncError:
            raise
        except Exception as error:  # whatever some file system's own library throws
            raise from_exception(error, what, self._where(key)) from error


def _writing_of(filesystem: AbstractFileSystem, url: str) -> Writing:
    names = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    if names & _S3:
        return "conditional"
    if names & _LOCAL:
        return "durable"
    if "memory" in names:
        return "locked"
    if names & _REQUEST:
        return "request"
    if type(filesystem).mv is AbstractFileSystem.mv:  # that one copies, and what it writes can be seen half done
        why = f"{type(filesystem).__name__} can neither put in one request nor rename"
        raise _unusable(url, why, "use another store")
    return "rename"


def _unusable(url: str, why: str, remedy: str) -> ConfigError:
    return ConfigError("cannot use the store", where=url, why=why, remedy=remedy)


def _meta(key: str, info: dict[str, Any]) -> ObjectMeta:
    return ObjectMeta(key, int(info["size"]), _modified_ns(info))


def _modified_ns(info: dict[str, Any]) -> int | None:
    """Each file system has its own name for it."""
    for name in ("LastModified", "last_modified", "mtime", "modified"):
        value = info.get(name)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            return round(aware.timestamp() * 10**6) * 1000
        if isinstance(value, (int, float)):
            return round(value * 10**6) * 1000
    return None
