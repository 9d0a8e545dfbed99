"""What verl's Megatron engine writes below a role directory, in both of its layouts.

v1 (verl 0.4.1 to 0.8): `dist_ckpt/`, `huggingface/`, `transformer_config.json`. v2 (0.9): `model/`, `optimizer/` and
`extra/`, each with a `dist_ckpt/`, `model/huggingface/`, and `ckpt_contents.json`, which rank 0 writes last.
A `dist_ckpt/` is Megatron-Core's torch_dist: `.distcp` files, then `.metadata`, then `metadata.json`; `common.pt` comes
and goes with versions. Megatron-FSDP puts one combined plain DCP into `model/dist_ckpt/`, without `metadata.json`, and
its `ckpt_contents.json` names directories that it never made (verl/utils/checkpoint/megatron_checkpoint_manager.py).
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ckptsync.layouts.dcp import METADATA, dcp_directories, from_coordinator
from ckptsync.layouts.smallfiles import read_object
from ckptsync.model.step import Problem

__all__ = ["CONTENTS", "check_contents", "markers", "missing_megatron", "role_and_kind"]

CONTENTS = "ckpt_contents.json"
_METADATA_JSON = "metadata.json"
_DIST = "dist_ckpt"
_PIECES = ("model", "optimizer", "extra")
_HF = "model/huggingface/config.json"
_RANK0_ONLY = frozenset({METADATA, _METADATA_JSON, "common.pt"})
_TITAN_STEP = re.compile(r"step-[0-9]+")


def role_and_kind(directory: str) -> tuple[str, str]:
    """Role and kind of the `.distcp` files in `directory`: ("actor", "optimizer/dist_ckpt").

    The torchtitan engine writes `step-{N}/` without a role; its number is left out, so that steps compare.
    """
    if _TITAN_STEP.fullmatch(directory):
        return "step-N", "dcp"
    parts = directory.split("/")
    if parts[-1] != _DIST:
        role, _, kind = directory.partition("/")
        return role, kind or "dcp"
    start = len(parts) - (2 if len(parts) > 1 and parts[-2] in _PIECES else 1)
    return "/".join(parts[:start]), "/".join(parts[start:])


def markers(paths: Collection[str]) -> frozenset[str]:
    """The files that end a role's save: `ckpt_contents.json`, `.metadata`, `metadata.json`."""
    dirs = _directories(paths)
    inside = {posixpath.join(d, name) for d in dirs for name in (METADATA, _METADATA_JSON)}
    return frozenset(
        path for path in paths if path in inside or (path.endswith(CONTENTS) and posixpath.basename(path) == CONTENTS)
    )


def missing_megatron(paths: Collection[str], *, here: bool) -> tuple[Problem, ...]:
    """Markers that are missing from a whole step, or (`here`) from rank 0's node."""
    paths = frozenset(paths)
    dirs = _directories(paths)
    return (*_missing_in_dirs(paths, dirs, here=here), *_missing_contents(paths, dirs, here=here))


def _directories(paths: Collection[str]) -> dict[str, frozenset[str]]:
    """All DCP directories, and those named `dist_ckpt` before their first `.distcp`, with their base names."""
    names: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if _DIST not in path:
            continue
        directory, name = posixpath.split(path)
        if posixpath.basename(directory) == _DIST:
            names[directory].add(name)
    return {**{d: frozenset(n) for d, n in sorted(names.items())}, **dcp_directories(paths)}


def _missing_in_dirs(paths: frozenset[str], dirs: Mapping[str, frozenset[str]], *, here: bool) -> Iterator[Problem]:
    for directory, names in dirs.items():
        if here and not _from_rank0(names):
            continue
        if METADATA not in names:
            why = "missing: it is written when all ranks are done"
            yield Problem(posixpath.join(directory, METADATA), "missing", why)
        torch_dist = posixpath.basename(directory) == _DIST and not _combined(directory, paths, dirs)
        if torch_dist and _METADATA_JSON not in names:
            why = "missing: Megatron writes it last in this directory, and needs it to load"
            yield Problem(posixpath.join(directory, _METADATA_JSON), "missing", why)


def _from_rank0(names: Collection[str]) -> bool:
    return from_coordinator(names) or not _RANK0_ONLY.isdisjoint(names)


def _combined(directory: str, paths: frozenset[str], dirs: Mapping[str, object]) -> bool:
    """Whether this is Megatron-FSDP's combined checkpoint: alone, and its role has been declared complete."""
    role, kind = role_and_kind(directory)
    others = (posixpath.join(role, piece, _DIST) for piece in _PIECES[1:])
    return kind == f"model/{_DIST}" and posixpath.join(role, CONTENTS) in paths and not any(o in dirs for o in others)


def _missing_contents(paths: frozenset[str], dirs: Mapping[str, frozenset[str]], *, here: bool) -> Iterator[Problem]:
    roles: dict[str, bool] = defaultdict(bool)  # role of a v2 save -> rank 0 wrote something of it here
    for directory, names in dirs.items():
        role, kind = role_and_kind(directory)
        if kind.endswith(f"/{_DIST}"):
            roles[role] |= _from_rank0(names)
    for path in paths:
        if path == _HF or path.endswith(f"/{_HF}"):
            roles[path[: -len(_HF)].rstrip("/")] = True
    for role, rank0 in sorted(roles.items()):
        path = posixpath.join(role, CONTENTS)
        if path not in paths and (rank0 or not here):
            yield Problem(path, "missing", "missing: rank 0 writes it when the role's save is complete")


def check_contents(path: str, sizes: Mapping[str, int], step: int, read: Callable[[str], bytes]) -> tuple[Problem, ...]:
    """Whether a `ckpt_contents.json` fits the step it lies in; fields that are not there are not missed.

    `sizes` must also name links to directories inside the step, if any, by the link's own path.
    """
    document = read_object(path, sizes, read)
    if isinstance(document, Problem):
        return (document,)
    problems = []
    said = document.get("global_step")
    if said is not None and (type(said) is not int or said != step):
        problems.append(Problem(path, "wrong-step", f"it is of global step {said!r}, in the directory of step {step}"))
    role = posixpath.dirname(path)
    present = {part for name in sizes for part in _ancestry(name)}
    alone = _combined(posixpath.join(role, "model", _DIST), frozenset(sizes), _directories(sizes))
    for name, place in _places(document):
        unmade = alone and place in (f"optimizer/{_DIST}", f"extra/{_DIST}")
        if not unmade and posixpath.normpath(posixpath.join(role, place)) not in present:
            problems.append(Problem(posixpath.join(role, place), "missing", f"missing, but {path} names it ({name})"))
    return tuple(problems)


def _places(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    contents = document.get("contents")
    for name, entry in contents.items() if isinstance(contents, dict) else ():
        place = entry.get("path") if isinstance(entry, dict) else entry
        if isinstance(place, str) and place:
            yield name, place


def _ancestry(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)
