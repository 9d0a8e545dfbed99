"""What a command line says: which trainer it starts, with which interpreter, and which settings it gives."""

from __future__ import annotations

import shlex

import pytest

from ckptsync.resume.sources.arguments import parse_arguments
from ckptsync.resume.sources.command import read_command, runs_script

VERL = "data.train_files=\"['/d/a.parquet','/d/b.parquet']\" actor.optim.lr=1e-6 trainer.nnodes=2"
VERL_VALUES = {"data.train_files": ["/d/a.parquet", "/d/b.parquet"], "actor.optim.lr": 1e-6, "trainer.nnodes": 2}


def values(text):
    found = parse_arguments(shlex.split(text))
    assert set(found.values) <= found.explicit
    assert not found.complete
    return {name: known.value for name, known in found.values.items()}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "python3 -m verl.trainer.main_ppo",
        "python3 -u -X dev -W error -m verl.trainer.main_ppo",
        "/opt/venv/bin/python3.11 -mverl.trainer.main_ppo",
        "env -u X HF_HOME=/hf NCCL_DEBUG=INFO python -m verl.trainer.main_ppo",
        "HYDRA_FULL_ERROR=1 python3 -m verl.trainer.main_ppo",
        "nohup nice -n 5 timeout -k 5 3h python3 train.py",
        "srun --ntasks-per-node=1 -N 4 --export=ALL,A=b python3 train.py",
        "numactl --cpunodebind=0 python3 train.py",
        "torchrun --nnodes=2 --nproc-per-node 8 --rdzv-endpoint h:1 -m verl.trainer.sft_trainer",
        "torchrun --standalone --nnodes=1 --nproc_per_node=8 train.py",
        "python -m torch.distributed.run --nproc_per_node 8 train.py",
        "python -m torch.distributed.run --nproc_per_node 8 -m pkg.train",
        "accelerate launch --config_file acc.yaml --num_processes 8 train.py",
        "deepspeed --num_gpus 8 --module pkg.train",
        "ray job submit --address=http://10.0.0.1:8265 --runtime-env=env.yaml --no-wait -- python3 -m verl.main",
        "bash -x run_qwen.sh",
        "./run_qwen.sh",
        "uv run --no-sync python -m verl.trainer.main_ppo",
        "verl-train",
    ],
)
def test_all_ways_to_start_a_trainer_give_the_same_settings(prefix):
    assert values(f"{prefix} {VERL}") == VERL_VALUES


@pytest.mark.parametrize(
    ("text", "python", "module", "script"),
    [
        ("python3 -m verl.trainer.main_ppo a=1", "python3", "verl.trainer.main_ppo", ""),
        ("/x/python3.11 -u train.py a=1", "/x/python3.11", "", "train.py"),
        ("torchrun --nproc_per_node 8 -m pkg.train a=1", "torchrun", "pkg.train", ""),
        ("torchrun -m --nproc_per_node=8 pkg.train a=1", "torchrun", "pkg.train", ""),
        ("python -m torch.distributed.run --nnodes 2 train.py", "python", "", "train.py"),
        ("python -m accelerate.commands.launch train.py --lr 1", "python", "", "train.py"),
        ("bash run.sh a=1", "", "", "run.sh"),
        ("bash -c 'cd /w && A=b python3 -m m a=1 > log 2>&1 && echo done'", "python3", "m", ""),
        ("bash -lc 'source x; exec python3 -m m a=1 | tee log'", "python3", "m", ""),
        ("./train.py --lr 1", "", "", "./train.py"),
        ("A=b ./train.py --lr 1", "", "", "./train.py"),
        ("a.b=1 c=2", "", "", ""),
        ("--lr 1", "", "", ""),
        ("~a.b", "", "", ""),
        ("", "", "", ""),
        ("python3 -c 'import x' a=1", "python3", "", ""),
        ("python3", "python3", "", ""),
        ("torchrun --nproc_per_node 8 train --lr 1", "torchrun", "", ""),
    ],
)
def test_which_trainer_it_is(text, python, module, script):
    found = read_command(shlex.split(text))
    assert (found.python, found.module, found.script) == (python, module, script)


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        ("ray job submit --address=http://10.0.0.1:8265 -- python3 -m m", True),
        ("ray job submit --address http://10.0.0.1:8265 -- python3 -m m", True),
        ("ray job submit --address=http://127.0.0.1:8265 -- python3 -m m", False),
        ("ray job submit --address http://localhost:8265 -- python3 -m m", False),
        ("ray job submit -- python3 -m m", False),
        ("ssh host python3 -m m", True),
        ("docker exec x python3 -m m", True),
        ("ssh host bash -c 'python3 -m m'", True),
        ("env RAY_ADDRESS=http://10.0.0.1:8265 ray job submit -- python3 -m m", True),
        ("RAY_ADDRESS=auto ray job submit -- python3 -m m", False),
        ("uv run --no-sync python3 -m m", True),
        ("conda run -n train python3 -m m", True),
        ("apptainer exec x.sif python3 -m m", True),
        ("python3 -m m uv run", False),
        ("python3 -m m", False),
    ],
)
def test_whether_it_runs_on_another_machine(text, elsewhere):
    assert read_command(shlex.split(text)).elsewhere is elsewhere


def test_where_rays_cluster_is_the_environment_may_say():
    words = shlex.split("ray job submit -- python3 -m m")
    assert read_command(words, {"RAY_ADDRESS": "http://10.0.0.1:8265"}).elsewhere
    assert read_command(words, {"RAY_API_SERVER_ADDRESS": "http://10.0.0.1:8265"}).elsewhere
    assert not read_command(words, {"RAY_ADDRESS": "127.0.0.1:6379"}).elsewhere
    assert not read_command(["python3", "-m", "m"], {"RAY_ADDRESS": "http://10.0.0.1:8265"}).elsewhere


def test_assignments_before_a_command_are_its_environment():
    found = read_command(shlex.split("env -u X PATH=/opt/bin:/bin HYDRA_FULL_ERROR=1 python3 -m m PATH=x"))
    assert found.env == (("PATH", "/opt/bin:/bin"), ("HYDRA_FULL_ERROR", "1"))
    assert found.arguments == ("PATH=x",)


def test_flags_of_argparse():
    text = (
        "torchrun --nproc_per_node 8 train.py --learning-rate 1e-5 --bf16 --weight_decay=0.1 --min-delta -0.5 "
        "--train_files a.json b.json --tensor-model-parallel-size 4 -lr 3 --empty= --last"
    )
    assert values(text) == {
        "learning_rate": "1e-5",
        "bf16": True,
        "weight_decay": "0.1",
        "min_delta": "-0.5",
        "train_files": ["a.json", "b.json"],
        "tensor_model_parallel_size": "4",
        "lr": "3",
        "empty": "",
        "last": True,
    }


def test_flags_and_overrides_together():
    found = values("train.py --no-rollout-state-restore trainer.resume_from_checkpoint=/o/step_40 --seed 3 x=1")
    assert found == {
        "no_rollout_state_restore": True,
        "trainer.resume_from_checkpoint": "/o/step_40",
        "seed": "3",
        "x": 1,
    }


def test_the_last_word_for_a_name_counts():
    assert values("a=1 b=2 +a=3 --c 1 --c 2") == {"a": 3, "b": 2, "c": "2"}


def test_what_is_taken_away_or_not_known_is_named_and_has_no_value():
    found = parse_arguments(["a=1", "~a", "b=${x}", "c=choice(1,2)", "d=1,2", "e='${f}'", "g=7"])
    assert found.explicit == {"a", "b", "c", "d", "e", "g"}
    assert {name: known.value for name, known in found.values.items()} == {"g": 7}


def test_what_only_a_shell_knows_is_not_known():
    text = 'python3 -m m lr=$LR path="${BASE}/x" seed=7 n=`nproc` --steps $N --name x --files a $B'
    found = parse_arguments(["bash", "-c", text])
    assert {name: known.value for name, known in found.values.items()} == {"seed": 7, "name": "x"}
    assert found.explicit == {"lr", "path", "seed", "n", "steps", "name", "files"}


def test_values_say_where_they_are_from():
    assert parse_arguments(["a=1"]).values["a"].source == "the command line"
    assert parse_arguments(["a=1"], "the log").values["a"].source == "the log"


@pytest.mark.parametrize(
    "words", [["bash", "-c", "python3 'unclosed"], ["\0"], ["-"], ["--"], ["=="], ["python3", "-m"]]
)
def test_odd_words_break_nothing(words):
    assert not parse_arguments(words).values


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("bash train.sh", True),
        ("srun -n 1 bash -x train.sh a.b=1", True),
        ("./train.sh a.b=1", True),
        ("bash -c '. env.sh; exec ./train.sh a.b=1'", True),
        ("bash -c 'exec python3 -m verl.trainer.main_ppo a.b=1'", False),
        ("python3 -m verl.trainer.main_ppo a.b=1", False),
        ("torchrun train.py --lr 1", False),
        ("a.b=1 c=2", False),
        ("", False),
    ],
)
def test_what_a_shell_script_adds_to_its_arguments_is_not_seen(text, script):
    assert runs_script(shlex.split(text)) is script


def test_a_script_that_a_shells_text_calls_gets_its_arguments():
    words = ["bash", "-c", "source env.sh && bash train.sh a.b=1 c=2"]
    assert read_command(words).arguments == ("a.b=1", "c=2")
    assert runs_script(words)
    assert read_command(["bash", "-c", "source env.sh"]).arguments == ()
