"""A Hydra application in verl's shape: a package with config groups, and an entry point with `@hydra.main`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MAIN = """
import hydra


@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    print(config.trainer.nnodes)


if __name__ == "__main__":
    main()
"""

CONFIGS = {
    "ppo_trainer.yaml": """
defaults:
  - model_engine: dp
  - actor@actor_rollout_ref.actor: ${model_engine}_actor
  - rollout@actor_rollout_ref.rollout: rollout
  - _self_

actor_rollout_ref:
  hybrid_engine: true
  model:
    path: ???
    use_remove_padding: true

data:
  train_files: ~/data/train.parquet
  train_batch_size: 1024

algorithm:
  adv_estimator: gae
  kl_ctrl: {type: fixed, kl_coef: 0.001}

trainer:
  nnodes: 1
  n_gpus_per_node: 8
  logger: ["console", "wandb"]
  project_name: p
  experiment_name: e
  default_local_dir: checkpoints/${trainer.project_name}/${trainer.experiment_name}
  resume_mode: auto
  sync: {}
""",
    "model_engine/dp.yaml": "",
    "model_engine/megatron.yaml": "",
    "actor/dp_actor.yaml": """
strategy: fsdp
optim: {lr: 1e-6}
rollout_n: ${oc.select:actor_rollout_ref.rollout.n,1}
""",
    "actor/megatron_actor.yaml": "strategy: megatron\noptim:\n  lr: 1e-6\n",
    "rollout/rollout.yaml": "name: ???\nn: 1\nseed: ${oc.env:ROLLOUT_SEED}\n",
}


class HydraApp:
    """The package `acme` below `root`. Each import of it, or of its entry point, leaves a trace."""

    module = "acme.trainer.main_ppo"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trace = root / "imported"
        noted = f"open({str(self.trace)!r}, 'a').write(__name__ + '\\n')\n"
        package = root / "acme" / "trainer"
        (package / "config").mkdir(parents=True)
        (root / "acme" / "__init__.py").write_text(noted)
        (package / "__init__.py").write_text("")
        (package / "main_ppo.py").write_text(noted + MAIN)
        for name, text in CONFIGS.items():
            path = package / "config" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    @property
    def env(self) -> dict[str, str]:
        """Where the package is found, without bytecode beside it."""
        return {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}

    def words(self, *arguments: str, python: str = sys.executable) -> tuple[str, ...]:
        """The command."""
        return (python, "-m", self.module, *arguments)

    def run(self, cwd: Path, *arguments: str) -> str:
        """Run it really; returns what it printed."""
        cwd.mkdir(parents=True, exist_ok=True)
        env = {**self.env, "ROLLOUT_SEED": "7"}
        done = subprocess.run(self.words(*arguments), cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
