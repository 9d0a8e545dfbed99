"""Bringing one step back: the plan says what will happen, and does exactly that once.

Order: free space, fetch and check, newer steps aside, rename into place, tracker, `latest`, remember.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckptsync.disk import durable
from ckptsync.disk.durable import crash_point
from ckptsync.disk.pieces import Piece
from ckptsync.disk.promote import Pointer
from ckptsync.disk.saves import Save, Saves
from ckptsync.disk.scan import list_step
from ckptsync.disk.stage import Staging, free_bytes
from ckptsync.disk.tracker import write_tracker
from ckptsync.errors import ConflictError, NoSpaceError
from ckptsync.layouts.base import Layout
from ckptsync.model.manifest import MODE_MASK, FileEntry, Part, pieces_of
from ckptsync.model.step import FileStat, Listing
from ckptsync.peers.base import Peers
from ckptsync.sync.choose import Choice
from ckptsync.sync.remote import Remote
from ckptsync.sync.restore import Fetched, LocalContent, Target, Transfer, digest_of_file, restore

__all__ = ["SCOPE_MARK", "Place", "PullPlan", "PullResult", "local_content", "plan_pull"]

SCOPE_MARK = "scope"
"""On a save that was restored in part: of which ranks."""
_SPARE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step goes: output_dir (or the directory named instead), its staging, and its pointer (None = off)."""

    output_dir: str
    staging: Staging
    pointer: Pointer | None


@dataclass(frozen=True, slots=True)
class PullResult:
    """What was done (the JSON of `pull`)."""

    step: int
    path: str
    files: int
    bytes_fetched: int
    bytes_reused: int
    bytes_from_peers: int
    aside: tuple[str, ...]
    resume_args: tuple[str, ...]


@dataclass(slots=True)
class PullPlan:
    """What a pull will do.

    Attributes:
        choice: the step, and what was skipped.
        layout: of the step.
        place: where it goes.
        target: its files.
        present: the directory is there already, with the same bytes.
        aside: names of step directories that will move to `superseded`.
        local: content on this disk.
        name: of the step directory.
        offset_ns: store time minus this node's time.
        scope: ranks whose shards are restored; "" = all.
    """

    choice: Choice
    layout: Layout
    place: Place
    target: Target
    present: bool
    aside: tuple[str, ...]
    local: LocalContent
    name: str
    offset_ns: int
    scope: str = ""
    _spent: bool = field(default=False)

    @property
    def path(self) -> str:
        """The step directory."""
        return os.path.join(self.place.output_dir, self.name)

    @property
    def reusable(self) -> int:
        """Bytes that this disk can give, before they are read."""
        return sum(
            length
            for digest, pieces in self.target.patches.items()
            if digest in self.local.chunks
            for _, _, _, length in pieces
        )

    def describe(self) -> list[str]:
        """What will happen, one line each."""
        step, size = self.choice.union.step, self.target.size
        lines = [f"skip step {number}: {why}" for number, why in self.choice.skipped if number > step]
        lines += [f"move {name} aside, to {self.place.staging.root}/superseded" for name in self.aside]
        if self.present:
            lines.append(f"step {step} is in place: {self.path}")
        else:
            of = f" of ranks {self.scope}" if self.scope else ""
            amounts = f"{len(self.target.files)} files{of}, {size} bytes ({self.reusable} of them on this disk)"
            lines.append(f"restore step {step}: {amounts}")
        if self.layout.tracker is not None:
            lines.append(f"write {self.layout.tracker.name}: {step}")
        if self.place.pointer is not None:
            lines.append(f"point {self.place.pointer.path} to {self.name}")
        return lines

    def execute(
        self,
        remote: Remote | None,
        saves: Saves | None,
        *,
        stamp: str,
        transfer: Transfer,
        trainer_path: Callable[[str], str] = lambda path: path,
    ) -> PullResult:
        """Do it, once.

        Args:
            remote: the store; may be None if the step is present.
            saves: where the restored step is remembered (None = nowhere: pulled elsewhere).
            stamp: names the `superseded` directories.
            transfer: how to fetch.
            trainer_path: maps a path into the trainer's container.

        Raises:
            NoSpaceError: before anything is fetched, or while it is; nothing is left behind.
            CkptsyncError: as `restore` and the disk say.
        """
        assert not self._spent, "a plan is executed once"
        self._spent = True
        if transfer.peers is not None:
            self._meet(transfer.peers)
        fetched = Fetched(from_disk=self.target.size)
        staged = ""
        if not self.present:
            assert remote is not None, "a step that is not here comes from the store"
            fetched, staged = self._fetch(remote, transfer)
        try:
            self._move_aside(stamp)
            if staged:
                crash_point("pull.before-place")
                durable.move_dir(staged, self.path)
                crash_point("pull.after-place")
        except BaseException:
            if staged:
                durable.remove_tree(staged, within=self.place.staging.root)
            raise
        self._point()
        if saves is not None and not self.present:
            self._remember(saves)
        return PullResult(
            self.choice.union.step,
            self.path,
            len(self.target.files),
            fetched.from_store,
            fetched.from_disk,
            fetched.from_peers,
            self.aside,
            tuple(self.layout.resume_args(trainer_path(self.path))),
        )

    def _meet(self, peers: Peers) -> None:
        peers.holdings.verified({digest: ("/", pieces) for digest, pieces in self.local.chunks.items()})
        if not self.present:
            peers.learn(self.target.chunks.keys() - self.local.chunks.keys())

    def _fetch(self, remote: Remote, transfer: Transfer) -> tuple[Fetched, str]:
        need, free = self.target.size + _SPARE_BYTES, free_bytes(os.path.dirname(self.place.staging.root))
        if free < need:
            raise NoSpaceError(
                "not enough space to restore",
                where=self.place.output_dir,
                why=f"step {self.choice.union.step} needs {need} bytes, {free} are free",
                remedy="delete what is not needed, or pull into another file system with --dest",
            )
        root = self.place.staging.new_restore(self.name)
        try:
            fetched = restore(self.target, root, remote, self.local, transfer, _owner(self.place.output_dir))
        except BaseException:
            durable.remove_tree(root, within=self.place.staging.root)
            raise
        return fetched, root

    def _move_aside(self, stamp: str) -> None:
        pointer = self.place.pointer
        targets = [(name, self.place.staging.superseded_path(name, stamp)) for name in self.aside]
        if pointer is not None and pointer.current() in self.aside:
            pointer.withdraw()  # `latest` never names what is not there
        for name, target in targets:
            crash_point("pull.before-aside")
            durable.move_dir(os.path.join(self.place.output_dir, name), target)

    def _point(self) -> None:
        place, step = self.place, self.choice.union.step
        if self.layout.tracker is not None:
            crash_point("pull.before-tracker")
            write_tracker(place.output_dir, self.layout, step, temp_dir=place.staging.temp_dir)
        if self.place.pointer is not None:
            _ = self.place.staging.temp_dir  # made by being asked for; the pointer only knows its path
            crash_point("pull.before-latest")
            self.place.pointer.point_to(self.name)

    def _remember(self, saves: Saves) -> None:
        """So that the daemon knows the directory for what it is, and pushes it again only if its bytes change."""
        union = self.choice.union
        first = next(iter(union.parts.values()))
        part = merged_part(self, first)
        listing = list_step(self.path, ignored=self.layout.ignored)
        save = Save(part, {path: listing.files[path] for path in self.target.files}, self.choice.commit)
        saves.add(save)
        if self.scope:
            saves.mark(save, SCOPE_MARK, self.scope)


def merged_part(plan: PullPlan, first: Part) -> Part:
    """The restored directory as one part: the union's files, whichever nodes they come from."""
    digests = sorted(plan.target.chunks)
    row = {digest: index for index, digest in enumerate(digests)}
    union = plan.choice.union
    files = []
    for path, entry in sorted(plan.target.files.items()):
        chunks = union.files[path][0].chunks
        extents = tuple(type(e)(row[chunks[e.chunk].digest], e.offset, e.length) for e in entry.extents)
        files.append(type(entry)(path, entry.size, entry.mode, entry.mtime_ns, entry.digest, extents))
    return Part(
        run=first.run,
        run_id=first.run_id,
        step=union.step,
        name=plan.name,
        below=first.below,
        node=first.node,
        node_id=first.node_id,
        layout=first.layout,
        level=first.level,
        saved_ns=union.end_ns - plan.offset_ns,
        closed=True,
        previous_ns=max(part.previous_ns for part in union.parts.values()),
        offset_ns=0,
        files=tuple(files),
        links=tuple(link for _, link in sorted(plan.target.links.items())),
        dirs=tuple(entry for _, entry in sorted(plan.target.dirs.items())),
        expects=tuple(
            dict.fromkeys(e for part in union.parts.values() for e in part.expects if e.path in plan.target.files)
        ),
        chunks=tuple(plan.target.chunks[digest] for digest in digests),
    )


def plan_pull(
    choice: Choice,
    layout: Layout,
    place: Place,
    *,
    listings: Sequence[Listing],
    saves: Iterable[Save],
    content: Mapping[str, Listing],
    content_dir: str,
    dropped: Callable[[str], bool],
    keep_newer: bool = False,
    offset_ns: int = 0,
    scope: str = "",
) -> PullPlan:
    """Plan the restore of a choice.

    Args:
        choice: see `choose`.
        layout: of the chosen step.
        place: where it goes.
        listings: the step directories that are there now.
        saves: verified saves of this node.
        content: the run's own step directories by name, whose content need not be fetched.
        content_dir: where they are.
        dropped: `[pull] drop`: files that are not restored.
        keep_newer: refuse instead of moving newer steps aside.
        offset_ns: store time minus this node's time.
        scope: what `dropped` leaves of the shards, for people; "" = all.

    Raises:
        ConflictError: newer steps are in the way, and `keep_newer` is set; or a link or file is.
    """
    saves = list(saves)
    target = Target.of(choice.union, dropped)
    name = next(iter(choice.union.parts.values())).name
    by_name = {listing.name: listing for listing in listings}
    if name not in by_name:
        _require_free(os.path.join(place.output_dir, name), choice.union.step)
    present = name in by_name and _same_content(by_name[name], saves, target, choice.commit)
    others = [listing for listing in listings if listing.name != name]
    newer = _newer(others, layout, saves, choice.union.step, choice.union.end_ns - offset_ns)
    if keep_newer and newer:
        what, why = f"step {choice.union.step} is not the newest here", f"{', '.join(newer)} would be moved aside"
        remedy = "leave out --keep-newer, or pull elsewhere with --dest"
        raise ConflictError(what, where=place.output_dir, why=why, remedy=remedy)
    replaced = [name] if name in by_name and not present else []
    return PullPlan(
        choice,
        layout,
        place,
        target,
        present,
        tuple(newer + replaced),
        local_content(saves, content, content_dir),
        name,
        offset_ns,
        scope,
    )


def _require_free(path: str, step: int) -> None:
    if os.path.lexists(path):
        why = "something that is not a step directory stands there"
        remedy = "move it away, or pull elsewhere with --dest"
        raise ConflictError(f"step {step} cannot be placed", where=path, why=why, remedy=remedy)


def _owner(output_dir: str) -> tuple[int, int] | None:
    """As root, what is restored belongs to whom output_dir belongs."""
    if os.geteuid() != 0:
        return None
    found = os.stat(output_dir)
    return found.st_uid, found.st_gid


def _newer(listings: Iterable[Listing], layout: Layout, saves: Sequence[Save], step: int, end_ns: int) -> list[str]:
    """The names of those with a higher number than `step`, or with a save that ended later (this node's time)."""
    return [
        listing.name
        for listing in listings
        if (layout.step_of(listing.name) or 0) > step or _saved_later(listing, saves, end_ns)
    ]


def _saved_later(listing: Listing, saves: Sequence[Save], end_ns: int) -> bool:
    return any(
        save.part.name == listing.name and save.part.saved_ns > end_ns and save.still_there(listing) for save in saves
    )


def _same_content(listing: Listing, saves: Sequence[Save], target: Target, commit: str) -> bool:
    """Whether the directory is exactly the target, with modes and mtimes.

    So is what an earlier pull of this commit left and nobody touched: some file systems keep coarser times than given.
    """
    links = {path: link.target for path, link in target.links.items()}
    if listing.files.keys() != target.files.keys() or listing.links != links:
        return False
    unmoved = [save for save in saves if save.part.name == listing.name and save.still_there(listing)]
    if any(commit and save.commit == commit for save in unmoved):
        return True
    if any(not _looks_like(listing.files[path], entry) for path, entry in target.files.items()):
        return False
    known = {file.path: file.digest for save in unmoved for file in save.part.files}
    return all(
        (known.get(path) or digest_of_file(os.path.join(listing.path, path))) == entry.digest
        for path, entry in target.files.items()
    )


def _looks_like(found: FileStat, entry: FileEntry) -> bool:
    return (found.size, found.mode & MODE_MASK, found.mtime_ns) == (entry.size, entry.mode, entry.mtime_ns)


def local_content(saves: Iterable[Save], listings: Mapping[str, Listing], output_dir: str) -> LocalContent:
    """What verified, unmoved saves on this disk can give, by chunk."""
    files: dict[str, str] = {}
    chunks: dict[str, tuple[Piece, ...]] = {}
    for save in saves:
        listing = listings.get(save.part.name)
        if listing is None or not save.still_there(listing):
            continue
        root = os.path.join(output_dir, save.part.name)
        files.update((file.digest, os.path.join(root, file.path)) for file in save.part.files)
        for ref, pieces in zip(save.part.chunks, pieces_of(save.part), strict=True):
            if pieces:
                chunks.setdefault(
                    ref.digest, tuple((os.path.join(root, path), at, length) for path, at, length in pieces)
                )
    return LocalContent(files, chunks)
