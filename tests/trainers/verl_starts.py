"""Asks verl's own trainers from which step they would resume: cases as JSON on stdin, steps as JSON in the last line.

A case: `trainer` ("ppo" or "sft"), `mode`, `path` (or null), `directory`. An answer: a step, 0 = from scratch, or
"stops" where the trainer ends with an error.
"""

import json
import sys
from types import SimpleNamespace

from omegaconf import OmegaConf
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.checkpoint.checkpoint_handler import CheckpointHandler


class Workers:
    """Loads nothing."""

    def load_checkpoint(self, *args, **kwargs):
        """The engine's part."""


def ppo(case):
    """The step that the PPO trainer sets."""
    trainer = {
        "resume_mode": case["mode"],
        "resume_from_path": case["path"],
        "default_local_dir": case["directory"],
        "default_hdfs_dir": None,
        "del_local_ckpt_after_load": False,
    }
    fake = SimpleNamespace(
        config=OmegaConf.create({"trainer": trainer}),
        actor_rollout_wg=Workers(),
        use_critic=False,
        global_steps=0,
        train_dataloader=[],
    )
    try:
        RayPPOTrainer._load_checkpoint(fake)
    except TypeError:  # it has come to the dataloader's state, which is none here
        pass
    except AttributeError as error:
        if "load_state_dict" not in str(error):
            raise
    return fake.global_steps


def sft(case):
    """The step that the SFT trainer sets."""
    handler = CheckpointHandler.__new__(CheckpointHandler)
    handler.resume_mode, handler.resume_from_path = case["mode"], case["path"]
    handler.default_local_dir, handler.rank, handler.dp_rank = case["directory"], 0, 0
    handler.engine = Workers()
    handler._load_dataloader_state = lambda _: None
    return handler.load_checkpoint()


def answer(case):
    """What one trainer does."""
    try:
        return {"ppo": ppo, "sft": sft}[case["trainer"]](case)
    except (AssertionError, OSError, TypeError, ValueError):
        return "stops"


sys.stdout.write("\n" + json.dumps([answer(case) for case in json.load(sys.stdin)]))
