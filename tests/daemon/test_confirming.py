"""`[confirm] train_log`: the daemon says by itself whether a resume went on."""

from __future__ import annotations

import json
import time

import pytest
from train_logs import steps, v1_start
from waiting import until

from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.daemon.confirming import Watched
from ckptsync.model.launch import LaunchRecord
from ckptsync.sync.launches import Launches
from ckptsync.testing.checkpoints import verl_step

SCRATCH = ["Training from scratch\n"]


class Site:
    """A node, its trainer's log, and what is said about them."""

    def __init__(self, home, log):
        self.home, self.log = home, log
        self.node = open_node(parse(home.config.read_bytes(), str(home.config), {}))
        self.node.recognise()
        self._watched = []

    def write(self, *lines):
        with self.log.open("a") as file:
            file.write("".join(lines))

    def watch(self):
        """Returns once the daemon has read what is there."""
        self._watched.append(Watched(self.node, poll_s=0.02))
        until(lambda: self._watched[-1].reading)
        return self._watched[-1]

    def outcome(self):
        path = self.home.state / "confirm.json"
        return json.loads(path.read_text()) if path.exists() else None

    def settled(self):
        """Nothing must come: the log has been looked at some fifteen times by then."""
        time.sleep(0.3)

    def launch(self, resumed_step):
        remote = self.node.remote()
        launches = Launches(remote)
        started = launches.now_ns("a")
        record = LaunchRecord("run", remote.run_id, f"local-{started}", "a", started, resumed_step=resumed_step)
        launches.put(record)
        return launches, record

    def close(self):
        for watched in self._watched:
            watched.close()


@pytest.fixture
def site(make_home, tmp_path):
    log = tmp_path / "train.log"
    found = Site(make_home(f'[confirm]\ntrain_log = "{log}"\n'), log)
    yield found
    found.close()


def test_a_resume_that_goes_on_is_told_and_kept(site, caplog):
    caplog.set_level("INFO", "ckptsync")
    verl_step(site.home.out, 40)
    launches, record = site.launch(40)
    watched = site.watch()
    site.write(*steps(1, 44), *v1_start(40))
    site.settled()
    assert site.outcome() is None, "nothing to judge yet"
    site.write(*steps(41, 41))
    assert until(site.outcome)["ok"]
    until(lambda: (launches.noted(record, "confirm") or {}).get("ok"))
    site.write(*steps(42, 50))
    until(lambda: caplog.text.count("the training goes on from step 40") >= 1)
    assert watched.problem == ""


def test_one_that_does_not_is_a_problem_until_the_next_one_does(site):
    site.write(*steps(1, 44), *v1_start(40))
    watched = site.watch()
    site.write(*steps(41, 43, actor__loss=9.0))
    until(lambda: "actor/loss jumps" in watched.problem)
    assert until(site.outcome)["ok"] is False
    site.write(*v1_start(40), *steps(41, 43))
    until(lambda: watched.problem == "")
    until(lambda: site.outcome()["ok"])


def test_a_silent_restart_is_seen(site):
    site.write(*steps(1, 44))
    watched = site.watch()
    site.write(*SCRATCH, *steps(1, 1))
    until(lambda: "trains from nothing" in watched.problem)


def test_a_silent_restart_in_a_log_of_its_own_is_seen_by_the_launch(site):
    verl_step(site.home.out, 40)
    site.launch(40)
    watched = site.watch()
    site.write(*SCRATCH)
    until(lambda: "the training does not go on from step 40" in watched.problem)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_first_training_is_no_resume(site, recorded):
    if recorded:
        site.launch(None)
    watched = site.watch()
    site.write(*SCRATCH, *steps(1, 30))
    site.settled()
    assert (watched.problem, site.outcome()) == ("", None)


def test_memory_that_runs_out_while_loading_is_told_without_a_step(site):
    site.write(*steps(1, 44), *v1_start(40))
    watched = site.watch()
    site.write("torch.OutOfMemoryError: CUDA out of memory.\n")
    until(lambda: "memory ran out" in watched.problem)


def test_a_start_of_yesterday_is_not_taken_for_the_one_that_begins_now(site):
    """`exec` has recorded the new start, and the log still ends with the old one."""
    verl_step(site.home.out, 40)
    site.write(*steps(1, 20), *v1_start(20), *steps(21, 44))
    site.launch(40)
    watched = site.watch()
    site.write("+ python3 -m verl.trainer.main_ppo trainer.resume_mode=auto\n", "loading\n")
    site.settled()
    assert (watched.problem, site.outcome()) == ("", None)
    site.write(*v1_start(40), *steps(41, 41))
    assert until(site.outcome)["ok"]


def test_a_log_that_cannot_be_read_is_told_once(make_home, tmp_path, caplog):
    site = Site(make_home(f'[confirm]\ntrain_log = "{tmp_path}"\n'), tmp_path)
    site._watched.append(Watched(site.node, poll_s=0.02))
    until(lambda: "cannot read the train log" in caplog.text)
    site.settled()
    site.close()
    assert caplog.text.count("cannot read the train log") == 1


def test_a_real_daemon_reports_it(make_home, start, tmp_path):
    log = tmp_path / "train.log"
    home = make_home(f'[confirm]\ntrain_log = "{log}"\n')
    verl_step(home.out, 40)
    log.write_text("".join(steps(1, 44)))
    daemon = start(home)
    daemon.hears("READY=1")
    with log.open("a") as file:
        for line in [*SCRATCH, *steps(1, 3)]:
            time.sleep(0.5)
            file.write(line)
            file.flush()
    daemon.says("the training does not go on")
    until(lambda: any("the training does not go on" in problem for problem in home.status["problems"]))
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log
