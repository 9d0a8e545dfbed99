"""Where the resume arguments go in a command, and what a recorded command becomes when it is run again."""

from __future__ import annotations

import shlex

import pytest

from ckptsync.errors import UsageError
from ckptsync.resume.running.rewriting import again, is_script_of_a_shell, to_resume

VERL = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/o/global_step_40"]
LAYERED = ["trainer.resume_from_checkpoint=/o/step_40", "--no-rollout-state-restore"]
BOTH = " ".join(VERL)


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("python -m verl a=b", VERL, f"python -m verl a=b {BOTH}"),
        ("bash train.sh", VERL, f"bash train.sh {BOTH}"),
        ("bash train.sh {resume} last", VERL, f"bash train.sh {BOTH} last"),
        ("t trainer.resume_mode=auto a=b", VERL, f"t {VERL[0]} a=b {VERL[1]}"),
        ("t +trainer.resume_mode=disable x ++trainer.resume_mode=auto", VERL, f"t {VERL[0]} x {VERL[1]}"),
        ("t ~trainer.resume_from_path a=b", VERL, f"t {VERL[1]} a=b {VERL[0]}"),
        ("t trainer.resume_mode=auto {resume} a=b", VERL, f"t {BOTH} a=b"),
        ("t trainer.resume_mode_x=1", VERL, f"t trainer.resume_mode_x=1 {BOTH}"),
        ("t --rollout-state-restore a=b", LAYERED, f"t {LAYERED[1]} a=b {LAYERED[0]}"),
        ("t --no-rollout-state-restore", LAYERED, f"t {LAYERED[1]} {LAYERED[0]}"),
        ("t --resume /old x", ["--resume=/new"], "t --resume=/new x"),
        ("t --resume=/old x", ["--resume", "/new"], "t --resume /new x"),
        ("t --resume --fast", ["--resume", "/new"], "t --resume /new --fast"),
        ("t --fast a=b", ["--resume", "/new"], "t --fast a=b --resume /new"),
        ("t a {resume} b", [], "t a b"),
        ("t trainer.resume_mode=auto", [], "t trainer.resume_mode=auto"),
    ],
)
def test_each_argument_is_said_once_and_in_its_place(command, arguments, expected):
    assert shlex.join(to_resume(command.split(), arguments)) == expected


def test_a_place_within_a_word_gets_them_as_a_shell_reads_them():
    found = to_resume(["bash", "-c", "train {resume} | tee log"], ["--resume=/a b"])
    assert found == ("bash", "-c", "train '--resume=/a b' | tee log")
    assert to_resume(["bash", "-c", "train {resume} | tee log"], []) == ("bash", "-c", "train  | tee log")


@pytest.mark.parametrize(
    "command", ["sh -c X", "bash -lc X", "env A=1 bash -o pipefail -c X", "/bin/bash --login -c X"]
)
def test_what_follows_a_script_never_reaches_the_trainer(command):
    assert is_script_of_a_shell(command.split())
    with pytest.raises(UsageError, match=r"write \{resume\} into the script"):
        to_resume(command.split(), VERL)
    assert to_resume(command.split(), []) == tuple(command.split())


@pytest.mark.parametrize("command", ["bash train.sh -c", "python -c X", "train.sh -c x", "srun bash -x train.sh"])
def test_other_commands_take_what_follows(command):
    assert to_resume(command.split(), VERL) == (*command.split(), *VERL)


SETTINGS = {
    "trainer.nnodes": 2,
    "trainer.n_gpus_per_node": 8,
    "trainer.project_name": "not what decides",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": -1,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.rollout.n": 5,
    "actor_rollout_ref.model._target_": "verl.workers.config.HFModelConfig",
    "actor_rollout_ref.model.path": "/models/a b",
    "actor_rollout_ref.model.lora_alpha": None,
    "actor_rollout_ref.model.override_config": {},
    "algorithm.adv_estimator": "grpo",
}


def test_what_must_stay_is_said_explicitly():
    found = again(["python", "-m", "verl", "trainer.nnodes=2", "a=b"], SETTINGS, ["a=c", "d=e"])
    assert found[:5] == ("python", "-m", "verl", "trainer.nnodes=2", "a=c")
    assert set(found[5:]) == {
        "d=e",
        "trainer.n_gpus_per_node=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=1",
        "actor_rollout_ref.actor.fsdp_config.fsdp_size=-1",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
        "actor_rollout_ref.rollout.n=5",
        'actor_rollout_ref.model.path="/models/a b"',
        "actor_rollout_ref.model.lora_alpha=null",
        "algorithm.adv_estimator=grpo",
    }
    assert again(["sh", "-c", "train"], SETTINGS, []) == ("sh", "-c", "train")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("t a.api_key=*** b=c", ["a.api_key=s"]),
        ("t --hf-token *** b=c", ["--hf-token", "s"]),
        ("t --hf-token=*** b=c", ["--hf-token=s"]),
    ],
)
def test_a_secret_has_to_be_given_again(command, extra):
    with pytest.raises(UsageError, match=r"\*\*\*.*give it again"):
        again(command.split(), {}, [])
    found = again(command.split(), {}, extra)
    assert found[-1] == "b=c"
    assert "s" in " ".join(found)
