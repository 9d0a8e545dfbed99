"""What shard names alone say about wholeness: shared by all layouts. Pure functions on `Shard` values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ckptsync.layouts.base import Seen
from ckptsync.model.step import Problem, Shard

__all__ = ["missing_locally", "missing_ranks", "ranks_text"]

Range = tuple[int, int]
"""First and last, both included."""

_RANGES_SHOWN = 8


def ranks_text(ranges: Iterable[Range], world: int) -> str:
    """Ranges of ranks as people say them: "rank 3 of 4", "ranks 0-3, 8 of 16"."""
    ranges = list(ranges)
    words = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_RANGES_SHOWN]]
    if len(ranges) > _RANGES_SHOWN:
        words.append("...")
    one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{'rank' if one else 'ranks'} {', '.join(words)} of {world}"


def missing_ranks(shards: Iterable[Shard]) -> tuple[Problem, ...]:
    """What a whole step lacks: every kind that any rank of a role wrote must be there for ranks 0..W-1.

    W is read from the names; shards without a world size prove nothing and are left out. Several world sizes in one
    role are two saves in one directory (`world-size`), and nothing can be said about ranks then.
    """
    roles: dict[str, list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.world:
            roles[shard.role].append(shard)
    return tuple(problem for role in sorted(roles) for problem in _missing_in_role(role, roles[role]))


def _missing_in_role(role: str, shards: list[Shard]) -> Iterable[Problem]:
    worlds = sorted({shard.world for shard in shards})
    if len(worlds) > 1:
        said = " and ".join(str(world) for world in worlds)
        yield Problem(role, "world-size", f"shards of world sizes {said} side by side: two saves in one directory")
        return
    for kind, ranks in _ranks_by_kind(shards):
        gaps = _gaps(ranks, worlds[0])
        if gaps:
            yield Problem(role, "missing", f"the {kind} shards of {ranks_text(gaps, worlds[0])} are missing")


def missing_locally(shards: Iterable[Shard], seen: Seen) -> tuple[Problem, ...]:
    """What this node's share lacks: among its own ranks of a role, and compared with its previous save.

    Args:
        shards: what is here.
        seen: (role, kind) -> how many this node wrote in its previous verified save.
    """
    shards = list(shards)
    worlds: dict[tuple[str, int], list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.world:
            worlds[shard.role, shard.world].append(shard)
    problems: dict[tuple[str, str], Problem] = {}
    for (role, world), group in sorted(worlds.items()):
        mine = {shard.rank for shard in group}
        for kind, ranks in _ranks_by_kind(group):
            if ranks != mine:
                lacking = ranks_text(_runs(mine - ranks), world)
                said = f"the {kind} shards of {lacking} are missing, other shards of theirs are here"
                problems[role, kind] = Problem(role, "missing", said)
    counts = Counter((shard.role, shard.kind) for shard in shards)
    for key, wanted in sorted(seen.items()):
        if counts[key] < wanted:
            said = f"{counts[key]} of the {wanted} {key[1]} shards that this node wrote in its previous save are here"
            problems.setdefault(key, Problem(key[0], "missing", said))
    return tuple(problems.values())


def _ranks_by_kind(shards: Iterable[Shard]) -> list[tuple[str, set[int]]]:
    kinds: dict[str, set[int]] = defaultdict(set)
    for shard in shards:
        kinds[shard.kind].add(shard.rank)
    return sorted(kinds.items())


def _gaps(ranks: Iterable[int], world: int) -> list[Range]:
    """The ranges of 0..world-1 not in `ranks`. The world size comes from a file name: it is never counted through."""
    gaps = []
    start = 0
    for rank in sorted(ranks):
        if rank > start:
            gaps.append((start, rank - 1))
        start = rank + 1
    if start < world:
        gaps.append((start, world - 1))
    return gaps


def _runs(ranks: Iterable[int]) -> list[Range]:
    """Ranks as maximal ranges."""
    runs: list[Range] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs
