"""`integrity`: the step that the start resumes from is whole and undamaged, as far as this node needs it.

What the daemon has verified counts as long as no file's stat has changed since; else the structure is looked at.
`--level full` reads everything again, and compares it with what was verified.

A verl FSDP rank loads the three files with its own rank and world size in their names, and no others; nobody reads
`fsdp_config.json` and `huggingface/` at a resume (utils/checkpoint/fsdp_checkpoint_manager.py, verl 0.9.1). All other
loaders may read any rank's files, so every node needs all of them. `data.pt` is read wherever the driver runs.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ckptsync.disk.assess import Assessment, assess, look_around
from ckptsync.disk.saves import Broken
from ckptsync.disk.scan import scan, unreadable
from ckptsync.disk.tracker import read_tracker
from ckptsync.disk.verify import StepInspection, inspect_step, locate, read_step
from ckptsync.layouts.base import Layout
from ckptsync.layouts.shards import ranks_text
from ckptsync.model.manifest import Part
from ckptsync.model.step import Level, Listing, LocalState, Problem, Shard
from ckptsync.resume.context import Context, Resumed
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned
from ckptsync.resume.start import PULL, pull_it
from ckptsync.sync.examine import deep_problems, missing_files, restrict, structure_problems
from ckptsync.sync.pull import SCOPE_MARK
from ckptsync.sync.setup import DeepLimits

__all__ = ["check"]

_SHOWN = 3
_NOT_LOADED = frozenset({"fsdp_config.json", "config.json"})
"""Rank 0's files beside FSDP's shards, which no loader reads."""
_LAYERED = "verl_layered"
_GPUS = "trainer.n_gpus_per_node"
_AVOID = "run `ckptsync pull`, or `ckptsync pull --avoid {step}` if the store has no better one of this number"


def check(context: Context) -> Outcome:
    """fail: damaged, incomplete, or lacking what this node's ranks load; warn: enough only if no rank moves."""
    resumed, layout = context.resumed, context.node.layout
    if resumed is None or layout is None:
        return skipped("no step on this disk would be resumed from", "see the check `tracker`")
    found = _examine(context, resumed, layout)
    name = f"step {resumed.step}"
    if found.problems:
        shown = "; ".join(str(problem) for problem in found.problems[:_SHOWN])
        more = f"; and {len(found.problems) - _SHOWN} more" if len(found.problems) > _SHOWN else ""
        remedy = _AVOID.format(step=resumed.step) if context.wanted is not None else pull_it(context)
        return failed(f"{name} cannot be resumed from: {shown}{more}", remedy)
    if not found.lacking:
        extra = _strangers(resumed.listing, layout)
        said = f"{name} is whole: {found.how}"
        return warned(f"{said}; no loader knows {', '.join(extra)}", "look who wrote that") if extra else passed(said)
    return _judge_share(context, resumed, layout, found)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is wrong with what is here; what a whole step has beyond that; and how it was looked at."""

    problems: tuple[Problem, ...]
    lacking: tuple[Problem, ...]
    how: str


def _examine(context: Context, resumed: Resumed, layout: Layout) -> _Found:
    """Raises StepChanged: it moved while it was looked at."""
    listing, part, level = resumed.listing, resumed.part, context.level
    bad = unreadable(listing) or Broken(context.node.config.state_dir).problems_of(listing)
    if bad:
        return _Found(bad, (), "")
    if part is not None and level in (None, Level.STRUCTURE):
        return _Found((), _lacking_of(part, listing, layout), f"verified ({part.level.value}), unchanged since")
    mine, problems = listing, []
    if part is not None:
        mine = restrict(listing, tuple(file.path for file in part.files))
    else:
        verdict = _assess(context, listing, layout)
        if verdict.state is LocalState.PRUNED:
            return _Found((Problem("", "pruned", "the trainer has deleted its shards"),), (), "")
        mine = restrict(listing, verdict.paths)
        problems = [problem for problem in verdict.problems if problem.code != "missing"]
    inspection = inspect_step(mine)
    problems += structure_problems(mine, layout, inspection, root=listing.path)
    how = "its structure was looked at"
    if level in (Level.FULL, Level.DEEP) and not problems:
        problems += _read(context, resumed, mine, inspection)
        how = f"all {len(mine.files)} files were read"
    return _Found(tuple(dict.fromkeys(problems)), tuple(missing_files(mine, layout, inspection)), how)


def _lacking_of(part: Part, listing: Listing, layout: Layout) -> tuple[Problem, ...]:
    """What a directory lacks that holds just this part: by its names, and by what its own files vouch for."""
    mine = restrict(listing, tuple(file.path for file in part.files))
    absent = (expected for expected in part.expects if locate(mine, expected.path) is None)
    return (
        *layout.missing({path: stat.size for path, stat in mine.files.items()}),
        *(Problem(each.path, "missing", f"missing, but {each.voucher} names it") for each in absent),
    )


def _assess(context: Context, listing: Listing, layout: Layout) -> Assessment:
    """By names and times, among the steps that lie beside it: leftovers of another save, temporary files."""
    parent = os.path.dirname(listing.path)
    siblings = scan(parent, layout)
    index = next((i for i, other in enumerate(siblings) if other.name == listing.name), None)
    beside = siblings if index is not None else (listing,)
    around = look_around(
        beside,
        index or 0,
        layout,
        seen={},
        pulled_ns=context.node.saves.pulled_ns(),
        tracker=read_tracker(parent, layout),
    )
    return assess(listing, layout, around, window_ns=context.node.window_ns)


def _read(context: Context, resumed: Resumed, mine: Listing, inspection: StepInspection) -> Iterator[Problem]:
    """Every byte: the CRCs that the trainer stored, what was verified before, and with level deep the numbers."""
    result = read_step(mine, inspection)
    yield from result.problems
    for file in resumed.part.files if resumed.part is not None else ():
        if result.digests.get(file.path, file.digest) != file.digest:
            yield Problem(
                file.path, "digest", "its bytes are not those that were verified, though its stat is the same"
            )
    if context.level is Level.DEEP:
        table = context.node.config.verify
        found = deep_problems(resumed.path, tuple(mine.files), DeepLimits(table.deep_timeout, table.deep_memory))
        yield from (problem for problem in found if problem.code != "skipped")


# -- several nodes


def _judge_share(context: Context, resumed: Resumed, layout: Layout, found: _Found) -> Outcome:
    """A step of which this node has only a part: it depends on what its ranks load."""
    shards = [s for path in resumed.listing.files if (s := layout.shard(path)) is not None]
    own = bool(shards) and all(layout.own_only(p) for p in resumed.listing.files if layout.shard(p) is not None)
    needed = found.lacking
    if context.nodes > 1 and own:
        roles = {shard.role for shard in shards}
        needed = tuple(p for p in found.lacking if p.code != "missing" or not _elsewhere(p.path, roles))
    if needed:
        said = "; ".join(map(str, needed[:_SHOWN]))
        return failed(
            f"step {resumed.step} is not whole here, and this node's loader needs it all: {said}", pull_it(context)
        )
    world, ranks = _complete_ranks(shards)
    wanted = _ranks_here(context, world)
    said = f"{ranks_text(_runs(ranks), world)} of step {resumed.step}"
    if len(ranks) < wanted:
        return failed(f"this node will run {wanted} ranks, and has only the shards of {said}", pull_it(context))
    if _by_choice(context, resumed):
        return passed(f"{said} are here, as --scope or --ranks asked for: {found.how}")
    why = "ranks move between nodes, since Ray orders them by address"
    return warned(f"only {said} are here, which is enough only if these run here again ({why})", PULL)


def _elsewhere(path: str, roles: Collection[str]) -> bool:
    """Whether what is missing is other ranks' shards (named by their role), or nothing that is loaded."""
    return path in roles or posixpath.basename(path) in _NOT_LOADED


def _complete_ranks(shards: Sequence[Shard]) -> tuple[int, list[int]]:
    """The world size, and the ranks whose shards of all kinds and roles are here."""
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for shard in shards:
        ranks[shard.role, shard.kind].add(shard.rank)
    return max(shard.world for shard in shards), sorted(set.intersection(*ranks.values()))


def _ranks_here(context: Context, world: int) -> int:
    """How many ranks this node will run."""
    known = context.now.get(_GPUS)
    text = "" if known is None else str(known.value)
    return int(text) if text.isascii() and text.isdecimal() else math.ceil(world / context.nodes)


def _by_choice(context: Context, resumed: Resumed) -> bool:
    local, saves = context.node.local, context.node.saves
    known = local.known if local is not None else ()
    return any(save.part == resumed.part and saves.mark_of(save, SCOPE_MARK) is not None for save in known)


def _runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def _strangers(listing: Listing, layout: Layout) -> list[str]:
    """Of `verl_layered`: what is neither one of its five files nor the engine's state."""
    if layout.name != _LAYERED:
        return []
    core = {problem.path for problem in layout.missing({})}
    return [path for path in sorted(listing.files) if path not in core and not path.startswith("rollout/")]
