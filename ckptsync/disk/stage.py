"""Staging: the one hidden directory beside output_dir where ckptsync keeps what is its own.

    .<output_dir>.ckptsync/
        linked/<step>@<fingerprint>/   hard links of a step being uploaded: the trainer's rotation cannot tear it
        held/<step>@<fingerprint>/     the same through files held open, where links are refused; dies with the process
        restore/<step>#<random>/       a step on its way back
        superseded/<step>.<stamp>/     step directories that a pull moved aside; never touched again by us
        trash/<step>#<random>/         step directories on their way out (trash.py)
        tmp/                           whatever is half made; emptied at start-up

A hard link is no snapshot: a file rewritten in place changes under it too, so the upload checks its digest.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from blake3 import blake3

from ckptsync.disk import durable, syscalls
from ckptsync.disk.durable import crash_point
from ckptsync.disk.faults import guarded, other_mount
from ckptsync.disk.scan import file_stat
from ckptsync.errors import ConfigError, StepChanged
from ckptsync.model.step import Listing

__all__ = ["Protection", "Staged", "Staging", "free_bytes"]

_SPARE_DESCRIPTORS = 256  # left to the rest of the process


class Protection(str, Enum):
    """What keeps a staged step readable when the trainer deletes it."""

    LINKED = "linked"
    HELD = "held"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Staged:
    """A step that is staged.

    Attributes:
        key: what `Staging.release` takes.
        listing: the step as listed, with the `path` to read it from.
        protection: how it is kept from the trainer's rotation.
        why: why it is not hard-linked, for `status`; "" if it is.
    """

    key: str
    listing: Listing
    protection: Protection
    why: str = ""


class Staging:
    """The staging directory of one output_dir, created on demand. Used under the run's lock.

    Args:
        output_dir: the directory of the step directories.
    """

    def __init__(self, output_dir: str) -> None:
        self._output_dir = os.path.abspath(output_dir)
        parent, name = os.path.split(self._output_dir)
        self.root = os.path.join(parent, f".{name}.ckptsync")
        self._held: dict[str, list[int]] = {}

    @property
    def temp_dir(self) -> str:
        """Where half-made files and links live; made on demand. Raises as `ensure`."""
        return self._dir("tmp")

    def ensure(self) -> None:
        """Create the directory (and output_dir), and try whether files can be renamed between the two.

        Raises:
            ConfigError: it cannot be created, belongs to somebody else, or lies on another mount.
            NoSpaceError, CkptsyncError: as the disk says.
        """
        durable.make_dirs(self._output_dir)
        durable.make_dirs(self.root, 0o700)
        self._require_ours()
        if syscalls.rename_crosses(self.root, self._output_dir):
            raise other_mount(self._output_dir, self.root)

    def stage(self, listing: Listing) -> Staged:
        """Protect a step from the trainer's rotation; again for the same files gives the same.

        Raises:
            StepChanged: a file vanished or moved.
            ConfigError, NoSpaceError, CkptsyncError: as `ensure`.
        """
        key = f"{listing.name}@{_fingerprint(listing)}"
        path = os.path.join(self._dir("linked"), key)
        with _vanishing():
            refusal = None if os.path.isdir(path) else self._link_tree(listing, key)
            if refusal is not None:
                return self._hold(listing, key, refusal.value)
            return Staged(key, _moved(listing, path), Protection.LINKED)

    def release(self, key: str) -> None:
        """Give a staged step up; absent is success. Raises as `durable.remove_tree`."""
        for descriptor in self._held.pop(key, []):
            os.close(descriptor)
        for kind in ("linked", "held"):
            self._discard(os.path.join(self.root, kind, key))

    def staged(self) -> tuple[str, ...]:
        """The keys of complete link trees, also those of earlier processes, and of steps held open; sorted."""
        return tuple(sorted({*self._names("linked"), *self._held}))

    def path_of(self, key: str) -> str:
        """Where a step of `staged` can be read."""
        return os.path.join(self.root, "held" if key in self._held else "linked", key)

    def new_restore(self, name: str) -> str:
        """A fresh directory (0700) to restore the step directory `name` in. Raises as `ensure`."""
        path = durable.temporary_name(os.path.join(self._dir("restore"), name))
        durable.make_dirs(path, 0o700)
        return path

    def new_trash(self, name: str) -> str:
        """A free name in the trash to move the step directory `name` to. Raises as `ensure`."""
        return durable.temporary_name(os.path.join(self._dir("trash"), name))

    def trashed(self) -> tuple[str, ...]:
        """The paths of what is in the trash. Raises as the disk says."""
        return tuple(os.path.join(self.root, "trash", name) for name in self._names("trash"))

    def superseded_path(self, name: str, stamp: str) -> str:
        """A free name to move the step directory `name` to. Raises as `ensure`.

        Args:
            name: of the step directory.
            stamp: when, as people read it ("20250131T120000Z").
        """
        path = os.path.join(self._dir("superseded"), f"{name}.{stamp}")
        count = 1
        candidate = path
        while os.path.lexists(candidate):
            count += 1
            candidate = f"{path}.{count}"
        return candidate

    def repair(self) -> None:
        """Remove what killed processes left half made; the caller holds the run's lock. Doing it twice does no harm.

        Complete link trees stay (`staged` names them), and so does everything superseded.
        """
        for kind in ("tmp", "restore", "held"):
            for name in self._names(kind):
                if name not in self._held:
                    durable.remove_tree(os.path.join(self.root, kind, name), within=self.root)

    def close(self) -> None:
        """Close what is held open. Link trees stay for the next process."""
        for key in list(self._held):
            self.release(key)

    def _dir(self, kind: str) -> str:
        self.ensure()
        path = os.path.join(self.root, kind)
        durable.make_dirs(path, 0o700)
        _refuse_link(path)
        self._give_away(path)
        return path

    def _names(self, kind: str) -> list[str]:
        path = os.path.join(self.root, kind)
        _refuse_link(path)
        with guarded("cannot read the staging directory", path), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(path))
        return []

    def _require_ours(self) -> None:
        found = os.lstat(self.root)
        what, remedy = "cannot use the staging directory", "move it away, or run as the user that owns output_dir"
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigError(what, where=self.root, why="it is not a directory", remedy=remedy)
        if os.geteuid() not in (0, found.st_uid):
            raise ConfigError(what, where=self.root, why=f"it belongs to uid {found.st_uid}", remedy=remedy)
        if stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
            with guarded(what, self.root):
                os.chmod(self.root, stat.S_IRWXU)
        self._give_away(self.root)

    def _give_away(self, path: str) -> None:
        """As root: to the owner of output_dir, so that the daemon can work here as that user later."""
        owner, found = os.stat(self._output_dir), os.lstat(path)
        if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (found.st_uid, found.st_gid):
            with guarded("cannot give the staging directory to the owner of output_dir", path):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def _link_tree(self, listing: Listing, key: str) -> durable.LinkRefusal | None:
        """Link every file under a temporary name, then rename the tree; None = done. FileNotFoundError passes."""
        half = durable.temporary_name(os.path.join(self._dir("tmp"), "link"))
        try:
            _make_tree(half, listing)
            for path in listing.files:
                refusal = durable.hard_link(os.path.join(listing.path, path), os.path.join(half, path))
                if refusal is not None:
                    return refusal
                crash_point("stage.linked-one")
            crash_point("stage.before-rename")
            durable.move_dir(half, os.path.join(self.root, "linked", key))
            return None
        finally:
            self._discard(half)

    def _hold(self, listing: Listing, key: str, why: str) -> Staged:
        """Open every file, and make a tree of links to our descriptors: they read what was there, deleted or not."""
        tree = os.path.join(self._dir("held"), key)
        if key not in self._held:
            if not _descriptors_suffice(len(listing.files)):
                return Staged(key, listing, Protection.NONE, f"{why}; too many files to hold open")
            try:
                self._open_tree(listing, key, tree)
            except FileNotFoundError:
                raise
            except OSError as error:
                return Staged(key, listing, Protection.NONE, f"{why}; {os.strerror(error.errno or 0)}")
        return Staged(key, _moved(listing, tree), Protection.HELD, why)

    def _open_tree(self, listing: Listing, key: str, tree: str) -> None:
        held = self._held[key] = []
        try:
            _make_tree(tree, listing)
            for path in listing.files:
                source = os.path.join(listing.path, path)
                held.append(os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
                durable.make_link(f"/proc/self/fd/{held[-1]}", os.path.join(tree, path))
        except BaseException:
            self.release(key)
            raise

    def _discard(self, path: str) -> None:
        durable.remove_tree(path, within=self.root)


def _refuse_link(path: str) -> None:
    if os.path.islink(path):
        what, why = "cannot use the staging directory", "it is a link, and leads elsewhere"
        raise ConfigError(what, where=path, why=why, remedy="move it away")


@contextlib.contextmanager
def _vanishing() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        what = "a file of the step vanished while it was staged"
        raise StepChanged(what, where=str(error.filename)) from error


def _make_tree(root: str, listing: Listing) -> None:
    with guarded("cannot stage a step", root):
        os.mkdir(root, 0o700)
        for path in sorted(set(listing.dirs) - {""}):
            os.mkdir(os.path.join(root, path), 0o700)


def _moved(listing: Listing, path: str) -> Listing:
    """`listing` at its staged `path`, with the stats it has now.

    Taken afresh because a link made and a name deleted cancel out in the link count, and only a changed count
    explains a changed ctime.
    """
    files = {name: file_stat(os.stat(os.path.join(path, name))) for name in listing.files}
    for name, found in files.items():
        if not found.unchanged_since(listing.files[name]):
            what = "a file of the step changed while it was staged"
            raise StepChanged(what, where=os.path.join(listing.path, name), remedy="it is taken again once it is quiet")
    return replace(listing, path=path, files=files)


def free_bytes(path: str) -> int:
    """Bytes that this user may still write to the file system of `path`, or of its nearest parent that exists.

    Raises:
        ConfigError, CkptsyncError: the file system does not answer.
    """
    path = os.path.abspath(path)
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    with guarded("cannot tell the free space", path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _fingerprint(listing: Listing) -> str:
    """Names the very files of a listing: 16 hex digits."""
    whole = blake3()
    for path, found in sorted(listing.files.items()):
        whole.update(os.fsencode(path) + b"\0%d %d %d %d\0" % (found.dev, found.inode, found.size, found.mtime_ns))
    return whole.hexdigest(8)


def _descriptors_suffice(count: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + _SPARE_DESCRIPTORS > soft:
        with contextlib.suppress(OSError, ValueError):
            wanted = min(count + _SPARE_DESCRIPTORS, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
            soft = max(soft, wanted)
    return count + _SPARE_DESCRIPTORS <= soft
