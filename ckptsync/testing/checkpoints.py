"""Small checkpoint trees as the trainers write them: real names, real formats, the real order of writing.

For tests, benchmarks and the demo. Nothing here needs torch; with `real=True` torch itself writes the torch files.
Every function writes one node's share of one step below `root` and returns the step directory. Bytes are a pure
function of seed, step and path, so that equal calls give equal files, and two nodes' shares fit together.

Common arguments:
    world, ranks: world size, and which of its ranks write here.
    driver: whether this node's process also writes what only the driver does (`data.pt`, the tracker).
    tracker: whether that includes the tracker file in `root`.
    seed: another seed gives other tensors of the same shapes.
    n: bytes of tensor data in one file of weights, at least 8; files of states have their own size.
    pause: called with each file's path (relative to `root`) after it has been written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from ckptsync.testing.fileshapes import Pause, Scribe, dcp_item, dcp_metadata
from ckptsync.testing.states import generators_file, schedule_file, verl_extra_state

__all__ = [
    "age",
    "dcp_step",
    "hf_step",
    "layered_step",
    "megatron_v1_step",
    "megatron_v2_step",
    "verl_sft_step",
    "verl_step",
]

KINDS = ("model", "optim", "extra_state")
TRACKER = "latest_checkpointed_iteration.txt"
_SMALL = 64


def verl_step(
    root: Path,
    step: int,
    *,
    world: int = 1,
    ranks: Collection[int] | None = None,
    roles: Sequence[str] = ("actor",),
    kinds: Sequence[str] = KINDS,
    hf: bool = False,
    driver: bool = True,
    tracker: bool = True,
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A verl PPO step with the FSDP engine. `hf` adds the `hf_model` export on rank 0's node."""
    scribe = Scribe(root, f"global_step_{step}", seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    for role in roles:
        _fsdp(scribe, step, f"{role}/", world, _ranks(ranks, world), kinds, hf=hf)
    if driver:
        scribe.torch("data.pt", _SMALL)
        if tracker:
            scribe.beside(TRACKER, str(step))
    return scribe.directory


def verl_sft_step(
    root: Path,
    step: int,
    *,
    world: int = 1,
    ranks: Collection[int] | None = None,
    kinds: Sequence[str] = KINDS,
    hf: bool = False,
    tracker: bool = True,
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A verl SFT step with the FSDP engine: no role directory, `data_{rank}.pt` per rank, the tracker by rank 0."""
    mine = _ranks(ranks, world)
    scribe = Scribe(root, f"global_step_{step}", seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    _fsdp(scribe, step, "", world, mine, kinds, hf=hf)
    for rank in mine:
        scribe.torch(f"data_{rank}.pt", _SMALL)
    if tracker and 0 in mine:
        scribe.beside(TRACKER, str(step))
    return scribe.directory


def megatron_v1_step(
    root: Path,
    step: int,
    *,
    world: int = 2,
    ranks: Collection[int] | None = None,
    roles: Sequence[str] = ("actor",),
    driver: bool = True,
    tracker: bool = True,
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A verl PPO step with the Megatron engine of verl 0.4.1 to 0.8."""
    mine = _ranks(ranks, world)
    scribe = Scribe(root, f"global_step_{step}", seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    for role in roles:
        _torch_dist(scribe, f"{role}/dist_ckpt/", world, mine)
        if 0 in mine:
            _huggingface(scribe, f"{role}/huggingface/")
            scribe.json(f"{role}/transformer_config.json", {"num_layers": 2})
    if driver:
        scribe.torch("data.pt", _SMALL)
        if tracker:
            scribe.beside(TRACKER, str(step))
    return scribe.directory


def megatron_v2_step(
    root: Path,
    step: int,
    *,
    world: int = 2,
    ranks: Collection[int] | None = None,
    roles: Sequence[str] = ("actor",),
    driver: bool = True,
    tracker: bool = True,
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A verl PPO step with the Megatron engine of verl 0.9: three `dist_ckpt/` and `ckpt_contents.json`."""
    mine = _ranks(ranks, world)
    scribe = Scribe(root, f"global_step_{step}", seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    for role in roles:
        for piece in ("model", "optimizer", "extra"):
            _torch_dist(scribe, f"{role}/{piece}/dist_ckpt/", world, mine)
        if 0 in mine:
            _huggingface(scribe, f"{role}/model/huggingface/")
            scribe.json(f"{role}/transformer_config.json", {"num_layers": 2})
            scribe.json(f"{role}/ckpt_contents.json", _contents(step, world), renamed=True)
    if driver:
        scribe.torch("data.pt", _SMALL)
        if tracker:
            scribe.beside(TRACKER, str(step))
    return scribe.directory


def layered_step(
    root: Path,
    step: int,
    *,
    epoch: float = 0,
    rollout: bool = True,
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A step of the layout `verl_layered`. `rollout` adds the engine's state."""
    scribe = Scribe(root, f"step_{step}", seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    scribe.torch("actor/pytorch_model.bin")
    scribe.torch("actor/optimizer.pt", 2 * n)
    scribe.saved("actor/scheduler.pt", schedule_file("scheduler", step))
    scribe.torch("ref/pytorch_model.bin", key="ref")  # frozen: the same bytes at every step
    if rollout:
        scribe.json("rollout/engine_state.json", {"engine": "vllm", "weights_version": step})
    rng = {name: scribe.base64(name, 48) for name in ("python", "numpy", "torch")}
    state = {
        "global_step": step,
        "epoch": epoch,
        "rng_states": {**rng, "cuda": [scribe.base64(f"cuda:{device}", 16) for device in range(2)]},
        "dataloader_state": {"samples_yielded": 8 * step},
    }
    scribe.json("trainer_state.json", state)
    return scribe.directory


def hf_step(
    root: Path,
    step: int,
    *,
    world: int = 1,
    ranks: Collection[int] | None = None,
    shards: int = 1,
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A step of the Hugging Face trainer; rank 0 writes all but the RNG states. `shards` > 1 adds an index."""
    mine = _ranks(ranks, world)
    scribe = Scribe(root, f"checkpoint-{step}", seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    if 0 in mine:
        scribe.json("config.json", {"model_type": "qwen2"})
        _safetensors(scribe, "", shards)
        scribe.json("tokenizer.json", {"version": "1.0"})
        scribe.torch("training_args.bin", _SMALL)
        scribe.torch("optimizer.pt", 2 * n)
        scribe.saved("scheduler.pt", schedule_file("scheduler", step))
    for rank in mine:
        path = "rng_state.pth" if world == 1 else f"rng_state_{rank}.pth"
        scribe.saved(path, generators_file(Path(path).stem, scribe.noise(path, _SMALL)))
    if 0 in mine:
        scribe.json("trainer_state.json", {"global_step": step, "epoch": 0.5, "log_history": []})
    return scribe.directory


def dcp_step(
    root: Path,
    step: int,
    *,
    world: int = 2,
    ranks: Collection[int] | None = None,
    name: str = "step-{}",
    seed: int = 0,
    n: int = 2048,
    real: bool = False,
    pause: Pause | None = None,
) -> Path:
    """A step of PyTorch's distributed checkpoint; rank 0 coordinates. `name` is the directory's format string."""
    scribe = Scribe(root, name.format(step), seed=f"{seed}/{step}", n=n, real=real, pause=pause)
    _dcp(scribe, "", world, _ranks(ranks, world))
    return scribe.directory


def age(path: Path, seconds: float) -> None:
    """Move all mtimes of a tree (files, links, directories, `path` itself) back by `seconds`; their order stays."""
    shift = int(seconds * 10**9)
    entries = [path, *(Path(top, name) for top, dirs, files in os.walk(path) for name in (*dirs, *files))]
    for entry in entries:
        stat = entry.lstat()
        os.utime(entry, ns=(stat.st_atime_ns, stat.st_mtime_ns - shift), follow_symlinks=False)


def _ranks(ranks: Collection[int] | None, world: int) -> list[int]:
    return sorted(range(world) if ranks is None else ranks)


def _fsdp(
    scribe: Scribe, step: int, role: str, world: int, ranks: list[int], kinds: Sequence[str], *, hf: bool
) -> None:
    for rank in ranks:
        for kind in kinds:
            path = f"{role}{kind}_world_size_{world}_rank_{rank}.pt"
            if kind == "extra_state":
                scribe.saved(path, verl_extra_state(Path(path).stem, scribe.noise(path, _SMALL), step))
            else:
                scribe.torch(path, 2 * scribe.n if kind == "optim" else None)
    if 0 in ranks:
        _huggingface(scribe, f"{role}huggingface/")
        scribe.text(f"{role}fsdp_config.json", json.dumps({"FSDP_version": 1, "world_size": world}, indent=4))
        if hf:
            scribe.json(f"{role}huggingface/config.json", {"model_type": "qwen2", "torch_dtype": "bfloat16"})
            _safetensors(scribe, f"{role}huggingface/", 1)


def _huggingface(scribe: Scribe, directory: str) -> None:
    scribe.json(f"{directory}config.json", {"model_type": "qwen2"})
    scribe.json(f"{directory}tokenizer_config.json", {"model_max_length": 1024})
    scribe.json(f"{directory}tokenizer.json", {"version": "1.0"})


def _safetensors(scribe: Scribe, directory: str, shards: int) -> None:
    names = [f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)]
    names = names if shards > 1 else ["model.safetensors"]
    for name in names:
        scribe.safetensors(f"{directory}{name}", f"layers.{name}.weight")
    if shards > 1:
        index = {"metadata": {}, "weight_map": {f"layers.{name}.weight": name for name in names}}
        scribe.json(f"{directory}model.safetensors.index.json", index)


def _dcp(scribe: Scribe, directory: str, world: int, ranks: list[int]) -> None:
    """Each rank's file holds two tensors; the coordinator names all ranks' files, wherever they are."""
    items: dict[str, list[tuple[str, bytes]]] = {}
    for rank in range(world):
        names = [f"model.layers.{rank}.weight", f"optimizer.state.{rank}.exp_avg"]
        items[f"__{rank}_0.distcp"] = [(name, dcp_item(scribe, f"{directory}{name}")) for name in names]
    for rank in ranks:
        file = f"__{rank}_0.distcp"
        scribe.raw(f"{directory}{file}", b"".join(data for _, data in items[file]))
    if 0 in ranks:
        sizes = {file: [(name, len(data)) for name, data in pieces] for file, pieces in items.items()}
        scribe.raw(f"{directory}.metadata", dcp_metadata(sizes), renamed=True)


def _torch_dist(scribe: Scribe, directory: str, world: int, ranks: list[int]) -> None:
    if 0 in ranks:
        scribe.torch(f"{directory}common.pt", _SMALL)
    _dcp(scribe, directory, world, ranks)
    if 0 in ranks:
        scribe.json(f"{directory}metadata.json", {"sharded_backend": "torch_dist", "sharded_backend_version": 1})


def _contents(step: int, world: int) -> dict[str, object]:
    dist = "megatron_dist_checkpoint"
    return {
        "schema_version": 2,
        "framework": "megatron",
        "global_step": step,
        "world_size": world,
        "contents": {
            "model": {"path": "model/dist_ckpt", "format": dist},
            "optimizer": {"path": "optimizer/dist_ckpt", "format": dist},
            "rng_state": {"path": "extra/dist_ckpt", "format": dist, "key": "rng_state"},
            "transformer_config": {"path": "transformer_config.json", "format": "json"},
            "hf_config": {"path": "model/huggingface", "format": "huggingface"},
        },
    }
