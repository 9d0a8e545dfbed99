"""Making the files of a save in a fresh private directory, byte for byte, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from ckptsync.chunks.pool import run_bounded
from ckptsync.chunks.transfer import get_chunk
from ckptsync.disk import durable
from ckptsync.disk.faults import guarded
from ckptsync.disk.pieces import Piece, read_pieces
from ckptsync.disk.place import Tree, copy_range, write_at
from ckptsync.disk.read import FileSource, read_file
from ckptsync.errors import CorruptObject
from ckptsync.model.manifest import ChunkRef, DirEntry, FileEntry, LinkEntry
from ckptsync.model.merge import Union
from ckptsync.store import keys
from ckptsync.sync.remote import Remote

__all__ = ["Fetched", "LocalContent", "Target", "Transfer", "digest_of_file", "restore"]

Patch = tuple[str, int, int, int]
"""(path, offset in the file, offset in the chunk, length), bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to make: the files, links and directories of a union, without the dropped ones.

    `chunks` and `patches` are keyed by the chunk's digest.
    """

    files: Mapping[str, FileEntry]
    links: Mapping[str, LinkEntry]
    dirs: Mapping[str, DirEntry]
    chunks: Mapping[str, ChunkRef]
    patches: Mapping[str, tuple[Patch, ...]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    @classmethod
    def of(cls, union: Union, dropped: Callable[[str], bool]) -> Target:
        """The target of a union."""
        chunks: dict[str, ChunkRef] = {}
        patches: dict[str, list[Patch]] = {}
        files = {path: pair for path, pair in union.files.items() if not dropped(path)}
        for path, (part, entry) in sorted(files.items()):
            offset = 0
            for extent in entry.extents:
                ref = part.chunks[extent.chunk]
                chunks.setdefault(ref.digest, ref)
                patches.setdefault(ref.digest, []).append((path, offset, extent.offset, extent.length))
                offset += extent.length
        return cls(
            {path: entry for path, (_, entry) in files.items()},
            {path: link for path, link in union.links.items() if not dropped(path)},
            union.dirs,
            chunks,
            {digest: tuple(found) for digest, found in patches.items()},
        )


@dataclass(frozen=True, slots=True)
class LocalContent:
    """What verified saves on this disk can give: whole files by digest, chunks by digest. Absolute paths."""

    files: Mapping[str, str] = field(default_factory=dict)
    chunks: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    def chunk(self, digest: str) -> bytes | None:
        """The chunk's bytes if the disk still has them, compared with the digest."""
        try:
            raw = read_pieces("/", self.chunks.get(digest, ()))
        except OSError:
            return None
        return raw if raw and blake3(raw).hexdigest() == digest else None


@dataclass(frozen=True, slots=True)
class Transfer:
    """How to fetch: parallel chunks, bytes in flight, when to stop, and whom to tell the bytes that are in place."""

    workers: int = 4
    budget_bytes: int = 48 * 1024 * 1024
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None


@dataclass(slots=True)
class Fetched:
    """Raw bytes that came from the store, and from this disk."""

    from_store: int = 0
    from_disk: int = 0


def restore(
    target: Target, root: str, remote: Remote, local: LocalContent, transfer: Transfer, owner: tuple[int, int] | None
) -> Fetched:
    """Fill the empty directory `root`; on return all is checked, dated and durable.

    Args:
        target: what to make.
        root: fresh, private.
        remote: where chunks come from.
        local: content that need not be fetched.
        transfer: how to fetch.
        owner: (uid, gid) of what is made, for root.

    Raises:
        CorruptObject: a chunk or a file is not what the manifest says.
        NoSpaceError, StoreError, Interrupted: `root` is incomplete; the caller removes it.
    """
    fetched = Fetched()
    with Tree(root, owner) as tree:
        copied = set()
        for path, entry in target.files.items():
            descriptor = tree.create(path, size=entry.size)
            try:
                if _copy(local.files.get(entry.digest), descriptor, entry):
                    copied.add(path)
                    fetched.from_disk += entry.size
                    transfer.progress(entry.size)
            finally:
                os.close(descriptor)
        _fetch(target, root, remote, local, transfer, copied, fetched)
        _check(target.files.values(), root)
        _finish(target, tree)
    durable.fsync_tree(root, target.files, target.dirs)
    return fetched


def _copy(source: str | None, descriptor: int, entry: FileEntry) -> bool:
    """Copy (reflink, where the file system can) a whole local file; its bytes are checked with all others later."""
    if source is None or not entry.size:
        return False
    try:
        if digest_of_file(source) != entry.digest:
            return False
        with FileSource(source) as file:
            return copy_range(file.fd, 0, descriptor, 0, entry.size) == entry.size
    except OSError:
        return False  # the store has it, too


def _fetch(
    target: Target,
    root: str,
    remote: Remote,
    local: LocalContent,
    transfer: Transfer,
    copied: Collection[str],
    fetched: Fetched,
) -> None:
    patches = {digest: [p for p in found if p[0] not in copied] for digest, found in target.patches.items()}
    wanted = sorted((digest for digest, found in patches.items() if found), key=lambda digest: patches[digest][0][:2])

    def work(digest: str) -> bool:
        ref, raw = target.chunks[digest], local.chunk(digest)
        reused = raw is not None
        if raw is None:
            raw = get_chunk(remote.store, keys.chunk_key(remote.run, ref.key), ref)
        for path, offset, start, length in patches[digest]:
            _write(os.path.join(root, path), offset, memoryview(raw)[start : start + length])
        return reused

    def done(digest: str, reused: bool) -> None:
        size = sum(patch[3] for patch in patches[digest])
        if reused:
            fetched.from_disk += size
        else:
            fetched.from_store += size
        transfer.progress(size)

    run_bounded(
        wanted,
        work,
        workers=transfer.workers,
        budget_bytes=transfer.budget_bytes,
        cost=lambda digest: target.chunks[digest].size,
        stop=transfer.stop,
        done=done,
    )


def _write(path: str, offset: int, data: memoryview) -> None:
    """Into a file that the tree created: the directory is private to this process until it is renamed."""
    with guarded("cannot write a file", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_at(descriptor, data, offset)
        finally:
            os.close(descriptor)


def _check(files: Iterable[FileEntry], root: str) -> None:
    """The assembled files against their own digests: what was written, not what was meant."""
    for entry in files:
        if digest_of_file(os.path.join(root, entry.path)) != entry.digest:
            raise CorruptObject("a restored file is not what its manifest says", where=entry.path, why="digest differs")


def digest_of_file(path: str) -> str:
    """BLAKE3 of a whole file. Raises OSError."""
    hasher = blake3()
    for _, window in read_file(path):
        hasher.update(window)
    return hasher.hexdigest()


def _finish(target: Target, tree: Tree) -> None:
    """Links, modes and times. Directories children first: an entry that is made moves its directory's mtime."""
    for path in target.dirs:
        if path:
            tree.make_dir(path)
    for path, link in target.links.items():
        tree.make_link(path, link.target)
    for path, entry in target.files.items():
        descriptor = os.open(os.path.join(tree.root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            tree.finish_file(descriptor, mode=entry.mode, mtime_ns=entry.mtime_ns)
        finally:
            os.close(descriptor)
    for path, directory in sorted(target.dirs.items(), reverse=True):
        tree.finish_dir(path, mode=directory.mode, mtime_ns=directory.mtime_ns)
