"""What small state files of a step hold (random generators, learning rate schedules), without unpickling them here."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckptsync.disk.read import FileSource
from ckptsync.formats.outline import Held, TorchPickle, outlines, torch_pickle
from ckptsync.formats.reading import Defect
from ckptsync.layouts.base import Layout
from ckptsync.layouts.shards import ranks_text
from ckptsync.model.step import Listing

__all__ = ["FILES_MAX", "Extras", "extras_of", "held_in", "hf_rng_files", "in_dcp"]

FILES_MAX = 1024
"""Files that one check looks into; they are some 10 KB each."""
_EXTRA = "extra_state"
_HF_RNG = re.compile(r"rng_state(?:_([0-9]{1,6}))?\.pth")


@dataclass(frozen=True, slots=True)
class Extras:
    """verl FSDP's `extra_state_*`, which hold rng and schedule of each rank.

    Attributes:
        paths: those that are here, by role and rank.
        lacking: what ranks lack them whose other shards are here, in words.
    """

    paths: tuple[str, ...]
    lacking: tuple[str, ...]


def extras_of(listing: Listing, layout: Layout) -> Extras | None:
    """The extra states of a step; None = its shards are no FSDP shards."""
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    extras: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for path in listing.files:
        shard = layout.shard(path)
        if shard is None or not shard.world:
            continue
        ranks[shard.role, shard.world].add(shard.rank)
        if shard.kind == _EXTRA:
            extras[shard.role, shard.world][shard.rank] = path
    if not ranks:
        return None
    lacking = [
        f"{role or 'the step'}: {ranks_text([(rank, rank) for rank in sorted(absent)], world)}"
        for (role, world), found in sorted(ranks.items())
        if (absent := found - extras[role, world].keys())
    ]
    paths = [extras[key][rank] for key in sorted(extras) for rank in sorted(extras[key])]
    return Extras(tuple(paths), tuple(lacking))


def hf_rng_files(listing: Listing) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Hugging Face's `rng_state*.pth` by rank, and the ranks below the highest that have none."""
    found = {int(match[1] or 0): path for path in listing.files if (match := _HF_RNG.fullmatch(path))}
    return tuple(found[rank] for rank in sorted(found)), tuple(
        sorted(set(range(max(found, default=-1) + 1)) - found.keys())
    )


def in_dcp(listing: Listing) -> bool:
    """Whether the step's states lie in a distributed checkpoint (DCP, Megatron), which is not looked into."""
    return any(path.endswith(".distcp") for path in listing.files)


def held_in(listing: Listing, paths: Sequence[str]) -> Mapping[str, Held | str]:
    """What is in torch files of a step, at most FILES_MAX of them; a text says why a file cannot be looked into."""
    read = {path: _pickle_of(os.path.join(listing.path, path)) for path in paths[:FILES_MAX]}
    pickles = {path: each for path, each in read.items() if isinstance(each, TorchPickle)}
    held = dict(zip(pickles, outlines(list(pickles.values())), strict=True))
    return {path: held[path] if path in held else str(each) for path, each in read.items()}


def _pickle_of(path: str) -> TorchPickle | str:
    try:
        with FileSource(path) as source:
            return torch_pickle(source)
    except Defect as defect:
        return defect.message
    except OSError as error:
        return f"cannot be read: {os.strerror(error.errno or 0)}"
