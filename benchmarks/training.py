"""Checkpoints of a real, short training on the CPU: `python -m benchmarks.training DIRECTORY full|quick`.

A transformer learns a synthetic language that can be learnt (most tokens follow from the one before), so weights,
gradients and Adam moments have the distributions of a training. Three runs are written, with verl's file names:

    fp32/   global_step_10, _20: all weights trained, fp32 weights and AdamW moments
    bf16/   global_step_10: the same model, weights and moments in bf16
    lora/   global_step_10, _20: a frozen fp32 base with LoRA adapters between its tensors in one file, 95 % unchanged
    small/  global_step_10: many small JSON files of sampled tokens
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.scale import FULL, QUICK, Scale
from ckptsync.testing.checkpoints import verl_step

__all__ = ["Transformer", "batches", "main"]

VOCABULARY = 4096
HEAD = 64
BATCH, LENGTH = 8, 64
FOLLOWS = 0.75
BETWEEN = 3
"""Optimizer steps between two saves."""
LORA_SHARE = 0.05
"""Of a LoRA step: adapters and their two moments."""


class Linear(nn.Module):
    """A matrix without bias; with `rank`, frozen below a LoRA adapter, under peft's names."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs, bias=False)
        self.lora_A = nn.Linear(inputs, rank, bias=False) if rank else None
        self.lora_B = nn.Linear(rank, outputs, bias=False) if rank else None
        if self.lora_B is not None:
            nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        y: Tensor = self.base_layer(x)
        return y if self.lora_A is None or self.lora_B is None else y + self.lora_B(self.lora_A(x))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = Linear(width, 3 * width, rank), Linear(width, width, rank)
        self.up, self.down = Linear(width, 4 * width, rank), Linear(4 * width, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        q, k, v = (
            part.unflatten(-1, (self.heads, HEAD)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return out


class Transformer(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, width: int, depth: int, rank: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, rank) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and "lora_B" not in name:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) of int64 -> the mean loss of predicting each next token."""
        x = self.embed(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.embed.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def batches(seed: int, *, batch: int = BATCH, length: int = LENGTH) -> Iterator[Tensor]:
    """Endless (batch, length + 1) tokens: three of four follow from the one before, the rest are Zipf-like."""
    generator = torch.Generator().manual_seed(seed)
    follow = torch.randperm(VOCABULARY, generator=generator)
    weights = 1.0 / torch.arange(1, VOCABULARY + 1)
    while True:
        fresh = torch.multinomial(weights, batch * (length + 1), replacement=True, generator=generator)
        tokens = fresh.view(batch, length + 1)
        follows = torch.rand(batch, length + 1, generator=generator) < FOLLOWS
        for at in range(1, length + 1):
            tokens[:, at] = torch.where(follows[:, at], follow[tokens[:, at - 1]], tokens[:, at])
        yield tokens


def _train(model: Transformer, optimizer: torch.optim.Optimizer, data: Iterator[Tensor], steps: int) -> float:
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(next(data))
        loss.backward()
        optimizer.step()
    return loss.item()


def _save(root: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One rank's verl step: the small files from the generator, weights and moments as torch writes them."""
    directory = verl_step(root, step, n=64)
    torch.save(model.state_dict(), directory / "actor" / "model_world_size_1_rank_0.pt")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = {names[id(parameter)]: values for parameter, values in optimizer.state.items()}
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    saved = {"state": state, "param_groups": groups}
    torch.save(saved, directory / "actor" / "optim_world_size_1_rank_0.pt")
    os.utime(directory / "data.pt")  # the closing file comes last


def _adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-4)


def _dense(out: Path, scale: Scale) -> None:
    """The runs fp32 and bf16."""
    model, data = Transformer(scale.width, scale.depth), batches(1)
    optimizer = _adamw(model)
    for step, steps in ((10, scale.optimizer_steps), (20, BETWEEN)):
        print(f"fp32, step {step}: loss {_train(model, optimizer, data, steps):.2f}", flush=True)
        _save(out / "fp32", step, model, optimizer)
    model = model.bfloat16()
    optimizer = _adamw(model)
    print(f"bf16, step 10: loss {_train(model, optimizer, data, scale.optimizer_steps // 2):.2f}", flush=True)
    _save(out / "bf16", 10, model, optimizer)


def _lora(out: Path, scale: Scale) -> None:
    """The run lora: a base after a few steps of plain gradient descent, then frozen."""
    width, depth = scale.lora_width, scale.lora_depth
    rank = max(1, round(LORA_SHARE * 12 * width / (16 * 3) / (1 - LORA_SHARE)))
    model, data = Transformer(width, depth, rank), batches(2, batch=2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" not in name)
    base = [parameter for parameter in model.parameters() if parameter.requires_grad]
    print(f"base: loss {_train(model, torch.optim.SGD(base, lr=0.1), data, BETWEEN):.2f}", flush=True)
    model.zero_grad(set_to_none=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    optimizer = _adamw(model)
    for step in (10, 20):
        print(f"lora, step {step}: loss {_train(model, optimizer, data, BETWEEN):.2f}", flush=True)
        _save(out / "lora", step, model, optimizer)


def _small(out: Path, count: int) -> None:
    """The run small: what a trainer that logs its rollouts leaves in a step directory, 0.2 to 4 KiB each."""
    directory = verl_step(out / "small", 10, n=64)
    drawn = next(batches(3, batch=count, length=512)).tolist()
    for number, sampled in enumerate(drawn):
        folder = directory / "rollouts" / f"{number // 1000:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        tokens = sampled[: 32 + number * 37 % 480]
        record = {"prompt": number, "reward": number % 7 / 7, "tokens": tokens}
        (folder / f"{number:06d}.json").write_text(json.dumps(record))
    os.utime(directory / "data.pt")


def main() -> None:
    """Build all four runs below the directory given."""
    out, scale = Path(sys.argv[1]), {"full": FULL, "quick": QUICK}[sys.argv[2]]
    torch.manual_seed(0)
    _small(out, scale.small_files)
    _dense(out, scale)
    _lora(out, scale)


if __name__ == "__main__":
    main()
