"""Files of a dataset, wherever the trainer reads them: on this machine's disks, or in an object store.

Only what is asked for is read: the end of a file, a few pieces of it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ckptsync.app import Node
from ckptsync.disk.read import FileSource
from ckptsync.errors import CkptsyncError, KeyMissing
from ckptsync.model.paths import rebased
from ckptsync.store.options import StoreOptions
from ckptsync.stores import open_bucket

__all__ = ["DataFile", "Place", "Unavailable", "expand", "open_file", "place_of"]

_SCHEMES = frozenset({"s3", "gs", "az"})
_GLOB = "*?["
_MATCHES_MAX = 10_000
_TIMEOUT_S = 5.0
_CONNECT_S = 1.5
_OPTIONS = StoreOptions(timeout_s=_TIMEOUT_S, connect_timeout_s=_CONNECT_S)


class Unavailable(Exception):
    """A file cannot be looked at.

    Attributes:
        code: `missing`, `denied`, `damaged`, or `unknown`: it may well be there, but not for us.
    """

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class DataFile(Protocol):
    """An open file. `local`: reading pieces of it costs next to nothing."""

    size: int
    local: bool

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length), fewer only where the file ends. Raises Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """How the trainer's paths are read from here.

    Attributes:
        cwd: where the trainer starts; relative paths begin there.
        inside, outside: a directory as the trainer sees it, and as we do (`[run] trainer_dir`, `output_dir`).
        options: how object stores are reached.
    """

    cwd: str = ""
    inside: str = "/"
    outside: str = "/"
    options: StoreOptions = _OPTIONS

    @property
    def mapped(self) -> bool:
        """The trainer sees other paths than we do."""
        return self.inside != self.outside

    def here(self, path: str) -> str:
        """A local path of the trainer's, as it is called here."""
        return rebased(os.path.join(self.cwd, os.path.expanduser(path)), self.inside, self.outside)


def place_of(node: Node, cwd: str) -> Place:
    """By this node's configuration: stores of data are reached as the checkpoints' store is."""
    run, upload = node.config.run, node.config.upload
    options = replace(
        _OPTIONS,
        endpoint=upload.endpoint,
        region=upload.region,
        profile=upload.profile,
        addressing=upload.addressing,
        ca_file=upload.ca_file,
    )
    return Place(cwd, run.trainer_dir, run.output_dir, options)


def expand(path: str, place: Place) -> tuple[str, ...]:
    """The files that a path of the trainer's configuration means, under the trainer's names; one without * is itself.

    Raises:
        Unavailable: the store cannot be listed.
    """
    if not any(sign in path for sign in _GLOB):
        return (path,)
    if _scheme(path) == "":
        here = place.here(path)
        found = sorted(glob.iglob(here))[:_MATCHES_MAX]
        return tuple(_as_written(path, here, each) for each in found)
    directory, _, pattern = path.rpartition("/")
    if any(sign in directory for sign in _GLOB):
        msg = "patterns are followed only in the last part of a name in a store"
        raise Unavailable("unknown", msg)
    with _store_faults():
        store = open_bucket(directory, place.options)
        names = [meta.key for meta in store.list("") if "/" not in meta.key]
    return tuple(f"{directory}/{name}" for name in fnmatch.filter(names, pattern)[:_MATCHES_MAX])


def _as_written(path: str, here: str, found: str) -> str:
    """A match under the directory that the configuration names, where that has no pattern itself."""
    directory = os.path.dirname(path)
    if any(sign in directory for sign in _GLOB) or os.path.dirname(here) != os.path.dirname(found):
        return found
    return os.path.join(directory, os.path.basename(found))


@contextlib.contextmanager
def open_file(path: str, place: Place) -> Iterator[DataFile]:
    """A file of the trainer's, open for reading.

    Raises:
        Unavailable: it is missing, not ours to read, or in a place that we do not know.
    """
    scheme = _scheme(path)
    if scheme == "":
        with _local_faults(), FileSource(place.here(path)) as source:
            yield _Local(source)
    elif scheme in _SCHEMES:
        yield _remote(path, place)
    else:
        msg = f"{scheme}:// is not read by ckptsync"
        raise Unavailable("unknown", msg)


class _Local:
    local = True

    def __init__(self, source: FileSource) -> None:
        self._source, self.size = source, source.size

    def read(self, offset: int, length: int) -> bytes:
        return self._source.read(offset, length)


class _Remote:
    local = False

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self.size, self._read = size, read

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        with _store_faults():
            return self._read(offset, length)


def _remote(path: str, place: Place) -> _Remote:
    directory, _, name = path.rpartition("/")
    with _store_faults():
        store = open_bucket(directory, place.options)
        meta = store.head(name)
        if meta is None:
            msg = "no such object"
            raise Unavailable("missing", msg)
    return _Remote(meta.size, lambda offset, length: store.get_range(name, offset, length))


def _scheme(path: str) -> str:
    scheme, mark, _ = path.partition("://")
    return scheme if mark else ""


@contextlib.contextmanager
def _store_faults() -> Iterator[None]:
    try:
        yield
    except KeyMissing as error:
        raise Unavailable("missing", str(error)) from None
    except (CkptsyncError, ValueError) as error:  # ValueError: a name that our stores do not have
        raise Unavailable("unknown", str(error)) from None


@contextlib.contextmanager
def _local_faults() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Unavailable("missing", "no such file") from None
    except PermissionError as error:
        raise Unavailable("denied", error.strerror or str(error)) from None
    except OSError as error:
        raise Unavailable("unknown", error.strerror or str(error)) from None
