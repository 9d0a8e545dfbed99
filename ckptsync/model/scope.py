"""Which files of a step a node restores: all, or only those that the loaders of its ranks read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ckptsync.model.manifest import FileEntry, Part
from ckptsync.model.step import Shard

__all__ = ["Ranks", "ScopeRules", "parse_ranks", "ranks_of", "within", "worlds"]


class ScopeRules(Protocol):
    """The part of a layout that scopes need (see layouts/base.py)."""

    def shard(self, path: str) -> Shard | None:
        """What a shard's name says."""
        ...

    def own_only(self, path: str) -> bool:
        """Whether a rank's loader reads its own shard of this kind and no other rank's."""
        ...


_Files = Mapping[str, tuple[Part, FileEntry]]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Some ranks, as ranges of first and last."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and any(first <= rank <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    @property
    def last(self) -> int:
        """The greatest of them."""
        return max(last for _, last in self.ranges)


def parse_ranks(text: str) -> Ranks:
    """Ranks of "8-15" or "0,4-7", which `config_values.rank_scope` has checked."""
    ranges = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        ranges.append((int(first), int(last or first)))
    return Ranks(tuple(ranges))


def ranks_of(node: str, files: _Files, rules: ScopeRules) -> Ranks | None:
    """The ranks whose shards a node wrote in this save; None = none that a loader reads alone."""
    found = {
        shard.rank
        for path, (part, _) in files.items()
        if part.node == node and rules.own_only(path) and (shard := rules.shard(path)) is not None
    }
    return Ranks(tuple((rank, rank) for rank in sorted(found))) if found else None


def worlds(paths: Collection[str], rules: ScopeRules) -> frozenset[int]:
    """The world sizes that a step can be resumed with and no other; empty = the names do not bind it."""
    return frozenset(_own_worlds(paths, rules))


def _own_worlds(paths: Iterable[str], rules: ScopeRules) -> Iterable[int]:
    for path in paths:
        shard = rules.shard(path)
        if shard is not None and shard.world and rules.own_only(path):
            yield shard.world


def within(ranks: Ranks | None, rules: ScopeRules) -> Callable[[str], bool]:
    """Whether a path is restored by a node with these ranks (None = all files)."""

    def wanted(path: str) -> bool:
        if ranks is None or not rules.own_only(path):
            return True
        shard = rules.shard(path)
        return shard is None or shard.rank in ranks

    return wanted
