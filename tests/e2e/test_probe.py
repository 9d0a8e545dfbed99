"""`exec --probe` with a trainer that takes verl's arguments, and prints what verl prints."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from train_logs import steps

from ckptsync.actions import probe as module
from ckptsync.actions.probe import ProbeOptions, probe, probe_arguments
from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.errors import UsageError
from ckptsync.resume.running.child import CannotStart
from ckptsync.resume.running.signals import Signals, Stopped
from ckptsync.testing.checkpoints import hf_step, layered_step, verl_step

HELPERS = Path(__file__).parents[1] / "helpers"
TRAINER = textwrap.dedent(
    """
    import os, sys, time
    sys.path.insert(0, {helpers!r})
    from train_logs import layered_start, step_line, v1_start

    said = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:] if "=" in word)
    mode = os.environ.get("TRAINER_DOES", "well")
    scratch = said["trainer.default_local_dir"]
    open(os.path.join(scratch, "it_wrote_here"), "w").close()
    open({told!r}, "w").write(" ".join(sys.argv[1:]))

    def show(*lines):
        sys.stdout.write("".join(lines))

    def steps(first, changes):
        for step in range(first, int(said.get("trainer.total_training_steps", first)) + 1):
            show(step_line(step, **changes))

    if "trainer.resume_from_checkpoint" in said:  # layered
        show(*layered_start(40, 2, 320 if mode == "well" else 0))
        show(step_line(41))
        time.sleep(300)  # it would go on for an epoch
    changes = {{}}
    if mode == "scratch":
        show("Training from scratch\\n")
        steps(1, changes)
        time.sleep(300)
    path = said["trainer.resume_from_path"]
    step = int(path.split("global_step_")[-1])
    start = v1_start(step, os.path.dirname(path))
    if mode == "loss":
        changes = {{"actor/loss": 7.0}}
    elif mode == "rollouts":
        changes = {{"response_length/min": 512.0, "response_length/max": 512.0, "critic/score/max": 0.0}}
    elif mode == "schedule":
        changes = {{"actor/lr": 0.0}}
    elif mode in ("keys", "memory"):
        show(start[0])
        text = "CUDA out of memory. Tried to allocate 2.00 GiB"
        if mode == "keys":
            text = 'Error(s) in loading state_dict for Qwen2:\\n\\tMissing key(s) in state_dict: "lm_head.weight".'
        raise RuntimeError(text)
    elif mode == "hangs":
        print("loading", os.getpid(), flush=True)
        time.sleep(300)
    show(*start)
    steps(step + 1, changes)
    if mode == "stays":
        os.fork() or os.setsid()
        time.sleep(300)
    sys.exit(3 if mode == "badly" else 0)
    """
)


class Site:
    def __init__(self, tmp_path, make, name):
        (tmp_path / "out").mkdir()
        make(tmp_path / "out", 40, **({"epoch": 2} if name == "verl_layered" else {}))
        text = f'[run]\nname = "r"\noutput_dir = "{tmp_path}/out"\nstate_dir = "{tmp_path}/state"\n'
        self.node = open_node(parse(text.encode(), str(tmp_path / "c.toml"), {}))
        self.node.recognise()
        (path,) = (tmp_path / "out").glob("*40")
        self.arguments = tuple(self.node.layout.resume_args(str(path)))
        self.told, self.trainer = tmp_path / "told", tmp_path / "trainer.py"
        self.trainer.write_text(TRAINER.format(helpers=str(HELPERS), told=str(self.told)))
        self.before = tmp_path / "before.log"
        self.before.write_text("".join(steps(1, 44)))
        self.echoed, self.lines = [], []
        self._tmp = tmp_path

    def probe(self, does="well", *, words=None, **options):
        given = ProbeOptions(
            words=words or (sys.executable, str(self.trainer), "trainer.logger=[wandb]", "trainer.save_freq=20"),
            arguments=self.arguments,
            step=40,
            cwd=str(self._tmp),
            env={**os.environ, "TRAINER_DOES": does, "TMPDIR": str(self._tmp)},
            train_log=str(self.before),
            echo=self.echoed.append,
        )
        with Signals() as signals:
            report = probe(self.node, replace(given, **options), signals, self.lines.append)
        return report, {name: outcome.status for name, outcome in report.checks}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ENDS_ITSELF_S", 1.0)
    monkeypatch.setattr(module, "_FAILS_S", 0.2)
    monkeypatch.setattr(module, "_TERMINATES_S", 5.0)
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return Site(tmp_path, verl_step, "verl")


def test_one_step_is_done_away_from_the_real_directory_and_confirmed(site, tmp_path):
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    report, checks = site.probe()
    assert report.ok
    assert {name for name, status in checks.items() if status != "pass"} == {"optimizer"}
    said = dict(word.lstrip("+").split("=", 1) for word in site.told.read_text().split())
    scratch = said.pop("trainer.default_local_dir")
    assert said == {
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": f"{tmp_path}/out/global_step_40",
        "trainer.total_training_steps": "41",
        "trainer.save_freq": "-1",
        "trainer.test_freq": "-1",
        "trainer.logger": "[console]",
        "trainer.val_before_train": "False",
    }
    assert not os.path.exists(scratch)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before
    log = site.node.config.state_dir + "/probe.log"
    assert Path(log).read_text() == "".join(site.echoed)
    assert os.stat(log).st_mode & 0o077 == 0
    assert log in site.lines[0]


@pytest.mark.parametrize(
    ("does", "failed"),
    [
        ("scratch", {"resumed", "first_step", "epoch"}),
        ("loss", {"loss"}),
        ("rollouts", {"rollouts"}),
        ("keys", {"command", "first_step", "state_dict"}),
        ("memory", {"command", "first_step", "memory"}),
    ],
)
def test_each_picture_of_a_failed_resume_fails(site, does, failed):
    began = time.monotonic()
    report, checks = site.probe(does)
    assert time.monotonic() - began < 60
    assert not report.ok
    assert {name for name, status in checks.items() if status == "fail"} == failed, report.checks


def test_a_schedule_that_the_probe_bends_is_no_failure(site):
    report, checks = site.probe("schedule")
    assert (report.ok, checks["learning_rate"]) == (True, "warn")


def test_an_exit_code_after_the_step_is_worth_a_look(site):
    report, checks = site.probe("badly")
    assert (report.ok, checks["command"]) == (True, "warn")


def test_nothing_that_the_command_started_is_left(site):
    report, checks = site.probe("stays")
    assert (report.ok, checks["command"]) == (True, "pass")
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and str(site.trainer) in command_of(pid)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_command_that_never_gets_to_its_step_is_ended(site):
    report, checks = site.probe("hangs", timeout_s=1.5)
    assert checks["command"] == "fail"
    assert "had not logged a step after 1.5 s" in dict(report.checks)["command"].message


def test_a_signal_ends_it_and_the_probe(site):
    def interrupt():
        while not any("loading" in line for line in site.echoed):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Stopped) as caught:
        site.probe("hangs")
    thread.join()
    assert caught.value.number == signal.SIGTERM
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and str(site.trainer) in command_of(pid)]


def test_a_script_of_a_shell_gets_the_arguments_at_their_place(site):
    script = f"exec {sys.executable} {site.trainer} {{resume}}"
    report, _ = site.probe(words=("sh", "-c", script))
    assert report.ok
    assert "trainer.logger=[console]" in site.told.read_text()


def test_a_layered_trainer_is_ended_after_its_step(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ENDS_ITSELF_S", 1.0)
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    site = Site(tmp_path, layered_step, "verl_layered")
    report, checks = site.probe()
    assert report.ok
    assert [checks[name] for name in ("resumed", "epoch", "optimizer", "dataloader")] == ["pass"] * 4
    assert {"trainer.total_epochs=1", "trainer.debug=True", "--no-rollout-state-restore"} <= set(
        site.told.read_text().split()
    )
    report, checks = site.probe("offset")
    assert (report.ok, checks["dataloader"]) == (False, "fail")


def test_what_cannot_be_probed_is_refused(site, tmp_path):
    with pytest.raises(UsageError, match="a probe is not possible: layout plain"):
        probe_arguments("plain", 40, "/scratch")
    with pytest.raises(UsageError, match="there is no such log"):
        site.probe(train_log=str(tmp_path / "no.log"))
    with pytest.raises(CannotStart):
        site.probe(words=(str(tmp_path / "no-such-command"),))
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="a probe is not possible"):
        Site(tmp_path / "other", hf_step, "plain").probe()
    assert not list(tmp_path.glob("ckptsync-probe-*"))
