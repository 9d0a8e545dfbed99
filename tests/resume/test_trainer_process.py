"""Which process below a command is the trainer."""

from __future__ import annotations

import pytest

from ckptsync.resume.sources.trainer_process import Process, differing, find_trainers, key_of

PYTHON = "/venv/bin/python3"
PPO = ("-m", "verl.trainer.main_ppo", "trainer.nnodes=1")
ROOT = 10


def tree(*lines):
    """(pid, parent, command line); the root has pid 10."""
    return {pid: Process(pid, parent, tuple(words), "/home/me") for pid, parent, words in lines}


def found(*lines, out="/out", inside=""):
    return [each.pid for each in find_trainers(tree(*lines), ROOT, out, inside)]


def one(*words, **dirs):
    return found((11, ROOT, words), **dirs) == [11]


@pytest.mark.parametrize(
    "words",
    [
        (PYTHON, *PPO),
        (PYTHON, "-u", "train.py", "trainer.total_epochs=2"),
        (PYTHON, "-m", "verl.trainer.main_ppo", "--config-name=mine"),
        (PYTHON, "-m", "verl.trainer.sft_trainer", "optim.lr=1"),
        (PYTHON, "finetune.py", "--output_dir", "/out", "--lr", "1"),
        (PYTHON, "finetune.py", "--output-dir=/out/"),
        (PYTHON, "finetune.py", "--save", "../../out"),
        (PYTHON, "finetune.py", "--output_dir", "/in"),
        (PYTHON, "/usr/bin/torchrun", "--nproc_per_node=8", "-m", "verl.trainer.sft_trainer", "optim.lr=1"),
        (PYTHON, "/usr/bin/ray", "job", "submit", "--address=http://x:1", "--", "python3", *PPO),
        ("timeout", "1h", PYTHON, *PPO),
    ],
)
def test_a_trainer_is_known_by_its_name_its_settings_or_where_it_saves(words):
    assert one(*words, inside="/in")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("bash", "run.sh", "trainer.nnodes=1"),
        ("bash", "-c", f"{PYTHON} -m verl.trainer.main_ppo trainer.nnodes=1"),
        (PYTHON, "-c", "pass", "trainer.nnodes=1"),
        (PYTHON, "-m", "pip", "install", "trainer==1.0"),
        (PYTHON, "-m", "verl.trainer.main_generation", "trainer.nnodes=1"),
        (PYTHON, "-m", "verl.model_merger", "merge", "--local_dir", "/out/global_step_20"),
        (PYTHON, "finetune.py", "--output_dir", "/elsewhere"),
        (PYTHON, *PPO, "trainer.default_local_dir=/elsewhere"),
        (PYTHON, "/ray/dashboard.py", "--host=127.0.0.1", "--log-dir=/tmp/ray"),
        ("ray::WorkerDict", "", ""),
    ],
)
def test_whatever_else_runs_below_a_script_is_none(words):
    assert not one(*words)


def test_of_a_line_of_descent_the_first_that_is_the_interpreter_counts():
    lines = [
        (11, ROOT, ("bash", "run.sh")),
        (12, 11, ("timeout", "1h", PYTHON, *PPO)),
        (13, 12, (PYTHON, *PPO)),
        (14, 13, (PYTHON, *PPO, "trainer.local_rank=3")),
    ]
    assert found(*lines) == [13]
    assert found(*lines[:2]) == [12]


def test_two_side_by_side_are_two():
    assert found((11, ROOT, (PYTHON, *PPO)), (12, ROOT, (PYTHON, *PPO, "trainer.x=1"))) == [11, 12]


def test_one_trainer_is_one_however_it_was_started():
    assert key_of((PYTHON, *PPO)) == key_of(("timeout", "9", "python", *PPO))
    assert key_of((PYTHON, *PPO)) != key_of((PYTHON, *PPO, "a=b"))


def test_what_differs_is_told_by_name():
    one, other = (PYTHON, *PPO, "data.api_key=abc", "x=1"), (PYTHON, *PPO, "data.api_key=xyz", "x=1.0", "+y=${z}")
    assert differing(one, other) == ["data.api_key", "y"]
