"""`exec --daemon`: the node's daemon for as long as the job lives."""

import json
import os
import signal
import sys
import time

import exec_trainer
import pytest
from waiting import PATIENCE_S, alive, until

from ckptsync.actions.beside import DaemonBeside
from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.resume.running.guard import descendants


@pytest.fixture
def quick(node):
    """Its daemon, a process of its own, looks as often as it may."""
    node.config.write_text(node.config.read_text() + '[watch]\nsettle = "2s"\nscan_interval = "200ms"\n')
    return node


def start(node, log, plans, *options):
    trainer = [sys.executable, exec_trainer.__file__, log, node.ckpt, plans]
    return node.start("exec", "--daemon", *options, "--", *trainer)


def holder(node):
    """The process that has the daemon's lock; None = none, or it has not signed it yet."""
    lock = open_node(parse(node.config.read_bytes(), str(node.config), {})).daemon_lock()
    pid = lock.holder().rpartition(" ")[2] if lock.taken() else ""
    return int(pid) if pid.isdecimal() else None


def test_the_daemon_commits_while_the_job_runs_and_ends_with_it(quick, tmp_path):
    run = start(quick, tmp_path / "log", "save:20 term:30 wait")
    until(lambda: quick.commits(20), "the commit")
    daemon = holder(quick)
    assert daemon in descendants(run.pid)
    assert os.getsid(daemon) == os.getsid(run.pid), "another session has a share of the processor of its own"
    assert os.getpgid(daemon) == daemon, "Ctrl-C is for exec"
    run.send(signal.SIGTERM)
    done = run.wait()
    assert done.code == 5
    assert len(quick.commits(30)) == 1, done.err
    assert not alive(daemon)
    assert "step 20 committed" in done.err, "its log is among ours"


def test_a_daemon_that_is_here_already_is_left_to_its_work(quick, tmp_path):
    other = quick.start("run")
    until(lambda: holder(quick) == other.pid, "the daemon")
    done = start(quick, tmp_path / "log", "save:20 exit:0").wait()
    assert done.code == 0
    assert "a daemon of this run is here already" in done.err
    assert holder(quick) == other.pid
    assert len(quick.commits(20)) == 1
    other.send(signal.SIGTERM)
    assert other.wait().code == 0


def test_the_daemon_of_an_exec_that_is_killed_ends_by_itself(quick, tmp_path):
    run = start(quick, tmp_path / "log", "wait")
    daemon = until(lambda: holder(quick), "the daemon")
    everybody = until(lambda: len(found := descendants(run.pid)) >= 3 and found)
    assert daemon in everybody
    run.kill()
    until(lambda: not any(map(alive, everybody)), "the end of all")


def test_a_daemon_that_dies_is_started_again_until_the_job_is_to_end(quick):
    said = []
    node = open_node(parse(quick.config.read_bytes(), str(quick.config), {}))
    daemon = DaemonBeside(node, ["--config", str(quick.config)], os.environ, said.append, _pause_s=0.05)
    daemon.start()
    try:
        first = until(lambda: holder(quick), "its name")
        assert list(daemon.pids) == [first]
        os.kill(first, signal.SIGKILL)

        def watch():
            daemon.watch(again=True)
            return holder(quick) not in {None, first}

        until(watch, "another daemon")
        assert "by SIGKILL" in said[0]
    finally:
        daemon.stop(time.monotonic() + PATIENCE_S, lambda: True)
    assert holder(quick) is None
    daemon.watch(again=True)
    assert daemon.pids == []


def test_a_daemon_that_cannot_run_is_not_started_again_and_again(quick):
    said = []
    node = open_node(parse(quick.config.read_bytes(), str(quick.config), {}))
    quick.config.write_text("[nonsense]\n")
    daemon = DaemonBeside(node, ["--config", str(quick.config)], os.environ, said.append, _pause_s=0.0)
    daemon.start()
    daemon.watch(again=True)
    daemon.watch(again=True)
    assert said == ["the daemon has ended (exit code 3): it is not started again"]
    assert json.dumps(list(daemon.pids)) == "[]"
