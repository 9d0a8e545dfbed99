"""`parallelism`: as many ranks, cut in the same way, as the step's files were written by.

Facts (verl 0.9.1): an FSDP rank loads only the files with its own rank and world size in their names
(utils/checkpoint/fsdp_checkpoint_manager.py), so another world size finds nothing. `actor.strategy` decides between
FSDP 1 (ShardedTensor) and 2 (DTensor) for the whole engine (workers/config/actor.py), and `fsdp_config.json` tells
which one wrote. Megatron's dist_ckpt is laid out anew for another data-parallel size; for tensor, pipeline and expert
sizes the optimizer only if it was saved with `dist_ckpt_optim_fully_reshardable` (config/engine/megatron.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ckptsync.layouts.verl_megatron import CONTENTS
from ckptsync.resume.compare import Finding, Pair, judge, judged, not_known, override, pairs, record_it
from ckptsync.resume.contents.step_json import named, object_in
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome
from ckptsync.resume.settings import Known, same

__all__ = ["check"]

_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_STRATEGY = "actor_rollout_ref.actor.strategy"
_ACTOR = "actor_rollout_ref.actor"
_MEGATRON_SIZES = tuple(
    f"{_ACTOR}.megatron.{name}"
    for name in (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "use_megatron_fsdp",
        "use_distributed_optimizer",
    )
)
_RESHARDABLE = f"{_ACTOR}.megatron.dist_ckpt_optim_fully_reshardable"
_CUTS = (
    _STRATEGY,
    f"{_ACTOR}.fsdp_config.fsdp_size",
    "critic.strategy",
    "critic.fsdp.fsdp_size",
    "engine.strategy",
    "engine.fsdp_size",
)
"""How FSDP cuts the parameters; `engine.*` is verl's SFT trainer."""
_LOOK_AT = (
    *(f"{_ACTOR}.{name}" for name in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")),
    *(
        f"{_ACTOR}.fsdp_config.{name}"
        for name in ("model_dtype", "dtype", "use_orig_params", "wrap_policy.min_num_params")
    ),
    f"{_ACTOR}.megatron.sequence_parallel",
    *(
        f"actor_rollout_ref.rollout.{name}"
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "data_parallel_size",
            "expert_parallel_size",
        )
    ),
)
"""Loads all the same: the rollout engine gets its weights from the actor. But numbers and memory change."""
_HARMLESS = tuple(
    f"{_ACTOR}.fsdp_config.{name}"
    for name in ("param_offload", "optimizer_offload", "offload_policy", "reshard_after_forward", "forward_prefetch")
)
_FSDP_VERSIONS = {"fsdp": 1, "fsdp2": 2}
_DIGITS_MAX = 9


def check(context: Context) -> Outcome:
    """fail: the shards were cut for another world size or in another way; warn: what changes speed, memory, numbers.

    skip: neither the step nor a record tells the world size, or the start's is not known.
    """
    findings = [
        _world(context),
        *_fsdp_versions(context),
        *(judged(each, changed="warn") for each in pairs(context, (_NODES, _GPUS))),
        *(judged(each, changed="fail") for each in pairs(context, _cuts(context))),
        *(judged(each, changed=_megatron(context)) for each in pairs(context, _MEGATRON_SIZES)),
        *(judged(each, changed="warn") for each in pairs(context, _LOOK_AT)),
        *(_told(each) for each in pairs(context, _HARMLESS)),
    ]
    return judge(findings, "as in the original")


def _cuts(context: Context) -> list[str]:
    """Algorithms without a critic have its settings all the same."""
    files = context.resumed.listing.files if context.resumed is not None else ()
    has_critic = any(path.startswith("critic/") for path in files)
    return [name for name in _CUTS if has_critic or not name.startswith("critic.")]


def _told(each: Pair) -> Finding:
    """Offloading and the like change where tensors live, not what is saved."""
    return Finding("pass", str(each) if each.relation == "changed" else "")


def _megatron(context: Context) -> Literal["fail", "warn"]:
    """What another tensor, pipeline or expert size is."""
    then = context.then.get(_RESHARDABLE)
    return "warn" if then is not None and same(then.value, True) else "fail"


def _world(context: Context) -> Finding:
    """The world size of the start against the one in the step, else against the original's settings."""
    wrote, source, own_only = _written(context)
    nodes, gpus = context.now.get(_NODES), context.now.get(_GPUS)
    start = _product(nodes, gpus)
    if wrote is None:
        return Finding("skip", "neither the step nor a record tells the original's world size", record_it(context))
    if start is None:
        start = context.node.config.pull.world_size
    if start is None:
        finding = not_known(context, "the number of ranks", (_NODES, _GPUS), then=False, now=True)
        what = f"{wrote} ranks wrote the step ({source}); {finding.message}"
        return Finding("skip", what, f"{finding.remedy}; or set [pull] world_size")
    if start == wrote:
        return Finding("pass", f"world size {wrote} ({source})")
    remedy = f"start it on {wrote} ranks"
    if nodes is not None and gpus is not None:
        same_as_then = _product(context.then.get(_NODES), context.then.get(_GPUS)) == wrote
        remedy = "" if same_as_then else f"add {_split(wrote, nodes, gpus)}"  # else the settings themselves say it
    what = f"{wrote} ranks wrote the step ({source}), the start has {start}"
    return Finding("fail" if own_only else "warn", f"{what}{', and each reads only its own file' * own_only}", remedy)


def _split(world: int, nodes: Known, gpus: Known) -> str:
    """The arguments for `world` ranks: other nodes, or where that does not come out even, other GPUs on each."""
    per_node, count = _whole(gpus.value), _whole(nodes.value)
    if per_node and world % per_node == 0:
        return override(_NODES, world // per_node)
    if count and world % count == 0:
        return override(_GPUS, world // count)
    return f"{override(_NODES, 1)} {override(_GPUS, world)}"


def _written(context: Context) -> tuple[int | None, str, bool]:
    """The original's world size, where that was found, and whether a rank can read no other rank's file."""
    resumed, layout = context.resumed, context.node.layout
    if resumed is not None and layout is not None:
        shards = {path: shard.world for path in resumed.listing.files if (shard := layout.shard(path)) and shard.world}
        if shards:
            path = max(shards, key=lambda name: (shards[name], name))
            return shards[path], path, layout.own_only(path)
        for path in named(resumed, CONTENTS):
            said = _whole((object_in(resumed, path) or {}).get("world_size"))
            if said is not None:
                return said, path, False
    nodes, gpus = context.then.get(_NODES), context.then.get(_GPUS)
    world = _product(nodes, gpus)
    return world, gpus.source if gpus is not None and world is not None else "", False


def _product(nodes: Known | None, gpus: Known | None) -> int | None:
    if nodes is None or gpus is None:
        return None
    count, per_node = _whole(nodes.value), _whole(gpus.value)
    return count * per_node if count and per_node else None


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX and not isinstance(value, bool) else None


def _fsdp_versions(context: Context) -> Iterator[Finding]:
    """`fsdp_config.json` of the actor against the strategy of the start."""
    now = context.now.get(_STRATEGY)
    if context.resumed is None or now is None or str(now.value) not in _FSDP_VERSIONS:
        return
    for path in named(context.resumed, "fsdp_config.json"):
        if not path.startswith("actor/"):
            continue
        wrote = (object_in(context.resumed, path) or {}).get("FSDP_version")
        strategy = next((name for name, version in _FSDP_VERSIONS.items() if version == wrote), None)
        if strategy == str(now.value):
            yield Finding("pass", f"FSDP version {wrote} ({path})")
        elif strategy is not None:
            what = f"{path}: FSDP version {wrote} wrote the step, and the start has {override(_STRATEGY, now.value)}"
            yield Finding("fail", what, f"add {override(_STRATEGY, strategy)}")
