"""Directories written by PyTorch's distributed checkpoint (DCP), which several trainers nest in their steps.

Every rank writes `__{rank}_{i}.distcp`; the coordinator (rank 0) writes `.metadata` when all are done
(torch/distributed/checkpoint/filesystem.py). Which `.distcp` files must exist is said inside `.metadata`, and is
the formats' business; here only names count.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from ckptsync.model.step import Problem

__all__ = ["METADATA", "dcp_directories", "distcp_rank", "from_coordinator", "missing_metadata"]

METADATA = ".metadata"
_DISTCP = re.compile(r"__([0-9]{1,9})_[0-9]{1,9}\.distcp")


def distcp_rank(path: str) -> int | None:
    """The rank that wrote a `.distcp` file; None for every other file."""
    match = _DISTCP.fullmatch(posixpath.basename(path)) if path.endswith(".distcp") else None
    return int(match[1]) if match else None


def dcp_directories(paths: Collection[str]) -> Mapping[str, frozenset[str]]:
    """Directories that hold `.distcp` files, each with the base names of all files directly in it."""
    holders = {posixpath.dirname(path) for path in paths if distcp_rank(path) is not None}
    names: dict[str, set[str]] = defaultdict(set)
    for path in paths if holders else ():
        directory, name = posixpath.split(path)
        if directory in holders:
            names[directory].add(name)
    return {directory: frozenset(names[directory]) for directory in sorted(names)}


def from_coordinator(names: Collection[str]) -> bool:
    """Whether some of the files of one DCP directory come from rank 0, so that `.metadata` belongs beside them."""
    return METADATA in names or any(distcp_rank(name) == 0 for name in names)


def missing_metadata(paths: Collection[str], *, here: bool) -> tuple[Problem, ...]:
    """`.metadata` files that are missing from a whole step, or (`here`) from the coordinator's node."""
    return tuple(
        Problem(posixpath.join(directory, METADATA), "missing", "missing: DCP writes it when all ranks are done")
        for directory, names in dcp_directories(paths).items()
        if METADATA not in names and (not here or from_coordinator(names))
    )
