"""One rank of a tiny verl training: `verl_ranks.py save|load ROOT`, started by torchrun with gloo on the CPU.

Shards are written and read by verl's own FSDPCheckpointManager, the tracker is followed by verl's own
find_latest_ckpt_path. `save` trains a few steps and saves step 2 and 4 in the order of verl's trainers: shards, then
data.pt and tracker on rank 0. `load` restores what the tracker names and prints a digest per rank.
Only the device layer is replaced: verl has no CPU platform of its own.
"""

import hashlib
import os
import sys

os.environ["VERL_PLATFORM"] = "cpu"

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry


def cpu_platform():
    """verl knows accelerators only: a platform of its kind that answers `cpu`, and gloo for the network."""
    answers = {
        "is_available": True,
        "is_platform_available": True,
        "current_device": 0,
        "communication_backend_name": "gloo",
    }
    methods = {name: lambda *_, _answer=answer, **__: _answer for name, answer in answers.items()}
    return type("CpuPlatform", (PlatformCUDA,), {**methods, "device_name": "cpu", "device_module": torch.cpu})


PlatformRegistry.register(platform="cpu")(cpu_platform())
torch.cpu.set_rng_state = torch.set_rng_state  # the generators are restored through the device's module

from omegaconf import OmegaConf
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

VOCABULARY = 128
CONTENTS = ["model", "optimizer", "extra"]


def tokenizer():
    from tokenizers import Tokenizer, models

    words = {f"w{index}": index for index in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w1")


def build(seed, mesh):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        architectures=["Qwen2ForCausalLM"],
    )
    model = FullyShardedDataParallel(
        Qwen2ForCausalLM(config),
        device_mesh=mesh,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        use_orig_params=False,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    manager = FSDPCheckpointManager(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        processing_class=tokenizer(),
        checkpoint_config=OmegaConf.create({"save_contents": CONTENTS, "load_contents": CONTENTS}),
    )
    return model, optimizer, scheduler, manager


def save(root, rank, mesh):
    model, optimizer, scheduler, manager = build(1, mesh)
    for step in range(1, 5):
        ids = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(step * 10 + rank))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 2:
            continue
        path = os.path.join(root, f"global_step_{step}")
        manager.save_checkpoint(
            local_path=os.path.join(path, "actor"), hdfs_path=None, global_step=step, max_ckpt_to_keep=None
        )
        if rank == 0:
            torch.save({"samples": step * 2}, os.path.join(path, "data.pt"))
            with open(os.path.join(root, "latest_checkpointed_iteration.txt"), "w") as tracker:
                tracker.write(str(step))
        dist.barrier()


def load(root, rank, mesh):
    model, optimizer, scheduler, manager = build(99, mesh)
    latest = find_latest_ckpt_path(root)
    manager.load_checkpoint(local_path=os.path.join(latest, "actor"))
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "step")]
    digest = hashlib.sha256(repr(scheduler.state_dict()).encode())
    for tensor in [*model.parameters(), *moments, torch.get_rng_state()]:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    print(f"RESTORED rank {rank} {os.path.basename(latest)} {digest.hexdigest()}", flush=True)
    dist.barrier()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    {"save": save, "load": load}[sys.argv[1]](sys.argv[2], rank, mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
