"""What a training used: by the launch that wrote the step, by Hydra, by a log, by the step itself; the best first."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
import train_logs
from resuming import node_of

from ckptsync.disk.scan import list_step
from ckptsync.errors import StoreUnavailable, UsageError
from ckptsync.model.launch import LaunchRecord
from ckptsync.model.manifest import Part
from ckptsync.model.ran import RAN, Ran
from ckptsync.model.rounds import Decision, Place
from ckptsync.model.step import Level
from ckptsync.resume.compare import record_it
from ckptsync.resume.context import Context, Resumed
from ckptsync.resume.settings import Settings
from ckptsync.resume.sources.origin import settings_then
from ckptsync.sync.attempt import Attempt
from ckptsync.sync.launches import Launches
from ckptsync.testing.checkpoints import hf_step, layered_step, verl_step

NS = 10**9


class Scene:
    """A run with one step, whose save ended an hour ago."""

    def __init__(self, tmp_path, *, make=verl_step, more=""):
        self.root = tmp_path
        self.now = time.time_ns()
        self.saved_ns = self.now - 3600 * NS
        self.out = tmp_path / "out"
        self.out.mkdir(parents=True)
        path = make(self.out, 40)
        self.node = node_of(tmp_path, more)
        self.resumed = Resumed(40, list_step(str(path)), saved_ns=self.saved_ns)
        remote = self.node.remote()
        self.launches = Launches(remote, now_ns=lambda: self.now)
        self.launches._offsets[self.node.config.node.name] = 0

    def launch(self, *, begin_s, end_s, attempt="job-1", **fields):
        """From `begin_s` to `end_s` (seconds after the save)."""
        before, self.now = self.now, self.saved_ns + int(begin_s * NS)
        remote, node = self.node.remote(), self.node.config.node.name
        record = LaunchRecord(remote.run, remote.run_id, attempt, node, self.now, **fields)
        self.launches.put(record)
        self.now = self.saved_ns + int(end_s * NS)
        self.launches.ended(record, 0)
        self.now = before
        return record

    def decide(self, at_s, attempt):
        remote = self.node.remote()
        place = Place(remote.run, remote.run_id, attempt, 1)
        Attempt(remote, attempt, "x", "id").decide(
            Decision(place, "x", 2, "nothing", decided_ns=self.saved_ns + at_s * NS)
        )

    def hydra(self, at_s, text):
        directory = self.root / "outputs" / "2026-01-01" / f"10-00-{at_s % 60:02}" / ".hydra"
        directory.mkdir(parents=True)
        path = directory / "config.yaml"
        path.write_text(f"trainer: {{default_local_dir: {self.out}}}\n{text}\n")
        when = self.saved_ns + at_s * NS
        os.utime(path, ns=(when, when))
        return path

    def log(self, *lines):
        path = self.root / "train.log"
        path.write_text("".join(lines))
        return str(path)

    def then(self, *, train_log=None, launches=True):
        return settings_then(
            self.node,
            self.resumed,
            train_log=train_log,
            launches=self.launches if launches else None,
            cwd=str(self.root),
        )


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_each_value_is_from_the_best_source_that_has_it(scene):
    record = scene.launch(begin_s=-600, end_s=60, settings={"a": 1}, explicit=frozenset({"a"}), complete=True)
    hydra = scene.hydra(-500, "a: 2\nb: 2")
    log = scene.log("{'a': 3, 'b': 3, 'c': 3, 'd': {'e': 3}}\n", *train_logs.steps(1, 50))
    found, known = scene.then(train_log=log)
    assert known == record
    values = {name: (each.value, each.source) for name, each in found.values.items()}
    node = scene.node.config.node.name
    assert values["a"] == (1, f"the launch record of attempt job-1 on {node}")
    assert values["b"] == (2, str(hydra))
    assert values["c"] == (3, log)
    assert values["d.e"] == (3, log)
    assert values["step.actor.world_size"] == (1, scene.resumed.path)
    assert found.explicit == {"a"}
    assert found.complete


def test_it_is_the_launch_that_wrote_the_step_and_not_the_newest(scene):
    wrote = scene.launch(begin_s=-600, end_s=60, settings={"a": 1})
    scene.launch(begin_s=100, end_s=200, attempt="job-2", settings={"a": 2})
    found, record = scene.then()
    assert record == wrote
    assert found.values["a"].value == 1


def test_without_anything_the_step_speaks_for_itself(scene):
    found, record = scene.then(launches=False)
    assert record is None
    assert {name: each.value for name, each in found.values.items()} == {
        "step.actor.world_size": 1,
        "step.actor.fsdp_version": 1,
    }
    assert not found.complete
    assert not found.explicit


def test_without_a_step_nothing_is_known(scene):
    assert settings_then(scene.node, None, train_log=None, launches=scene.launches) == (Settings(), None)


def test_what_was_hidden_is_not_known(scene):
    scene.launch(begin_s=-600, end_s=60, settings={"x.password": "s3cr3t", "y": [{"api_key": "s3cr3t"}], "z": 1})
    found, _ = scene.then()
    assert [name for name in found.values if not name.startswith("step.")] == ["z"]


SCRIPT = {
    "argv": ("bash", "run.sh", "a=1"),
    "cwd": "/typed",
    "settings": {"a": 1, "typed": 1},
    "versions": {"torch": "1"},
}
RAN_IT = Ran(argv=("python3", "train.py", "a=2"), cwd="/ran", settings={"a": 2, "api_key": "s3cr3t"}, complete=True)


def test_what_was_really_run_counts_in_the_place_of_what_was_typed(scene):
    record = scene.launch(begin_s=-600, end_s=60, **SCRIPT)
    scene.launches.note(record, RAN, replace(RAN_IT, versions={"torch": "2"}, explicit=frozenset({"a"})).to_note())
    found, known = scene.then()
    assert {name: each.value for name, each in found.values.items() if not name.startswith("step.")} == {"a": 2}
    assert found.values["a"].source == f"the trainer's process of attempt job-1 on {scene.node.config.node.name}"
    assert (found.explicit, found.complete, found.why) == (frozenset({"a"}), True, "")
    assert (known.argv, known.cwd, known.versions) == (record.argv, "/ran", {"torch": "2"})


def test_what_was_seen_of_the_data_is_kept_wherever_it_lies(scene):
    record = scene.launch(begin_s=-600, end_s=60, **SCRIPT, datasets={"/typed": {"rows": 1}})
    seen = {"/tokens/train.parquet": {"rows": 7, "fingerprint": "size+footer:ab", "api_key": "s3cr3t"}}
    scene.launches.note(record, RAN, replace(RAN_IT, datasets=seen).to_note())
    _, known = scene.then()
    hidden = {**seen["/tokens/train.parquet"], "api_key": "***"}
    assert known.datasets == {"/typed": {"rows": 1}, "/tokens/train.parquet": hidden}


def test_who_does_not_know_what_was_run_keeps_what_was_typed_and_says_why(scene):
    record = scene.launch(begin_s=-600, end_s=60, **SCRIPT)
    assert scene.then()[0].why == "its command was a script, and the trainer was not seen below it"
    scene.launches.note(record, RAN, Ran(why="two were seen").to_note())
    found, known = scene.then()
    assert (found.values["a"].value, known, found.why) == (1, record, "two were seen")
    assert "two were seen" in record_it(Context(scene.node, scene.resumed, 40, then=found, record=known))


@pytest.mark.parametrize(
    "broken", [{}, {"argv": "x"}, {**RAN_IT.to_note(), "settings": []}, {**RAN_IT.to_note(), "cwd": 1}]
)
def test_a_note_that_is_none_is_left_out(scene, broken):
    record = scene.launch(begin_s=-600, end_s=60, **SCRIPT)
    scene.launches.note(record, RAN, broken)
    assert scene.then()[1] == record


def test_a_note_that_cannot_be_read_is_left_out_and_said(scene):
    record = scene.launch(begin_s=-600, end_s=60, **SCRIPT)
    scene.launches.note(record, RAN, {})
    next((scene.root / "state/store").rglob(f"{RAN}.json")).write_bytes(b"{")
    found, known = scene.then()
    assert (known, found.why) == (record, "what its command really ran cannot be read")


@pytest.mark.parametrize(("at_s", "taken"), [(-500, True), (-601, True), (-700, False), (10, False)])
def test_hydras_file_is_of_the_launch_that_wrote_the_step_or_left_out(scene, at_s, taken):
    scene.launch(begin_s=-600, end_s=60, settings={"a": 1})
    scene.hydra(at_s, "b: 2")
    found, _ = scene.then()
    assert (found.get("b") is not None) is taken


def test_hydras_file_is_left_out_where_something_was_started_since(scene):
    scene.hydra(-1000, "b: 2")
    assert scene.then()[0].get("b") is not None
    scene.launch(begin_s=-800, end_s=-700)
    found, record = scene.then()
    assert record is None
    assert found.get("b") is None
    assert scene.then(launches=False)[0].get("b") is not None


def test_a_decision_since_leaves_it_out_too(scene):
    scene.hydra(-1000, "b: 2")
    scene.decide(-1100, "job-0")
    assert scene.then()[0].get("b") is not None
    scene.decide(-900, "job-1")
    assert scene.then()[0].get("b") is None


def test_a_path_in_a_container_is_the_runs_own(tmp_path):
    scene = Scene(tmp_path, more='trainer_dir = "/workspace/ckpt"')
    directory = tmp_path / ".hydra"
    directory.mkdir()
    (directory / "config.yaml").write_text("trainer: {default_local_dir: /workspace/ckpt}\nb: 2\n")
    os.utime(directory / "config.yaml", ns=(scene.saved_ns - NS, scene.saved_ns - NS))
    assert scene.then()[0].values["b"].value == 2


def test_a_store_that_is_away_leaves_the_other_sources(scene, caplog, monkeypatch):
    scene.hydra(-500, "b: 2")

    def away(*_, **__):
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(scene.launches, "objects", away)
    found, record = scene.then()
    assert record is None
    assert found.values["b"].value == 2
    assert "which launch wrote step 40" in caplog.text


def test_where_the_store_fails_in_between_hydras_file_is_left_out(scene, caplog, monkeypatch):
    scene.hydra(-500, "b: 2")

    def away(*_, **__):
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(scene.launches, "begun", away)
    assert scene.then()[0].get("b") is None
    assert "left out" in caplog.text


def test_a_clock_that_is_ahead_of_the_stores(scene):
    """Files have this node's time, saves and launches the store's."""
    scene.launch(begin_s=-600, end_s=60, settings={"a": 1})
    scene.hydra(-500 + 3600, "b: 2")
    part = Part("r", "id", 40, "x", "", "n", "id", "verl", Level.FULL, scene.saved_ns, True, 0, -3600 * NS, (), ())
    scene.resumed = replace(scene.resumed, part=part)
    found, _ = scene.then()
    assert found.values["b"].value == 2


@pytest.mark.parametrize(
    ("path", "taken"), [("{out}", True), ("{out}/", True), ("checkpoints/e", True), ("/ckpt/other", False)]
)
def test_a_log_of_another_run_is_left_out(scene, path, taken, caplog):
    path = path.format(out=scene.out)
    log = scene.log(f"{{'a': 3, 'trainer': {{'default_local_dir': '{path}'}}}}\n", *train_logs.steps(1, 50))
    found, _ = scene.then(train_log=log)
    assert (found.get("a") is not None) is taken
    assert ("is of another run, which saves to /ckpt/other" in caplog.text) is not taken


def test_a_log_that_is_not_there_is_an_error(scene):
    with pytest.raises(UsageError, match="no such log"):
        scene.then(train_log=str(scene.root / "none"))


def test_what_other_layouts_say_of_themselves(tmp_path):
    layered = Scene(tmp_path / "a", make=layered_step)
    values = {name: each.value for name, each in layered.then()[0].values.items()}
    assert values["step.state.global_step"] == 40
    assert all(isinstance(value, (str, int, float)) for value in values.values())
    other = Scene(tmp_path / "b", make=hf_step)
    assert other.then()[0].values["step.state.global_step"].value == 40


def test_roles_whose_shards_disagree_say_nothing(tmp_path):
    scene = Scene(tmp_path)
    (scene.out / "global_step_40" / "actor" / "model_world_size_2_rank_1.pt").write_bytes(b"x")
    (scene.out / "global_step_40" / "actor" / "fsdp_config.json").write_text('{"FSDP_version": "two"}')
    scene.resumed = Resumed(40, list_step(scene.resumed.path), saved_ns=scene.saved_ns)
    assert not scene.then()[0].values
