"""The trainer's interpreter is asked, in a child: never imported, never waited for, and told no secrets."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from hydra_app import HydraApp

from ckptsync.errors import ConfigError
from ckptsync.resume.sources.interpreter import Interpreter, child_env, find_interpreter
from ckptsync.resume.sources.names import flatten
from ckptsync.resume.sources.origin import settings_now

GIVEN = ("actor_rollout_ref.model.path=/models/q", "actor_rollout_ref.rollout.name=vllm", "trainer.nnodes=4")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return HydraApp(tmp_path_factory.mktemp("app"))


@pytest.fixture
def python(app):
    return Interpreter(sys.executable, {**app.env, "ROLLOUT_SEED": "7"})


def _shown(app, tmp_path, *arguments):
    """What Hydra itself shows, by `--cfg job --resolve` of the real command."""
    return flatten(yaml.safe_load(app.run(tmp_path, *arguments, "--cfg", "job", "--resolve")))


@pytest.mark.parametrize(
    "arguments",
    [
        GIVEN,
        (*GIVEN, "model_engine=megatron", "+trainer.extra={a: [1, 2], b: 'x y'}"),
        (*GIVEN, "~algorithm.kl_ctrl", "trainer.logger=['console']", "actor_rollout_ref.rollout.n=8"),
        (*GIVEN, "data.train_files=['/a.parquet','/b.parquet']", "actor_rollout_ref.actor.optim.lr=2e-6"),
    ],
)
def test_what_hydra_makes_of_a_command_is_what_the_trainer_will_see(app, python, tmp_path, arguments):
    expected = _shown(app, tmp_path, *arguments)
    found = python.composed(app.words(*arguments), str(tmp_path))
    assert found is not None
    assert not found.missing
    assert {name: str(value) for name, value in found.values.items()} == {n: str(v) for n, v in expected.items()}
    assert python.compose(app.words(*arguments), str(tmp_path)) == found.values


def test_the_trainer_is_not_imported(app, python, tmp_path):
    app.trace.unlink(missing_ok=True)
    assert python.composed(app.words(*GIVEN), str(tmp_path)) is not None
    assert not app.trace.exists()


def test_a_search_path_through_packages_imports_none_of_them(app, python, tmp_path):
    """verl's recipes have `pkg://verl.trainer.config` in theirs."""
    config = app.root / "acme" / "trainer" / "config"
    (app.root / "acme" / "extra").mkdir()
    (app.root / "acme" / "extra" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (app.root / "acme" / "extra" / "more.yaml").write_text("more: 1\n")
    (config / "recipe.yaml").write_text(
        "hydra:\n  searchpath:\n    - pkg://acme.extra\ndefaults:\n  - ppo_trainer\n  - more\n  - _self_\n"
    )
    app.trace.unlink(missing_ok=True)
    found = python.compose(app.words("--config-name", "recipe", *GIVEN), str(tmp_path))
    assert found is not None
    assert (found["more"], found["trainer.nnodes"]) == (1, 4)
    assert not app.trace.exists()


def test_what_only_the_running_trainer_knows_is_named(app, tmp_path):
    without = Interpreter(sys.executable, app.env)
    found = without.composed(app.words("trainer.nnodes=4"), str(tmp_path))
    assert found is not None
    assert found.missing == ("actor_rollout_ref.rollout.seed",)
    assert found.values["actor_rollout_ref.model.path"] == "???"
    assert found.values["trainer.sync"] == {}


def test_another_configuration_by_name_path_and_directory(app, python, tmp_path):
    for directory, text in (("own", "a: 1\ndefaults: [_self_]\n"), ("more", "a: 2\n"), ("beside", "b: 3\n")):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / f"{directory}.yaml").write_text(text)
    own = app.words("--config-path", str(tmp_path / "own"), "--config-name=own", "+b=2")
    assert python.compose(own, str(tmp_path)) == {"a": 1, "b": 2}
    group = tmp_path / "more" / "actor"
    group.mkdir()
    (group / "mine.yaml").write_text("strategy: mine\n")
    words = app.words("--config-dir", "more", "actor@actor_rollout_ref.actor=mine", *GIVEN)
    found = python.compose(words, str(tmp_path))
    assert found is not None
    assert found["actor_rollout_ref.actor.strategy"] == "mine"


def test_a_script_and_a_package_are_found_too(app, python, tmp_path):
    script = app.root / "acme" / "trainer" / "main_ppo.py"
    words = (sys.executable, str(script), *GIVEN)
    assert python.compose(words, str(tmp_path)) == python.compose(app.words(*GIVEN), str(tmp_path))
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit(1)\n")
    text = "from hydra import main as start\n@start(None, 'x')\ndef f(c): ...\n"
    (package / "__main__.py").write_text(text.replace("None", "'conf'"))
    (package / "conf").mkdir()
    (package / "conf" / "x.yaml").write_text("k: v\n")
    child = Interpreter(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert child.compose((sys.executable, "-m", "pkg"), "/") == {"k": "v"}


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.nnodes=4",),
        ("bash", "run.sh", "trainer.nnodes=4"),
        (sys.executable, "-m", "json.tool"),
        (sys.executable, "-m", "no.such.module"),
        (sys.executable, "nowhere.py"),
        (sys.executable, "-m", HydraApp.module, "--multirun", "trainer.nnodes=1,2"),
        (sys.executable, "-m", HydraApp.module, "no.such.key=1"),
        (sys.executable, "-m", HydraApp.module, "trainer.nnodes=["),
        (sys.executable, "-m", HydraApp.module, "--cfg", "job"),
        ("bash", "-c", f"python3 -m {HydraApp.module} trainer.nnodes=$N"),
        (),
    ],
)
def test_what_cannot_be_composed_is_not_known(python, tmp_path, words):
    assert python.compose(words, str(tmp_path)) is None


@pytest.mark.parametrize(
    "decorator",
    [
        "@hydra.main(config_path=WHERE, config_name='x')",
        "@hydra.main(config_path='c')",
        "@hydra.main(config_path=None, config_name='x')",
        "@hydra.main(config_path='pkg://c', config_name='x')",
        "@other.main(config_path='c', config_name='x')",
        "@hydra.main(config_path='c', config_name='x')\ndef f(c): ...\n@hydra.main(config_path='c', config_name='y')",
    ],
)
def test_an_entry_point_that_is_not_plain_is_not_guessed(python, tmp_path, decorator):
    (tmp_path / "train.py").write_text(f"import hydra\n{decorator}\ndef main(config): ...\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x.yaml").write_text("a: 1\n")
    assert python.compose((sys.executable, str(tmp_path / "train.py")), str(tmp_path)) is None


def test_versions_are_those_of_the_packages(python):
    found = python.versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["hydra-core"].startswith("1.")
    assert "verl" not in found or found["verl"]


def test_versions_of_another_environment_are_its_own(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    for name, version in (("torch", "2.9.0"), ("verl", "0.9.1")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise ImportError('torch must not be imported')\n")
    (site / "torch" / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '12.8'\n")
    (site / "broken-1.dist-info").mkdir()
    path = str(tmp_path / "venv" / "bin" / "python")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = dict(Interpreter(path, env).versions())
    found.pop("python")
    assert found == {"torch": "2.9.0", "verl": "0.9.1", "cuda": "12.8"}


# -- limits


def _fake(tmp_path, text):
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "text",
    ["exit 3", "echo no json", "echo '[1'", "kill -9 $$", "echo '\"text\"'", "exec cat /dev/zero | head -c 17000000"],
)
def test_an_interpreter_without_an_answer(tmp_path, text):
    broken = Interpreter(_fake(tmp_path, text))
    assert broken.versions() == {}
    assert broken.compose((sys.executable, "-m", HydraApp.module), "/") is None


def test_one_that_cannot_be_run(tmp_path):
    assert Interpreter(str(tmp_path / "none")).versions() == {}
    assert Interpreter(sys.executable).compose((sys.executable, "-m", "x"), str(tmp_path / "none")) is None


def test_one_that_is_late_is_ended_with_all_that_it_started(tmp_path):
    marker = tmp_path / "pids"
    slow = Interpreter(_fake(tmp_path, f"sleep 60 & echo $$ $! > {marker}; wait"), timeout_s=0.5)
    began = time.monotonic()
    assert slow.versions() == {}
    assert time.monotonic() - began < 20
    pids = [int(pid) for pid in marker.read_text().split()]
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_no_secret_and_nothing_of_ours_reaches_the_child(tmp_path):
    env = {"HF_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s", "CKPTSYNC_CONFIG": "x", "WANDB_API_KEY": "s", "HOME": "/h"}
    assert child_env(env) == {"HOME": "/h", "PYTHONDONTWRITEBYTECODE": "1"}
    out = tmp_path / "env"
    Interpreter(_fake(tmp_path, f"env > {out}"), {**env, "PATH": os.environ["PATH"]}).versions()
    text = out.read_text()
    assert "HOME=/h" in text
    assert not any(name in text for name in ("HF_TOKEN", "AWS_", "CKPTSYNC", "WANDB"))


# -- which one


@pytest.fixture
def tree(tmp_path):
    """bin/: a python3 (a link), scripts that name it in their first line, and others."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "python3").symlink_to(sys.executable)
    for name, first in (
        ("torchrun", f"#!{directory}/python3"),
        ("deepspeed", f"#!/bin/sh\n'''exec' \"{directory}/python3\" \"$0\" \"$@\"\n' '''"),
        ("accelerate", "#!/usr/bin/env -S python3 -u"),
        ("train", "#!/usr/bin/env python3"),
        ("run.sh", "#!/bin/bash"),
        ("bare", "print()"),
        ("gone", "#!/no/such/python3"),
    ):
        (directory / name).write_text(f"{first}\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m m a=1",
        "torchrun --nproc_per_node 8 -m m",
        "deepspeed train.py",
        "accelerate launch train.py",
        "train --lr 1",
        "env X=1 python3 -m m",
        "ray job submit -- python3 -m m",
        "bash -c 'python3 -m m'",
    ],
)
def test_it_is_the_one_that_the_command_names(tree, text):
    found = find_interpreter(shlex.split(text), None, {"PATH": f"{tree}:{os.environ['PATH']}"})
    assert found is not None
    assert found.path == str(tree / "python3")  # of the virtual environment, not where its link leads


@pytest.mark.parametrize(
    "text",
    [
        *("a=1 b=2", "bash run.sh", "run.sh a=1", "bare", "gone", "nowhere -m m", "", "python9.99 -m m"),
        "ray job submit --address=http://10.0.0.1:8265 -- python3 -m m",
    ],
)
def test_where_nothing_names_it_nobody_knows(tree, text):
    assert find_interpreter(shlex.split(text), None, {"PATH": f"{tree}:{os.environ['PATH']}"}) is None


def test_the_commands_own_path_is_searched(tree):
    found = find_interpreter(["env", f"PATH={tree}", "python3", "-m", "m"], None, {"PATH": "/nowhere"})
    assert found is not None
    assert found.path == str(tree / "python3")
    assert found.env["PATH"] == str(tree)


def test_the_one_that_is_given_is_taken(tree):
    found = find_interpreter(["bash", "run.sh"], str(tree / "python3"), {})
    assert found is not None
    assert found.path == str(tree / "python3")
    with pytest.raises(ConfigError, match="no such interpreter"):
        find_interpreter([], str(tree / "nowhere"), {})
    with pytest.raises(ConfigError, match="no such interpreter"):
        find_interpreter([], str(tree), {})


# -- settings now


def test_a_start_is_known_wholly_where_hydra_resolves_it(app, python, tmp_path):
    words = app.words(*GIVEN)
    found = settings_now(words, python, cwd=str(tmp_path), env={**app.env, "ROLLOUT_SEED": "7"})
    assert found.complete
    assert found.explicit == {"actor_rollout_ref.model.path", "actor_rollout_ref.rollout.name", "trainer.nnodes"}
    assert found.values["trainer.nnodes"].value == 4
    assert found.values["trainer.nnodes"].source == "the command line"
    assert found.values["algorithm.adv_estimator"].value == "gae"
    assert sys.executable in found.values["algorithm.adv_estimator"].source
    assert found.get("no.such") is None


def test_without_all_of_it_a_start_is_not_complete(app, python, tmp_path):
    found = settings_now(app.words(*GIVEN), python, cwd=str(tmp_path), env=app.env)
    assert not found.complete
    assert found.get("actor_rollout_ref.rollout.seed") is None
    assert found.unresolved == {"actor_rollout_ref.rollout.seed"}
    words = ("env", "ROLLOUT_SEED=9", *app.words(*GIVEN))
    assert settings_now(words, python, cwd=str(tmp_path), env=app.env).complete


def test_without_an_interpreter_only_the_words_are_known(tmp_path):
    found = settings_now(["trainer.nnodes=4"], None, cwd=str(tmp_path), env={})
    assert {name: known.value for name, known in found.values.items()} == {"trainer.nnodes": 4}
    assert not found.complete
    nothing = settings_now([], None, cwd=str(tmp_path), env={})
    assert not nothing.values


def test_the_childs_text_needs_no_more_than_python_3_8():
    path = Path(__file__).parents[2] / "ckptsync" / "resume" / "sources" / "interpreter_child.py"
    ast.parse(path.read_text(), feature_version=(3, 8))
