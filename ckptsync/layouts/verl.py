"""verl: `global_step_{N}` with one directory per role, from 0.4.1 (June 2025) on; all engines, PPO and SFT.

Facts, from verl's own save code (trainer/ppo/v1/trainer_base.py, utils/checkpoint/*.py; stable from 0.4.1 to 0.9.1):

- PPO: roles `actor/`, `critic/`, ... are saved one after the other, each with a barrier over its ranks at the end; then
  the driver writes `data.pt`, then `transfer_queue/`, then the tracker. The driver may sit on any node.
- SFT: no role directory; the engine's files, then `data_{dp}.pt` on each data-parallel source rank's node (0.5 to 0.7:
  `data.pt`), then the tracker, without a barrier.
- FSDP: each rank writes `model_`, `optim_`, `extra_state_world_size_{W}_rank_{R}.pt` on its own node (which kinds is
  configurable) and loads only its own; rank 0 also `huggingface/` and `fsdp_config.json`.
- Megatron: see verl_megatron.py. torchtitan: `step-{N}/`, a plain DCP, in the step directory.

`data.pt`, `data_{dp}.pt` and `transfer_queue/` are closing files, not shards: a node that holds only them never had
shards, which is how a driver's part is told from a husk. Closing files fall under the stale rule by themselves.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import ClassVar, Literal

from ckptsync.layouts.base import Layout, Seen, Tracker
from ckptsync.layouts.dcp import distcp_rank
from ckptsync.layouts.shards import missing_locally, missing_ranks
from ckptsync.layouts.smallfiles import read_object
from ckptsync.layouts.verl_megatron import CONTENTS, check_contents, markers, missing_megatron, role_and_kind
from ckptsync.model.step import Problem, Shard

__all__ = ["Verl"]

_STEP = re.compile(r"global_step_(0|[1-9][0-9]{0,11})")
_FSDP = re.compile(r"(model|optim|extra_state)_world_size_([1-9][0-9]{0,8})_rank_(0|[1-9][0-9]{0,8})\.pt")
_SFT_DATA = re.compile(r"data_[0-9]{1,9}\.pt")
_SAFETENSORS_TEMPORARY = re.compile(r"\.tmp[0-9A-Za-z]{6}")
_BRIDGE_LEFTOVER = re.compile(r"(?:mcore|hf)_batch_[0-9]+_[0-9]+\.safetensors")
_TITAN = re.compile(r"step-[0-9]+/.")
_FSDP_CONFIG = "fsdp_config.json"
_RANK0_FILES = (_FSDP_CONFIG, "huggingface/config.json")
_QUEUE = "transfer_queue"
_QUEUE_FILES = (f"{_QUEUE}/metadata.json", f"{_QUEUE}/controller_state.pkl")
_ROLES = ("actor", "critic", "reward")


def _parse_tracker(text: str) -> int | None:
    digits = text.strip()
    return int(digits) if re.fullmatch(r"[0-9]{1,12}", digits) else None


class Verl(Layout):
    """verl's own trainers and recipes (see the module's docstring)."""

    name: ClassVar[str] = "verl"
    pointer: ClassVar[Literal["output_dir", "state_dir"]] = "output_dir"
    barrier: ClassVar[bool] = True
    tracker: ClassVar[Tracker | None] = Tracker("latest_checkpointed_iteration.txt", _parse_tracker, str)

    def step_of(self, name: str) -> int | None:
        """`global_step_{N}` exactly: verl reads the number from the path's end and takes no suffix."""
        match = _STEP.fullmatch(name)
        return int(match[1]) if match else None

    def recognise(self, paths: Collection[str]) -> bool:
        """By what any of verl's engines writes first, or by what its retention leaves."""
        return any(
            self.shard(path) is not None
            or _is_drivers(path)
            or _TITAN.match(path)
            or path.partition("/")[0] in _ROLES
            or "dist_ckpt" in path.split("/")[:-1]
            or posixpath.basename(path) == CONTENTS
            for path in paths
        )

    def is_temporary(self, path: str) -> bool:
        """`.tmpXXXXXX` (safetensors), `.metadata.tmp` (DCP) and the like, and TransferQueue's swap directories."""
        parts = path.split("/")
        name = parts[-1]
        swapping = len(parts) > 1 and parts[0] in (f"{_QUEUE}.tmp", f"{_QUEUE}.old")
        return swapping or name.endswith(".tmp") or bool(_SAFETENSORS_TEMPORARY.fullmatch(name))

    def ignored(self, path: str) -> bool:
        """Batch files of mbridge: only rank 0 deletes them, so they stay for ever on the other nodes."""
        return bool(_BRIDGE_LEFTOVER.fullmatch(posixpath.basename(path)))

    def shard(self, path: str) -> Shard | None:
        """FSDP's shards with their world size; `.distcp` files without one (kind = their directory in the role)."""
        return _shard(path)

    def own_only(self, path: str) -> bool:
        """FSDP: a rank loads the three files with its own rank and world size in their names, and no others."""
        shard = self.shard(path)
        return shard is not None and shard.world > 0

    def closing(self, paths: Collection[str]) -> frozenset[str]:
        """What the driver wrote, with the markers of the roles.

        On a node that is not the driver's nothing closes a PPO save: a finished role may be followed by another. Where
        the driver's files are here, the markers count too: with async_save they come after `data.pt`.
        """
        driver = frozenset(p for p in paths if p == "data.pt" or _SFT_DATA.fullmatch(p) or p in _QUEUE_FILES)
        return driver | markers(paths) if driver or self._is_sft(paths) else frozenset()

    def has_barrier(self, paths: Collection[str]) -> bool:
        """PPO's driver writes after all ranks have returned; SFT's ranks don't wait for each other."""
        return self.barrier and not self._is_sft(paths)

    def missing(self, sizes: Mapping[str, int]) -> tuple[Problem, ...]:
        """Ranks, rank 0's files, markers, and the dataloader's state."""
        if self.is_husk(sizes):
            return (Problem("", "missing", "there are no shards, only what the driver writes"),)
        fsdp = self._fsdp(sizes)
        return (
            *_missing_actor({shard.role for path in sizes if (shard := self.shard(path)) is not None}),
            *missing_ranks(fsdp),
            *_missing_rank0({shard.role for shard in fsdp}, sizes),
            *missing_megatron(sizes, here=False),
            *_missing_in_queue(sizes),
            *self._missing_data(sizes),
        )

    def missing_here(self, sizes: Mapping[str, int], seen: Seen) -> tuple[Problem, ...]:
        """As `missing`, for this node's ranks only; `data.pt` is never missed, its node is not known from here."""
        shards = [shard for path in sizes if (shard := self.shard(path)) is not None]
        return (
            *missing_locally(shards, seen),
            *_missing_rank0({shard.role for shard in self._fsdp(sizes) if shard.rank == 0}, sizes),
            *missing_megatron(sizes, here=True),
            *_missing_in_queue(sizes),
        )

    def check(self, sizes: Mapping[str, int], step: int, read: Callable[[str], bytes]) -> tuple[Problem, ...]:
        """`fsdp_config.json` tells the world size of the shards; `ckpt_contents.json` tells step and places."""
        problems: list[Problem] = []
        for path in sorted(sizes):
            name = posixpath.basename(path)
            if name == _FSDP_CONFIG:
                problems += self._check_fsdp_config(path, sizes, read)
            elif name == CONTENTS:
                problems += check_contents(path, sizes, step, read)
        return tuple(problems)

    def is_husk(self, paths: Collection[str]) -> bool:
        """What retention leaves: it deletes role directories and nothing else."""
        return all(_is_drivers(path) for path in paths)

    def resume_args(self, path: str) -> list[str]:
        """The loader insists on a path that ends with `global_step_{N}`: no slash, no link called `latest`."""
        return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={path.rstrip('/')}"]

    def _fsdp(self, paths: Collection[str]) -> list[Shard]:
        return [shard for path in paths if (shard := self.shard(path)) is not None and shard.world]

    def _is_sft(self, paths: Collection[str]) -> bool:
        """Shards or markers without a role directory, or one dataloader state per data-parallel rank."""
        return any(
            _SFT_DATA.fullmatch(path)
            or path == CONTENTS
            or ((shard := self.shard(path)) is not None and not shard.role)
            for path in paths
        )

    def _missing_data(self, paths: Collection[str]) -> tuple[Problem, ...]:
        if "data.pt" in paths:
            return ()
        if not self._is_sft(paths):
            return (Problem("data.pt", "missing", "missing: the driver's node writes it last"),)
        if any(_SFT_DATA.fullmatch(path) for path in paths):
            return ()
        return (Problem("data_0.pt", "missing", "missing: there is no dataloader state, which is written last"),)

    def _check_fsdp_config(
        self, path: str, sizes: Mapping[str, int], read: Callable[[str], bytes]
    ) -> tuple[Problem, ...]:
        document = read_object(path, sizes, read)
        if isinstance(document, Problem):
            return (document,)
        role = posixpath.dirname(path)
        worlds = sorted({shard.world for shard in self._fsdp(sizes) if shard.role == role})
        said = document.get("world_size")
        if said is None or not worlds or worlds == [said]:
            return ()
        names = " and ".join(str(world) for world in worlds)
        return (Problem(path, "world-size", f"it says world size {said!r}, the shards' names say {names}"),)


def _is_drivers(path: str) -> bool:
    """What is left of a step when its shards are gone."""
    return (
        path in ("data.pt", "lora_train_meta.json")
        or bool(_SFT_DATA.fullmatch(path))
        or path.partition("/")[0] in (_QUEUE, f"{_QUEUE}.tmp", f"{_QUEUE}.old")
    )


@lru_cache(maxsize=65536)
def _shard(path: str) -> Shard | None:
    """Asked for each file of each step at each pass of the daemon, and the names repeat from step to step."""
    directory, name = posixpath.split(path)
    match = _FSDP.fullmatch(name)
    if match:
        world, rank = int(match[2]), int(match[3])
        return Shard(directory, match[1], rank, world) if rank < world else None
    rank_of_distcp = distcp_rank(name)
    return None if rank_of_distcp is None else Shard(*role_and_kind(directory), rank_of_distcp)


def _missing_actor(roles: Collection[str]) -> tuple[Problem, ...]:
    """A critic is never saved without, and never before, its actor."""
    if "critic" not in roles or "actor" in roles:
        return ()
    return (Problem("actor", "missing", "the actor's shards are missing; the critic's are here"),)


def _missing_rank0(roles: Collection[str], paths: Collection[str]) -> tuple[Problem, ...]:
    wanted = (posixpath.join(role, name) for role in sorted(roles) for name in _RANK0_FILES)
    said = "missing: rank 0 writes it after its shards, so its save was cut short"
    return tuple(Problem(path, "missing", said) for path in wanted if path not in paths)


def _missing_in_queue(paths: Collection[str]) -> tuple[Problem, ...]:
    if not any(path.startswith(f"{_QUEUE}/") for path in paths):
        return ()
    return tuple(Problem(path, "missing", "missing from transfer_queue") for path in _QUEUE_FILES if path not in paths)
