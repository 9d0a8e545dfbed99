"""What the names in a step directory mean. One layout = one small file + one entry point.

A layout is knowledge about names, never I/O: it is given paths and sizes, and says what they mean. Others can
ship their own through the entry point group `ckptsync.layouts` (name -> Layout subclass).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ckptsync.model.step import Problem, Shard

__all__ = ["Layout", "Seen", "Tracker"]

Seen = Mapping[tuple[str, str], int]
"""(role, kind) -> how many shards of it this node wrote in its previous verified save."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """The trainer's own pointer file, beside the step directories.

    Attributes:
        name: file name in output_dir ("latest_checkpointed_iteration.txt").
        parse: its text -> step; None = unknown (empty, junk): never step 0 by accident.
        render: step -> the text a restore writes.
    """

    name: str
    parse: Callable[[str], int | None]
    render: Callable[[int], str]


class Layout(ABC):
    """How one trainer names steps, shards and trackers. Paths are POSIX, relative to the step directory."""

    name: ClassVar[str]
    pointer: ClassVar[Literal["output_dir", "state_dir"]] = "state_dir"
    """Where `latest` may live: only where the trainer is known to ignore a foreign link."""
    barrier: ClassVar[bool] = False
    """The trainer has a barrier between the last shard (of any node) and the closing file (see `has_barrier`)."""
    tracker: ClassVar[Tracker | None] = None

    @classmethod
    def for_names(cls, names: Collection[str]) -> Layout:  # noqa: ARG003 - default of an interface
        """The layout for an output_dir that holds directories of these names, where the naming can vary."""
        return cls()

    @abstractmethod
    def step_of(self, name: str) -> int | None:
        """The step number of a directory name; None if it is not a (final) step directory's name."""

    @abstractmethod
    def recognise(self, paths: Collection[str]) -> bool:
        """Whether a step directory with these files is of this layout (for `auto`)."""

    def is_temporary(self, path: str) -> bool:
        """A temporary or sentinel file: while it is there the save is not over."""
        return False

    def ignored(self, path: str) -> bool:
        """Never part of a step (leftovers that no loader reads)."""
        return False

    def shard(self, path: str) -> Shard | None:
        """What a shard's name says; None for every other file."""
        return None

    def own_only(self, path: str) -> bool:
        """Whether a rank's loader reads its own shard of this kind and no other rank's (and so needs the world size).

        Where it is not known to, every node needs all of them: DCP and Megatron shards hold pieces of everything.
        """
        return False

    @abstractmethod
    def closing(self, paths: Collection[str]) -> frozenset[str]:
        """Those of `paths` that the trainer writes after the shards they vouch for; the newest ends the save."""

    def has_barrier(self, paths: Collection[str]) -> bool:
        """`barrier`, where it depends on what kind of save these files are."""
        return self.barrier

    @abstractmethod
    def missing(self, sizes: Mapping[str, int]) -> tuple[Problem, ...]:
        """What a *whole* step still needs beyond these files (path -> bytes), by names alone. Empty = whole.

        Given the union of all nodes; a missing closing file is missing here too where the layout has one.
        """

    @abstractmethod
    def missing_here(self, sizes: Mapping[str, int], seen: Seen) -> tuple[Problem, ...]:
        """What *this node's share* still needs: by names, markers, and what this node wrote in its previous save.

        A file that may lie on another node (`data.pt`, other ranks) is not missing here.
        """

    def check(self, sizes: Mapping[str, int], step: int, read: Callable[[str], bytes]) -> tuple[Problem, ...]:
        """Content rules of small files, beyond their format. `read(path)` gives a whole file, or raises OSError."""
        return ()

    def is_husk(self, paths: Collection[str]) -> bool:
        """The trainer's retention deleted the shards and left this.

        A driver-only part looks alike: the caller knows whether this node ever had role directories.
        """
        return False

    def resume_args(self, path: str) -> list[str]:
        """What to pass to the trainer to resume from the step directory at `path` (as the trainer sees it)."""
        return []
