"""The configuration that Hydra wrote is found where Hydra puts it, and only if it is this run's."""

from __future__ import annotations

import os
import sys

import pytest
from hydra_app import HydraApp

from ckptsync.resume.sources.hydra import find_config, find_configs, load_yaml

GIVEN = ("actor_rollout_ref.model.path=/models/q", "actor_rollout_ref.rollout.name=vllm")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A directory in which the application ran once, with Hydra's own output directory."""
    app = HydraApp(tmp_path_factory.mktemp("app"))
    cwd = tmp_path_factory.mktemp("cwd")
    app.run(cwd, *GIVEN, "trainer.nnodes=4", "+trainer.extra=[1, x]", "actor_rollout_ref.actor.optim.lr=2e-6")
    return cwd


def _written(directory):
    (found,) = directory.rglob(".hydra/config.yaml")
    return found


def test_what_hydra_wrote_for_this_run(ran):
    path = _written(ran)
    found = find_config(f"{ran}/checkpoints/p/e", path.stat().st_mtime_ns, cwd=str(ran))
    assert found is not None
    assert found.path == str(path)
    values = {name: known.value for name, known in found.settings.values.items()}
    assert values["trainer.nnodes"] == 4
    assert values["trainer.default_local_dir"] == "checkpoints/p/e"
    assert values["actor_rollout_ref.actor.optim.lr"] == 2e-6
    assert values["actor_rollout_ref.actor.rollout_n"] == 1
    assert values["trainer.extra"] == [1, "x"]
    assert found.settings.values["trainer.nnodes"].source == str(path)
    assert found.settings.explicit >= {"trainer.nnodes", "trainer.extra", "actor_rollout_ref.model.path"}
    assert "actor_rollout_ref.rollout.seed" not in values  # ${oc.env:...}
    assert found.settings.unresolved == {"actor_rollout_ref.rollout.seed"}
    assert not found.settings.complete


def test_only_one_from_before_the_save(ran):
    path = _written(ran)
    assert find_config(f"{ran}/checkpoints/p/e", path.stat().st_mtime_ns - 1, cwd=str(ran)) is None


def test_one_of_another_run_is_not_taken(ran):
    now = _written(ran).stat().st_mtime_ns
    assert find_config(f"{ran}/checkpoints/p/other", now, cwd=str(ran)) is None
    assert find_config(f"{ran}/checkpoints/p", now, cwd=str(ran)) is None
    assert find_config(str(ran), now, cwd=str(ran)) is None


def test_it_is_found_from_the_output_directory(ran):
    """The preflight may be started elsewhere: the output directory lies below where the trainer was started."""
    found = find_config(f"{ran}/checkpoints/p/e", _written(ran).stat().st_mtime_ns, cwd="/")
    assert found is not None


def _hydra(directory, config, *, cwd="/w", overrides="[]", mtime=1000):
    (directory / ".hydra").mkdir(parents=True)
    path = directory / ".hydra" / "config.yaml"
    path.write_text(config)
    (directory / ".hydra" / "hydra.yaml").write_text(f"hydra: {{runtime: {{cwd: {cwd}}}}}\n")
    (directory / ".hydra" / "overrides.yaml").write_text(overrides)
    os.utime(path, (mtime, mtime))
    return path


def _local_dir(path):
    return f"trainer: {{default_local_dir: {path}}}\n"


@pytest.mark.parametrize(
    "where",
    [
        *("", "outputs/2026-01-01/10-00-00", "multirun/2026-01-01/10-00-00/0", "hydra", "out", "out/logs"),
        "out/outputs/2026-01-01/10-00-00",
    ],
)
def test_the_places_where_it_is_looked_for(tmp_path, where):
    out = tmp_path / "out"
    out.mkdir()
    path = _hydra(tmp_path / where, _local_dir(out))
    found = find_config(str(out), 10**13, cwd=str(tmp_path / "elsewhere"))
    assert found is not None
    assert found.path == str(path)


def test_the_newest_before_the_save_counts(tmp_path):
    out = tmp_path / "out"
    for day, mtime in (("01", 1000), ("02", 2000), ("03", 3000)):
        _hydra(tmp_path / "outputs" / f"2026-01-{day}" / "10-00-00", _local_dir(out) + f"day: {day}\n", mtime=mtime)
    found = find_config(str(out), 2500 * 10**9, cwd=str(tmp_path))
    assert found is not None
    assert found.settings.values["day"].value == 2
    assert found.written_ns == 2000 * 10**9
    assert found.settings.complete


def test_a_newer_one_of_another_run_is_passed_over(tmp_path):
    out = tmp_path / "out"
    _hydra(tmp_path / "outputs" / "2026-01-01" / "10-00-00", _local_dir(out) + "a: 1\n", mtime=1000)
    _hydra(tmp_path / "outputs" / "2026-01-01" / "11-00-00", _local_dir(tmp_path / "other"), mtime=1100)
    _hydra(tmp_path / "outputs" / "2026-01-01" / "12-00-00", "evaluation: true\n", mtime=1200)
    found = find_config(str(out), 10**13, cwd=str(tmp_path))
    assert found is not None
    assert found.settings.values["a"].value == 1


@pytest.mark.parametrize(
    ("text", "mine"),
    [
        ("trainer: {default_local_dir: checkpoints/e}", True),
        ("trainer: {default_local_dir: ./checkpoints/../checkpoints/e/}", True),
        ("trainer: {default_local_dir: /workspace/out}", True),
        ("trainer: {name: e, default_local_dir: 'checkpoints/${trainer.name}'}", True),
        ("trainer: {default_local_dir: 'checkpoints/${oc.env:NAME}'}", False),
        ("trainer: {default_local_dir: other}", False),
        ("trainer: {default_local_dir: other, resume_from: checkpoints/e}", False),
        ("trainer: {output_dir: checkpoints/e}", True),
        ("output: {dir: /workspace/out}", True),
        ("trainer: {default_local_dir: null}", False),
        ("seed: 1", False),
    ],
)
def test_whose_configuration_it_is(tmp_path, text, mine):
    out = tmp_path / "checkpoints" / "e"
    out.mkdir(parents=True)
    _hydra(tmp_path / "outputs" / "2026-01-01" / "10-00-00", text, cwd=str(tmp_path))
    found = find_config(str(out), 10**13, cwd="/", trainer_dir="/workspace/out")
    assert (found is not None) is mine


def test_a_run_directory_around_the_steps_is_the_runs_own(tmp_path):
    out = tmp_path / "run" / "checkpoints"
    out.mkdir(parents=True)
    _hydra(tmp_path / "run", "seed: 1\n", overrides="[seed=1, ~x, +a.b=2]")
    found = find_config(str(out), 10**13, cwd="/")
    assert found is not None
    assert found.settings.explicit == {"seed", "x", "a.b"}
    _hydra(tmp_path / "run" / "beside", "seed: 2\n", mtime=2000)
    again = find_config(str(out), 10**13, cwd="/")
    assert again is not None
    assert again.settings.values["seed"].value == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "text",
        "a: [",
        "!!python/object/apply:os.system ['touch /tmp/x']",
        "a: &x {b: 1}\nc: *x\n",
        "{" * 5000,
        "\x00",
        "x: " + "y" * 5_000_000,
    ],
)
def test_hostile_files_are_not_read(tmp_path, text):
    out = tmp_path / "out"
    out.mkdir()
    path = _hydra(out, text)
    assert find_config(str(out), 10**13, cwd="/") is None
    assert not isinstance(load_yaml(str(path)), dict)


def test_what_may_not_be_read_is_not_there(tmp_path):
    assert find_config(str(tmp_path / "none"), 10**13, cwd=str(tmp_path / "nowhere")) is None
    assert load_yaml(str(tmp_path)) is None
    (tmp_path / "outputs").write_text("a file\n")
    assert find_configs((str(tmp_path),), 10**20) == []


def test_the_search_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["ckptsync.resume.sources.hydra"], "_ENTRIES_MAX", 5)
    for number in range(12):
        _hydra(tmp_path / "outputs" / f"2026-01-{number:02}" / "00-00-00", "a: 1\n", mtime=number)
    found = find_configs((str(tmp_path),), 10**20)
    assert [mtime for _, mtime in found] == [n * 10**9 for n in (11, 10, 9, 8, 7)]  # the newest dates


def test_a_fifo_is_not_waited_for(tmp_path):
    out = tmp_path / "out"
    path = _hydra(out, "a: 1\n")
    path.unlink()
    os.mkfifo(path)
    os.utime(path, (1000, 1000))
    assert find_config(str(out), 10**13, cwd="/") is None
