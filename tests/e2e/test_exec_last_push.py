"""What the last push of `exec` waits for: processes of their own, since the times of the others are shorter."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import exec_trainer
import pytest
from waiting import until

from ckptsync.resume.machine import writers

ALONE = """
import signal, sys
from ckptsync.resume.machine import writers
writers.look = lambda: {}  # who else runs on this machine is not this test's
from ckptsync.cli.main import main
code = main()
if LATE := "":
    signal.raise_signal(getattr(signal, LATE))
sys.exit(code)
"""


class Job:
    """`exec` with ten minutes of quiet time, of which the deadline leaves some seconds."""

    def __init__(self, node, tmp_path):
        self.node, self.log, self.script = node, tmp_path / "log", tmp_path / "run.sh"
        self.said = tmp_path / "said"
        node.config.write_text(node.config.read_text() + '[watch]\nsettle = "10m"\n')

    def trainer(self, plans):
        return [sys.executable, exec_trainer.__file__, self.log, self.node.ckpt, plans, "trainer.nnodes=1"]

    def start(self, command, *options, deadline="60s", late=""):
        """What it says goes into a file, which what it leaves running may hold open."""
        exec_ = ["exec", "--config", self.node.config, "--deadline", deadline, *options, "--", *command]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **self.node.environ}
        words = [sys.executable, "-c", ALONE.replace('""', repr(late)), *map(str, exec_)]
        with self.said.open("wb") as said:
            return subprocess.Popen(words, env=env, stderr=said)

    def run(self, *words, **options):
        """Exit code, and what it said."""
        return self.start(*words, **options).wait(), self.said.read_text()

    def committed(self):
        return len(self.node.commits(20)) == 1


@pytest.fixture
def job(node, tmp_path):
    return Job(node, tmp_path)


def test_what_a_trainer_left_that_has_ended_is_judged_as_soon_as_stat_can_vouch_for_it(job):
    code, said = job.run(job.trainer("save:20 exit:3"))
    assert (code, job.committed()) == (3, True), said


@pytest.mark.parametrize("late", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_after_the_last_push_does_not_take_the_place_of_the_commands_code(job, late):
    assert job.run(job.trainer("exit:3"), late=late)[0] == 3


def test_so_it_is_with_a_daemon_beside_it(job):
    code, said = job.run(job.trainer("save:20 exit:3"), "--daemon")
    assert (code, job.committed()) == (3, True), said


def test_so_it_is_behind_a_script_where_the_trainer_was_seen(job):
    job.script.write_text(shlex.join(map(str, job.trainer("term:20 wait"))) + "; exit $?")
    run = job.start(["bash", job.script])
    until(lambda: list((job.node.store / "r/attempts").rglob("trainer.json")), "the note")
    run.terminate()
    run.wait()
    assert job.committed(), job.said.read_text()


def test_what_is_left_running_may_still_write(job):
    code, said = job.run(job.trainer("save:20 orphan exit:3"), deadline="4s")
    (orphan,) = [entry["orphan"] for entry in map(json.loads, job.log.read_text().splitlines()) if "orphan" in entry]
    os.kill(orphan, signal.SIGKILL)  # it was left alive
    assert (code, job.committed()) == (3, False)
    assert "the last push was stopped: --deadline" in said


@pytest.mark.parametrize("options", [(), ("--no-args",)])
def test_a_trainer_that_nobody_saw_may_run_elsewhere_and_still_write(job, options):
    """The script's says nothing that it could be known by; and `--no-args` says of a command that it is no trainer."""
    words = job.trainer("save:20")[:-1]
    job.script.write_text(shlex.join(map(str, words)))
    code, said = job.run(words if options else ["bash", job.script], *options, deadline="4s")
    assert (code, job.committed()) == (0, False)
    assert "until nothing has changed there for 600 s" in said


@pytest.mark.parametrize(
    ("kind", "may"), [("ext4", False), ("tmpfs", False), ("nfs4", True), ("fuse.s3fs", True), ("", True)]
)
def test_only_a_local_file_system_is_written_by_this_machine_alone(monkeypatch, kind, may):
    monkeypatch.setattr(writers, "file_system_type", lambda _: kind)
    monkeypatch.setattr(writers, "look", dict)
    assert writers.others_may_write("/out") is may


@pytest.mark.parametrize(("name", "may"), [("raylet", True), ("ray::WorkerDict", True), ("python3", False)])
def test_workers_of_a_ray_that_goes_on_may_still_write(monkeypatch, name, may):
    with subprocess.Popen([name, "600"], executable="/bin/sleep") as process:
        found = writers.look()
        process.kill()
    monkeypatch.setattr(writers, "look", lambda: {process.pid: found[process.pid]})
    monkeypatch.setattr(writers, "file_system_type", lambda _: "ext4")
    assert writers.others_may_write("/out") is may
