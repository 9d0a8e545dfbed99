"""Making the files of a save in a fresh private directory, byte for byte, or not at all."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from blake3 import blake3

from ckptsync.chunks.pool import run_bounded
from ckptsync.chunks.transfer import get_chunk
from ckptsync.disk import durable
from ckptsync.disk.pieces import Piece, read_pieces
from ckptsync.disk.place import Tree, clone
from ckptsync.disk.read import FileSource, read_file
from ckptsync.errors import CorruptObject, Interrupted
from ckptsync.model.manifest import ChunkRef, DirEntry, FileEntry, LinkEntry
from ckptsync.model.merge import Union
from ckptsync.peers.base import Peers
from ckptsync.peers.holdings import Holdings
from ckptsync.store import keys
from ckptsync.sync.assemble import Assembly, Patch
from ckptsync.sync.remote import Remote

__all__ = ["Fetched", "LocalContent", "Target", "Transfer", "digest_of_file", "restore"]

Origin = Literal["disk", "peer", "store"]
_DISK: Origin = "disk"


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
    """How to fetch: parallel chunks, bytes in flight, when to stop, and whom to tell the bytes that are in place.

    With other nodes to take from (`peers`) there are as many chunks and bytes again on their way from them.
    """

    workers: int = 4
    budget_bytes: int = 48 * 1024 * 1024
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    peers: Peers | None = None


@dataclass(slots=True)
class Fetched:
    """Raw bytes by where they came from; what was wrong on this disk and was fetched then counts twice."""

    from_store: int = 0
    from_disk: int = 0
    from_peers: int = 0

    def add(self, origin: Origin, size: int) -> None:
        """Count bytes."""
        if origin == "disk":
            self.from_disk += size
        elif origin == "peer":
            self.from_peers += size
        else:
            self.from_store += size


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
        work = _Restore(target, Assembly(tree, target.files), remote, local, transfer)
        if transfer.peers is not None:
            work.give_from(transfer.peers.holdings, root)
        fetched = work.run()
        _finish(target, tree)
    durable.fsync_tree(root, target.files, target.dirs)
    return fetched


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to be done in a thread: bytes of files it fills; where they came from is what it tells.

    `digest` is that of the chunk, "" = it only looks at what is here.
    """

    size: int
    memory: int
    act: Callable[[], Origin]
    digest: str = ""


class _Restore:
    """One restore. What was copied unseen on this disk and turns out wrong comes from the store after all."""

    def __init__(
        self, target: Target, assembly: Assembly, remote: Remote, local: LocalContent, transfer: Transfer
    ) -> None:
        self._target, self._assembly, self._remote = target, assembly, remote
        self._local, self._transfer = local, transfer
        self._unseen: set[str] = set()  # paths of files with content that was copied without a look at it
        self._fetched = Fetched()
        self._counting = threading.Lock()
        self._expect: Callable[[Iterable[str]], None] = lambda _: None
        self._placed: Callable[[ChunkRef], None] = lambda _: None

    def give_from(self, holdings: Holdings, root: str) -> None:
        """Let other nodes have what comes."""
        name = holdings.root(root)

        def placed(ref: ChunkRef) -> None:
            holdings.placed(ref.digest, name, _pieces(self._target.patches[ref.digest], ref.size))

        self._expect, self._placed = holdings.expect, placed

    def run(self) -> Fetched:
        cloned = self._assembly.prepare(self._local.clone)
        self._unseen.update(cloned)
        checks = [_Job(self._target.files[path].size, 0, partial(self._check, path)) for path in cloned]
        jobs = self._jobs(lambda path: path not in self._unseen)
        self._expect(job.digest for job in jobs)
        self._do([*checks, *jobs], self._transfer.progress)
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
                digest,
            )
            for digest, patches in sorted(found.items(), key=lambda item: item[1][0][:2])
        ]

    def _do(self, jobs: Collection[_Job], progress: Callable[[int], None]) -> None:
        peers = self._transfer.peers
        if peers is None or peers.alone:
            self._run(jobs, progress, self._transfer.stop)
            return
        lanes: tuple[list[_Job], list[_Job]] = ([], [])
        for job in jobs:
            fetched = job.digest and job.digest not in self._local.chunks
            lanes[0 if fetched and peers.mine(job.digest) else 1].append(job)
        self._side_by_side(lanes, progress)

    def _side_by_side(self, lanes: Iterable[Collection[_Job]], progress: Callable[[int], None]) -> None:
        """What the others wait for does not wait for them: so each node gets on, and none for another's turn."""
        over = threading.Event()

        def stop() -> bool:
            return over.is_set() or self._transfer.stop()

        with ThreadPoolExecutor(2, thread_name_prefix="lane") as pool:
            running = [pool.submit(self._run, lane, progress, stop) for lane in lanes]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                over.set()  # one that failed ends the other, which says that it was interrupted
        for lane in sorted(running, key=lambda lane: isinstance(lane.exception(), Interrupted)):
            lane.result()

    def _run(self, jobs: Collection[_Job], progress: Callable[[int], None], stop: Callable[[], bool]) -> None:
        def done(job: _Job, origin: Origin) -> None:
            with self._counting:
                self._fetched.add(origin, job.size)
                progress(job.size)

        run_bounded(
            jobs,
            lambda job: job.act(),
            workers=self._transfer.workers,
            budget_bytes=self._transfer.budget_bytes,
            cost=lambda job: job.memory,
            stop=stop,
            done=done,
        )

    def _check(self, path: str) -> Origin:
        self._assembly.check(path)
        return "disk"

    def _chunk(self, digest: str, patches: Collection[Patch]) -> Origin:
        """Bring a chunk into its files: from this disk, else from a peer, else from the store."""
        ref, origin = self._target.chunks[digest], _DISK
        if not self._copy(digest, patches):
            raw, origin = self._bytes(ref)
            self._assembly.write(patches, memoryview(raw))
        self._placed(ref)
        return origin

    def _bytes(self, ref: ChunkRef) -> tuple[bytes | memoryview, Origin]:
        """The chunk, checked, and where it came from."""
        peers = self._transfer.peers
        if (held := self._local.chunk(ref.digest)) is not None:
            return held, "disk"
        if peers is not None and (given := peers.get(ref)) is not None:
            return given, "peer"
        begun = time.monotonic()
        raw = get_chunk(self._remote.store, keys.chunk_key(self._remote.run, ref.key), ref)
        if peers is not None:
            peers.fetched(time.monotonic() - begun, ref.size)
        return raw, "store"

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


def _pieces(patches: Iterable[Patch], size: int) -> Sequence[Piece]:
    """The ranges of files that make up a chunk; () = not all of it is in a file of the target."""
    found: list[Piece] = []
    covered = 0
    for path, offset, start, length in sorted(patches, key=lambda patch: patch[2]):
        if start == covered:  # a second file with the same content adds nothing
            found.append((path, offset, length))
            covered += length
    return tuple(found) if covered == size else ()


def _finish(target: Target, tree: Tree) -> None:
    """Links, modes and times. Directories children first: an entry that is made moves its directory's mtime."""
    for path in target.dirs:
        if path:
            tree.make_dir(path)
    for path, link in target.links.items():
        tree.make_link(path, link.target)
    for path, directory in sorted(target.dirs.items(), reverse=True):
        tree.finish_dir(path, mode=directory.mode, mtime_ns=directory.mtime_ns)
