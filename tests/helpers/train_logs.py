"""Lines as trainers print them: verl 0.9.1 (V1 and legacy, under Ray), and layered ones."""

from __future__ import annotations

import math

RAY = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "


def metrics(step: int, **changes: float) -> dict[str, float]:
    """What a sound step logs; names with `__` for `/`. Changes of None leave a metric out."""
    wobble = math.sin(step)
    found = {
        "actor/entropy": 0.9 - 0.002 * step + 0.01 * wobble,
        "actor/pg_loss": 0.01 * wobble,
        "actor/kl_loss": 0.02 + 0.001 * wobble,
        "actor/loss": 0.03 + 0.01 * wobble,
        "actor/grad_norm": 0.4,
        "actor/lr": 1e-6,
        "training/global_step": step,
        "training/epoch": step // 30,
        "critic/score/mean": 0.3 + 0.05 * wobble,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": 0.3,
        "critic/rewards/max": 1.0,
        "critic/rewards/min": 0.0,
        "critic/advantages/mean": 0.0,
        "critic/advantages/max": 1.7,
        "critic/advantages/min": -1.2,
        "response_length/mean": 220.0 + wobble,
        "response_length/max": 512.0,
        "response_length/min": 31.0,
        "response_length/clip_ratio": 0.01,
        "perf/max_memory_allocated_gb": 40.0,
    }
    changes = {name.replace("__", "/"): value for name, value in changes.items()}
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


def step_line(step: int, prefix: str = RAY, **changes: float) -> str:
    """As `utils/logger/aggregate_logger.py` prints them; numpy's numbers, too."""
    pairs = (
        f"{name}:np.float64({value!r})" if name == "critic/score/mean" else f"{name}:{value!r}"
        for name, value in metrics(step, **changes).items()
    )
    return f"{prefix}step:{step} - {' - '.join(pairs)}\n"


def steps(first: int, last: int, **changes: float) -> list[str]:
    return [step_line(step, **changes) for step in range(first, last + 1)]


def v1_start(step: int, root: str = "/c") -> list[str]:
    """verl 0.9.1, `trainer/ppo/v1/trainer_base.py`; validation before training logs the step resumed from."""
    return [
        f"{RAY}INFO:2026-01-02 03:04:05,678:Resuming from {root}/global_step_{step}, setting global step to {step}\n",
        f"{RAY}Initial validation metrics: {{'val-core/openai/gsm8k/reward/mean@1': 0.61}}\n",
        f"{RAY}step:{step} - val-core/openai/gsm8k/reward/mean@1:np.float64(0.61) - val-aux/num_turns/mean:2.0\n",
        f"{RAY}Training Progress:  {step}%|####      | {step}/100 [00:00<?, ?it/s]\n",
    ]


def legacy_start(step: int, root: str = "/c") -> list[str]:
    """verl 0.9.1, `trainer/ppo/ray_trainer.py`."""
    return [
        f"{RAY}Load from checkpoint folder: {root}/global_step_{step}\n",
        f"{RAY}Setting global step to {step}\n",
        f"{RAY}Resuming from {root}/global_step_{step}\n",
    ]


def layered_start(step: int, epoch: int, offset: int, optimizer: int | None = None) -> list[str]:
    return [
        f"Resuming from step {step}, epoch {epoch}\n",
        f"Loaded actor optimizer with step {step if optimizer is None else optimizer}\n",
        f"Dataloader offset set to {offset}\n",
    ]
