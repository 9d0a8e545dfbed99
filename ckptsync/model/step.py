"""The nouns of a step on disk: files, listings, shards, problems. Values only: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Expectation", "FileStat", "Level", "Listing", "LocalState", "Problem", "RemoteState", "Shard"]


class Level(str, Enum):
    """How deeply a step is verified; each level includes those before it."""

    STRUCTURE = "structure"
    FULL = "full"
    DEEP = "deep"


class LocalState(str, Enum):
    """What one step directory is on this node."""

    GROWING = "growing"  # something is missing or unfinished that may still come
    SETTLING = "settling"  # nothing is missing, but it changed less than `settle` ago
    COMPLETE = "complete"  # settled, not verified yet
    BROKEN = "broken"  # damaged, or something is missing that will not come any more
    VERIFIED = "verified"
    PRUNED = "pruned"  # a husk: the trainer deleted the shards and left the directory
    ABSENT = "absent"


class RemoteState(str, Enum):
    """What the store holds of a step."""

    ABSENT = "absent"
    PARTIAL = "partial"  # parts, but no valid commit
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a step.

    Attributes:
        path: relative to the step directory; "" is the step itself.
        code: a stable word for scripts (`truncated`, `crc`, `missing`, `temporary`, ...).
        message: one line for people, with the reason.
    """

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path or '.'}: {self.message}"


@dataclass(frozen=True, slots=True)
class FileStat:
    """What `stat` says of one file. Sizes in bytes, times in ns since the epoch (this node's clock)."""

    size: int
    mtime_ns: int
    mode: int  # permission bits only (0o7777)
    dev: int
    inode: int
    ctime_ns: int
    nlink: int

    def unchanged_since(self, earlier: FileStat) -> bool:
        """Whether the content can be taken to be that of `earlier`.

        ctime counts too, unless the link count changed with it: our own staging link moves ctime.
        """
        return self.same_bytes(earlier) and (self.ctime_ns == earlier.ctime_ns or self.nlink != earlier.nlink)

    def same_bytes(self, earlier: FileStat) -> bool:
        """The same without ctime: for whoever changed the link count himself, just now."""
        mine = (self.dev, self.inode, self.size, self.mtime_ns)
        return mine == (earlier.dev, earlier.inode, earlier.size, earlier.mtime_ns)


@dataclass(frozen=True, slots=True)
class Listing:
    """One step directory as a scan saw it.

    All paths are POSIX, relative to the directory; bytes that are not UTF-8 are kept by
    `surrogateescape`, as `os.fsdecode` does.

    Attributes:
        name: the directory's base name.
        path: its absolute path.
        files: regular files (also those reached through a link that leaves the step).
        links: symbolic links whose target is inside the step: path -> target relative to the link's directory.
        dirs: sub-directories, and "" for the directory itself.
        warnings: broken links, loops, links that leave the step, special files.
    """

    name: str
    path: str
    files: Mapping[str, FileStat]
    links: Mapping[str, str] = field(default_factory=dict)
    dirs: Mapping[str, FileStat] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(stat.size for stat in self.files.values())

    @property
    def newest_ns(self) -> int:
        """The newest file's mtime; 0 if there is none."""
        return max((stat.mtime_ns for stat in self.files.values()), default=0)

    def unchanged_since(self, earlier: Listing) -> bool:
        """Whether every file and link is as in `earlier` (directories' own times do not count)."""
        return (
            self.files.keys() == earlier.files.keys()
            and self.links == earlier.links
            and all(stat.unchanged_since(earlier.files[path]) for path, stat in self.files.items())
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """What a shard's name says: role (`actor`), kind (`model`), rank, and world size (0 where the name has none)."""

    role: str
    kind: str
    rank: int
    world: int = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """A file that another file of the same step vouches for (DCP `.metadata`, a safetensors index).

    Attributes:
        path: relative to the step directory.
        size: its exact size in bytes, where the voucher says so.
        voucher: the file that says so.
    """

    path: str
    size: int | None
    voucher: str
