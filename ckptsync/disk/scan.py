"""Seeing step directories: bounded `os.scandir` passes, never an event. Knows names and stats, opens no file."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import pwd
import stat
from collections.abc import Callable, Iterator

from ckptsync.errors import CheckpointError, ConfigError, StepChanged
from ckptsync.layouts.base import Layout
from ckptsync.model.paths import inside
from ckptsync.model.step import FileStat, Listing, Problem

__all__ = [
    "DEPTH_MAX",
    "ENTRIES_MAX",
    "ensure_unchanged",
    "file_stat",
    "is_absent",
    "list_step",
    "permission_problem",
    "resolve_output_dir",
    "scan",
    "step_dirs",
    "unreadable",
    "unseen",
]

ENTRIES_MAX = 2_000_000
DEPTH_MAX = 64
LINKS_MAX = 40  # as the kernel: more links in a chain are a loop
_SEARCH_DIRS_MAX = 10_000
_VANISHED = frozenset({errno.ENOENT, errno.ESTALE, errno.ENOTDIR})
_UNSEEN = frozenset({"permission", "unreadable", "limits"})
_REMEDY = "run as the user that owns output_dir"


def file_stat(raw: os.stat_result) -> FileStat:
    """What this project keeps of a stat."""
    return FileStat(
        size=raw.st_size,
        mtime_ns=raw.st_mtime_ns,
        mode=stat.S_IMODE(raw.st_mode),
        dev=raw.st_dev,
        inode=raw.st_ino,
        ctime_ns=raw.st_ctime_ns,
        nlink=raw.st_nlink,
    )


def resolve_output_dir(path: str, step_of: Callable[[str], int | None]) -> str:
    """The directory that holds the step directories, at `path` or up to two levels below it or its `checkpoints`.

    `path` itself where there are none yet.

    Raises:
        ConfigError: missing, not a directory, unreadable, or several directories hold steps.
    """
    path = os.path.abspath(path)
    if _holds_steps(path, step_of, must_exist=True):
        return path
    usual = os.path.join(path, "checkpoints")
    if _holds_steps(usual, step_of, must_exist=os.path.isdir(usual)):
        return usual
    found = _search((path, usual), step_of)
    if len(found) > 1:
        what, why = "several directories hold step directories", ", ".join(found[:10])
        raise ConfigError(what, where=path, why=why, remedy="set output_dir to one of them")
    return found[0] if found else path


def is_absent(output_dir: str) -> bool:
    """Whether there is no output_dir yet. One that is there and cannot be used is not absent: nobody knows its steps.

    A link that leads nowhere is there, too: where it led, a disk may not be mounted.
    """
    try:
        os.lstat(output_dir)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _search(roots: tuple[str, ...], step_of: Callable[[str], int | None]) -> list[str]:
    found: set[str] = set()
    queue = [(root, 0) for root in roots]
    for directory, depth in queue:
        for child in _sub_dirs(directory):
            if len(queue) > _SEARCH_DIRS_MAX:
                what = "too many directories to search for steps"
                raise ConfigError(
                    what, where=roots[0], remedy="set output_dir to the one that holds the step directories"
                )
            if _holds_steps(child, step_of):
                found.add(child)
            elif depth == 0:
                queue.append((child, depth + 1))
    return sorted(found)


def _holds_steps(path: str, step_of: Callable[[str], int | None], *, must_exist: bool = False) -> bool:
    return any(step_of(os.path.basename(child)) is not None for child in _sub_dirs(path, must_exist=must_exist))


def _sub_dirs(path: str, *, must_exist: bool = False) -> list[str]:
    """Visible sub-directories, links aside, sorted. Without `must_exist`, what cannot be read has none."""
    try:
        with os.scandir(path) as entries:
            return sorted(e.path for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
    except OSError as error:
        if not must_exist:
            return []
        what = "output_dir does not exist" if error.errno == errno.ENOENT else "output_dir cannot be read"
        remedy = "set [run] output_dir to the directory with the step directories"
        if isinstance(error, PermissionError):
            remedy = _REMEDY
        raise ConfigError(what, where=path, why=os.strerror(error.errno or 0), remedy=remedy) from error


def step_dirs(output_dir: str, layout: Layout) -> tuple[tuple[int, str], ...]:
    """(step, path) of every step directory, in numeric order. A link to a step directory is not a step.

    Raises:
        ConfigError: `output_dir` is missing or unreadable.
    """
    named = ((layout.step_of(os.path.basename(path)), path) for path in _sub_dirs(output_dir, must_exist=True))
    return tuple(sorted((step, path) for step, path in named if step is not None))


def scan(output_dir: str, layout: Layout) -> tuple[Listing, ...]:
    """Every step directory as it is now, in numeric order; those that vanish meanwhile are left out.

    One beyond the limits is an empty listing with a warning, which `unreadable` makes a problem.

    Raises:
        ConfigError: `output_dir` is missing or unreadable.
    """
    listings = (_listed(path, layout) for _, path in step_dirs(output_dir, layout))
    return tuple(listing for listing in listings if listing is not None)


def _listed(path: str, layout: Layout) -> Listing | None:
    try:
        return list_step(path, ignored=layout.ignored)
    except StepChanged:
        return None
    except CheckpointError as error:
        return Listing(os.path.basename(path), path, {}, warnings=(Problem("", "limits", error.why),))


def list_step(path: str, *, ignored: Callable[[str], bool] | None = None) -> Listing:
    """One step directory as it is now.

    Links to a target inside the step become `links`, with their target in one spelling. Links that leave the step
    are followed with a warning; broken ones, loops and special files are warnings only. What the trainer deletes
    meanwhile is left out.

    Args:
        path: the directory, or a link to it (`latest`).
        ignored: paths (relative) that are no part of a step, with everything below them.

    Raises:
        StepChanged: the directory itself is gone.
        CheckpointError: more than ENTRIES_MAX entries, or deeper than DEPTH_MAX.
    """
    walk = _Walk(os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path), ignored or _nothing)
    try:
        walk.run()
    except FileNotFoundError as error:
        what = "the step directory is gone"
        raise StepChanged(what, where=path) from error
    return walk.listing()


def ensure_unchanged(listing: Listing, *, root: str | None = None) -> None:
    """Stat every file of `listing` again (below `root`, by default where it was listed).

    Raises:
        StepChanged: a file moved or vanished.
    """
    base = root or listing.path
    for path, before in listing.files.items():
        try:
            now = file_stat(os.stat(os.path.join(base, path)))
        except OSError as error:
            what = "a file of the step vanished"
            raise StepChanged(what, where=os.path.join(base, path), why=os.strerror(error.errno or 0)) from error
        if not now.unchanged_since(before):
            what = "a file of the step changed"
            raise StepChanged(what, where=os.path.join(base, path), remedy="it is taken again once it is quiet")


def unreadable(listing: Listing) -> tuple[Problem, ...]:
    """What this process may not read: files by mode or owner, and what the scan could not enter or take in."""
    denied = [
        permission_problem(listing.path, path)
        for path in listing.files
        if not os.access(os.path.join(listing.path, path), os.R_OK, effective_ids=True)
        and os.path.exists(os.path.join(listing.path, path))
    ]
    return (*unseen(listing), *denied)


def unseen(listing: Listing) -> tuple[Problem, ...]:
    """What the scan could not enter or take in: there may be more in the step than it lists."""
    return tuple(warning for warning in listing.warnings if warning.code in _UNSEEN)


def permission_problem(root: str, path: str) -> Problem:
    """The problem of a path this process may not read; the remedy names the owner."""
    owner = "its owner"
    with contextlib.suppress(OSError):
        uid = os.stat(os.path.join(root, path)).st_uid
        owner = f"uid {uid}"
        with contextlib.suppress(KeyError):
            owner = f"user {pwd.getpwuid(uid).pw_name}"
    return Problem(path, "permission", f"not readable by uid {os.geteuid()} (run ckptsync as {owner})")


def _nothing(_: str) -> bool:
    return False


def _upwards(path: str) -> tuple[tuple[int, int], ...]:
    """(device, inode) of a directory and of all its parents."""
    found = [os.stat(path)]
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        found.append(os.stat(path))
    return tuple((raw.st_dev, raw.st_ino) for raw in found)


class _Walk:
    """One pass over one step directory."""

    def __init__(self, root: str, ignored: Callable[[str], bool]) -> None:
        self._root, self._real = root, os.path.realpath(root)
        self._ignored = ignored
        self._files: dict[str, FileStat] = {}
        self._links: dict[str, str] = {}
        self._dirs: dict[str, FileStat] = {}
        self._warnings: list[Problem] = []
        self._entries = 0

    def run(self) -> None:
        """Raises FileNotFoundError if the root is gone, CheckpointError beyond the limits."""
        raw = os.stat(self._root, follow_symlinks=False)
        if not stat.S_ISDIR(raw.st_mode):
            raise FileNotFoundError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._root)
        self._dirs[""] = file_stat(raw)
        # (directory, the directories above it by identity, up to "/": a link back to one of them is a loop)
        pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", _upwards(self._real))]
        top = len(pending[0][1])
        while pending:
            directory, above = pending.pop()
            for path, found in self._sub_dirs(directory):
                identity = (found.st_dev, found.st_ino)
                if identity in above:
                    self._warn(path, "loop", "leads back to a directory above it; left out")
                    continue
                self._dirs[path] = file_stat(found)
                pending.append((path, (*above, identity)))
            if len(above) - top > DEPTH_MAX:
                self._refuse(f"it is deeper than {DEPTH_MAX} directories")

    def listing(self) -> Listing:
        """What was seen, without links whose target is not part of it."""
        for path in [path for path in self._links if not self._leads_somewhere(path)]:
            target = self._links.pop(path)
            self._warn(path, "broken-link", f"a link to {target!r}, which is not part of the step; left out")
        return Listing(
            name=os.path.basename(self._root),
            path=self._root,
            files=dict(sorted(self._files.items())),
            links=dict(sorted(self._links.items())),
            dirs=dict(sorted(self._dirs.items())),
            warnings=tuple(sorted(self._warnings, key=lambda warning: warning.path)),
        )

    def _sub_dirs(self, directory: str) -> Iterator[tuple[str, os.stat_result]]:
        """Take in one directory's entries; yields those to descend into."""
        try:
            with os.scandir(os.path.join(self._root, directory)) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > ENTRIES_MAX:
                        self._refuse(f"it has more than {ENTRIES_MAX} entries")
                    path = posixpath.join(directory, entry.name)
                    if not self._ignored(path) and (found := self._take(path, entry)) is not None:
                        yield path, found
        except OSError as error:
            if not directory and error.errno in _VANISHED:
                raise FileNotFoundError(error.errno, os.strerror(error.errno), self._root) from error
            self._fault(directory, error)

    def _take(self, path: str, entry: os.DirEntry[str]) -> os.stat_result | None:
        """Record one entry; its stat if it is a directory to descend into."""
        try:
            if not entry.is_symlink():
                return self._record(path, entry.stat(follow_symlinks=False))
            target = self._target(path, os.readlink(entry.path))
            if target is not None:
                self._links[path] = target
                return None
            raw = os.stat(entry.path)
        except OSError as error:
            self._fault(path, error)
            return None
        self._warn(path, "outside-link", "a link that leaves the step; its content is taken instead")
        return self._record(path, raw)

    def _record(self, path: str, raw: os.stat_result) -> os.stat_result | None:
        if stat.S_ISDIR(raw.st_mode):
            return raw
        if stat.S_ISREG(raw.st_mode):
            self._files[path] = file_stat(raw)
        else:
            self._warn(path, "special", "neither a file nor a directory (socket, fifo, device); left out")
        return None

    def _target(self, path: str, text: str) -> str | None:
        """The link's target relative to its directory, in one spelling; None if it leaves the step.

        Raises OSError for a link to nothing or to itself, where its text alone does not tell where it leads.
        """
        directory = posixpath.dirname(path)
        spelled = inside(directory, text)
        if spelled is None or ".." in text.split("/"):
            # a `..` behind a name that is a link leads elsewhere than it reads, and behind one of a file nowhere: only
            # the kernel knows, and realpath alone does not ask it about the file
            os.stat(os.path.join(self._root, path))
            real = os.path.realpath(os.path.join(self._root, path), strict=True)
            if spelled is None or os.path.realpath(os.path.join(self._root, spelled)) != real:
                spelled = self._inside_real(real)
        return None if spelled is None else posixpath.relpath(spelled or ".", directory or ".")

    def _inside_real(self, real: str) -> str | None:
        if real == self._real:
            return ""
        return real[len(self._real) + 1 :] if real.startswith(self._real + "/") else None

    def _leads_somewhere(self, path: str) -> bool:
        """Whether a chain of links ends at a file or directory of the step."""
        for _ in range(LINKS_MAX):
            followed = self._one_link_further(path)
            if followed is None:
                return path in self._files or path in self._dirs
            path = followed
        return False

    def _one_link_further(self, path: str) -> str | None:
        """`path` with the first component that is a link replaced by its target; None if no component is one."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            target = self._links.get("/".join(parts[:depth]))
            if target is not None:
                return posixpath.join(inside("/".join(parts[: depth - 1]), target) or "", *parts[depth:])
        return None

    def _fault(self, path: str, error: OSError) -> None:
        if isinstance(error, PermissionError):
            self._warnings.append(permission_problem(self._root, path))
        elif error.errno == errno.ELOOP:
            self._warn(path, "loop", "a link that leads to itself; left out")
        elif error.errno in _VANISHED:
            if os.path.islink(os.path.join(self._root, path)):
                self._warn(path, "broken-link", "a link to nothing; left out")
        else:
            self._warn(path, "unreadable", f"cannot be read: {os.strerror(error.errno or 0)}")

    def _warn(self, path: str, code: str, message: str) -> None:
        self._warnings.append(Problem(path, code, message))

    def _refuse(self, why: str) -> None:
        what = "this is not a step directory ckptsync can handle"
        raise CheckpointError(what, where=self._root, why=why)
