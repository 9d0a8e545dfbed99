"""`exec` in front of scripts: what the trainer behind them was really given."""

from __future__ import annotations

import json
import shlex
import sys

import exec_trainer
import pytest
from hydra_app import HydraApp
from waiting import until

from ckptsync.testing.checkpoints import verl_step

SECRET = "hf_abcdefghijklmnopqrstuvwx"


class Script:
    """A bash script, a trainer that logs its starts, and what the store has of them."""

    def __init__(self, node, tmp_path):
        self.node, self.path, self.log = node, tmp_path / "run.sh", tmp_path / "log"

    def trainer(self, plans, *arguments):
        """The words that start it, for the script."""
        return shlex.join(
            map(str, [sys.executable, exec_trainer.__file__, self.log, self.node.ckpt, plans, *arguments])
        )

    def write(self, *lines):
        self.path.write_text("\n".join(lines) + "\n")

    def start(self, *arguments, options=()):
        return self.node.start("exec", *options, "--", "bash", self.path, *arguments)

    def starts(self):
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line)["args"] for line in text.splitlines() if '"args"' in line]

    def notes(self):
        """What is kept of the trainer, start by start."""
        found = sorted((self.node.store / "r/attempts").rglob("trainer.json"))
        return [json.loads(json.loads(path.read_bytes())["value"]) for path in found]

    def ends_once_noted(self, run, seen=lambda notes: notes):
        """The trainer waits for SIGTERM until what was seen of it is kept."""
        until(lambda: seen(self.notes()), "the note")
        run.send(15)
        return run.wait()


@pytest.fixture
def script(node, tmp_path):
    return Script(node, tmp_path)


@pytest.mark.parametrize("how", ["exec ", ""])
def test_what_a_script_gives_the_trainer_is_recorded_beside_what_was_typed(script, tmp_path, how):
    (tmp_path / "work").mkdir()
    trainer = script.trainer("wait", "trainer.nnodes=1", "algorithm.adv_estimator=grpo")
    script.write(f"sleep 1; cd {tmp_path}/work", f'{how}{trainer} "$@"')
    done = script.ends_once_noted(script.start("trainer.total_epochs=3"))
    assert done.code == -15
    (note,) = script.notes()
    assert note["argv"][-3:] == ["trainer.nnodes=1", "algorithm.adv_estimator=grpo", "trainer.total_epochs=3"]
    assert note["settings"] == {"trainer.nnodes": 1, "algorithm.adv_estimator": "grpo", "trainer.total_epochs": 3}
    assert (note["cwd"], note["versions"]["python"][:2]) == (f"{tmp_path}/work", "3.")
    (record,) = [json.loads(path.read_bytes()) for path in (script.node.store / "r/attempts").rglob("record.json")]
    assert record["argv"] == ["bash", str(script.path), "trainer.total_epochs=3"]
    assert record["settings"] == {"trainer.total_epochs": "3"}


def test_a_script_that_starts_no_trainer_is_recorded_as_it_was_typed(script):
    script.write("sleep 4; true")
    assert script.start("trainer.nnodes=1").wait().code == 0
    assert script.notes() == []


def test_of_two_trainers_with_different_settings_none_is_recorded(script):
    script.write(
        f"{script.trainer('wait', 'trainer.nnodes=1', 'x=1')} &", script.trainer("wait", "trainer.nnodes=2", "x=1")
    )
    done = script.ends_once_noted(script.start(), seen=lambda notes: notes and "why" in notes[0])
    (note,) = script.notes()
    assert note.keys() == {"why"}
    assert note["why"].endswith("they differ in trainer.nnodes")
    assert note["why"] in done.err


def test_one_trainer_on_many_processes_is_one(script):
    trainer = script.trainer("wait", "trainer.nnodes=1")
    script.write(f"{trainer} &", f"timeout 600 {trainer}")
    script.ends_once_noted(script.start())
    assert [note["settings"] for note in script.notes()] == [{"trainer.nnodes": 1}]


def test_secrets_are_hidden_as_in_what_is_typed(script):
    words = ["trainer.nnodes=1", f"trainer.hf_token={SECRET}", "--wandb-api-key", "0123456789abcdef"]
    script.write(script.trainer("wait", *words))
    done = script.ends_once_noted(script.start())
    text = json.dumps(script.notes())
    assert "trainer.hf_token=***" in text
    assert script.notes()[0]["settings"]["trainer.hf_token"] == "***"
    for secret in (SECRET, "0123456789abcdef"):
        assert secret not in text + done.err


def test_the_next_preflight_compares_with_what_the_script_gave(script):
    given = ["trainer.nnodes=1", "trainer.n_gpus_per_node=2", "algorithm.adv_estimator=grpo", "algorithm.gamma=0.9"]
    script.write(script.trainer("save:20 wait", *given))
    script.ends_once_noted(script.start())
    assert len(script.node.commits(20)) == 1
    now = [*shlex.split(script.trainer("wait", *given[:3])), "algorithm.gamma=0.5"]
    report = json.loads(script.node.run("preflight", "--json", "--", *now).out)
    check = next(each for each in report["checks"] if each["name"] == "algorithm")
    assert check["status"] == "warn", report
    assert "algorithm.gamma: 0.9, now 0.5 (then: the trainer's process of attempt local-" in check["message"]


def test_what_hydra_makes_of_the_trainers_words_is_recorded(node, tmp_path):
    app = HydraApp(tmp_path)
    main = tmp_path / "acme/trainer/main_ppo.py"
    main.write_text(main.read_text().replace("print(config", "import time; time.sleep(600); print(config"))
    script = Script(node, tmp_path)
    words = app.words(
        "actor_rollout_ref.model.path=/m", "actor_rollout_ref.rollout.name=vllm", "hydra.output_subdir=null"
    )
    script.write(f"export PYTHONPATH={tmp_path} ROLLOUT_SEED=7", f'cd {tmp_path}; {shlex.join(words)} "$@"')
    script.ends_once_noted(script.start())
    (note,) = script.notes()
    assert note["complete"]
    assert (note["settings"]["trainer.n_gpus_per_node"], note["settings"]["actor_rollout_ref.rollout.seed"]) == (8, "7")


def test_again_runs_the_script_with_what_was_typed(script):
    trainer = script.trainer("wait;exit:0", "trainer.nnodes=1", "algorithm.adv_estimator=grpo")
    script.write(f'{trainer} "$@"')
    script.ends_once_noted(script.start("trainer.total_epochs=3"))
    verl_step(script.node.ckpt, 20)
    assert script.node.run("exec", "--again", "--", "trainer.total_epochs=4").code == 0
    resumed = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={script.node.ckpt}/global_step_20"]
    first = ["trainer.nnodes=1", "algorithm.adv_estimator=grpo"]
    assert script.starts() == [[*first, "trainer.total_epochs=3"], [*first, "trainer.total_epochs=4", *resumed]]
