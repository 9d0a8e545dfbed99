"""Making the files of a save in a fresh private directory, byte for byte, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from blake3 import blake3

from ckptsync.chunks.pool import run_bounded
from ckptsync.chunks.transfer import get_chunk
from ckptsync.disk import durable
from ckptsync.disk.pieces import Piece, read_pieces
from ckptsync.disk.place import Tree, clone
from ckptsync.disk.read import FileSource, read_file
from ckptsync.errors import CorruptObject
from ckptsync.model.manifest import ChunkRef, DirEntry, FileEntry, LinkEntry
from ckptsync.model.merge import Union
from ckptsync.store import keys
from ckptsync.sync.assemble import Assembly, Patch
from ckptsync.sync.remote import Remote

__all__ = ["Fetched", "LocalContent", "Target", "Transfer", "digest_of_file", "restore"]


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

    def clone(self, entry: FileEntry, descriptor: int) -> bool:
        """Let the new file share the blocks of an equal local one, where the file system can; unchecked."""
        source = self.files.get(entry.digest)
        if source is None:
            return False
        try:
            with FileSource(source) as file:
                return clone(file.fd, descriptor, entry.size)
        except OSError:
            return False  # its chunks may be elsewhere on this disk, too

    def range(self, digest: str) -> Piece | None:
        """The one range of a file that holds the chunk, unchecked."""
        pieces = self.chunks.get(digest, ())
        return pieces[0] if len(pieces) == 1 else None

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
    """Raw bytes that came from the store, and from this disk; what was wrong here and fetched then counts twice."""

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
    with Tree(root, owner) as tree:
        fetched = _Restore(target, Assembly(tree, target.files), remote, local, transfer).run()
        _finish(target, tree)
    durable.fsync_tree(root, target.files, target.dirs)
    return fetched


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to be done in a thread: bytes of files it fills; whether they came from this disk is what it tells."""

    size: int
    memory: int
    act: Callable[[], bool]


class _Restore:
    """One restore. What was copied unseen on this disk and turns out wrong comes from the store after all."""

    def __init__(
        self, target: Target, assembly: Assembly, remote: Remote, local: LocalContent, transfer: Transfer
    ) -> None:
        self._target, self._assembly, self._remote = target, assembly, remote
        self._local, self._transfer = local, transfer
        self._unseen: set[str] = set()  # paths of files with content that was copied without a look at it
        self._fetched = Fetched()

    def run(self) -> Fetched:
        cloned = self._assembly.prepare(self._local.clone)
        self._unseen.update(cloned)
        checks = [_Job(self._target.files[path].size, 0, partial(self._check, path)) for path in cloned]
        self._do([*checks, *self._jobs(lambda path: path not in self._unseen)], self._transfer.progress)
        suspect = self._assembly.wrong & self._unseen
        if suspect:
            self._assembly.again(suspect)
            self._local = LocalContent()
            self._do(self._jobs(suspect.__contains__), lambda _: None)
        for path in sorted(self._assembly.wrong):
            raise CorruptObject("a restored file is not what its manifest says", where=path, why="digest differs")
        return self._fetched

    def _jobs(self, wanted: Callable[[str], bool]) -> list[_Job]:
        """A job for each chunk of the wanted files, in the order of the files."""
        found = {
            digest: patches
            for digest, all_patches in self._target.patches.items()
            if (patches := [patch for patch in all_patches if wanted(patch[0])])
        }
        return [
            _Job(
                sum(patch[3] for patch in patches),
                self._target.chunks[digest].size,
                partial(self._chunk, digest, patches),
            )
            for digest, patches in sorted(found.items(), key=lambda item: item[1][0][:2])
        ]

    def _do(self, jobs: Collection[_Job], progress: Callable[[int], None]) -> None:
        def done(job: _Job, reused: bool) -> None:
            if reused:
                self._fetched.from_disk += job.size
            else:
                self._fetched.from_store += job.size
            progress(job.size)

        run_bounded(
            jobs,
            lambda job: job.act(),
            workers=self._transfer.workers,
            budget_bytes=self._transfer.budget_bytes,
            cost=lambda job: job.memory,
            stop=self._transfer.stop,
            done=done,
        )

    def _check(self, path: str) -> bool:
        self._assembly.check(path)
        return True

    def _chunk(self, digest: str, patches: Collection[Patch]) -> bool:
        """Bring a chunk into its files; true = from this disk."""
        if self._copy(digest, patches):
            return True
        ref, held = self._target.chunks[digest], self._local.chunk(digest)
        raw = held or get_chunk(self._remote.store, keys.chunk_key(self._remote.run, ref.key), ref)
        self._assembly.write(patches, memoryview(raw))
        return held is not None

    def _copy(self, digest: str, patches: Collection[Patch]) -> bool:
        """Copy a chunk from the file that holds it: read once, in the file it was copied to."""
        piece = self._local.range(digest)
        if piece is None:
            return False
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(FileSource(piece[0]))
            except OSError:
                return False
            self._unseen.update([path for path, *_ in patches])
            self._assembly.copy(patches, source, piece[1])
        return True


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
    for path, directory in sorted(target.dirs.items(), reverse=True):
        tree.finish_dir(path, mode=directory.mode, mtime_ns=directory.mtime_ns)
