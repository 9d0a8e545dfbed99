"""Retention as a stage of the daemon's pass: what it waits for, and what it never waits for."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

from ckptsync.daemon.status import read_status
from ckptsync.disk.space import Disk
from ckptsync.errors import StoreUnavailable
from ckptsync.store import keys
from ckptsync.sync.notes import Pin, put_pin
from ckptsync.testing.checkpoints import verl_step

KEEP_TWO = "[retention.local]\ndelete = true\nkeep_last = 2\n"
STEPS = (10, 20, 30, 40)


class Gate:
    """A store whose lists of pins wait, or fail, until they may go on."""

    def __init__(self, store):
        self._store = store
        self.open = threading.Event()
        self.asked = threading.Event()
        self.fails = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def list(self, prefix):
        if prefix.endswith("/pins"):
            self.asked.set()
            if self.fails:
                raise StoreUnavailable("the store is away", where=prefix)
            assert self.open.wait(60)
        return self._store.list(prefix)


def names(home):
    return sorted(int(path.name.removeprefix("global_step_")) for path in home.out.glob("global_step_*"))


def until(seen, tick, what):
    deadline = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < deadline, what
        tick()
        time.sleep(0.02)


@pytest.fixture
def settled(make_home, drive):
    """A home whose steps are verified and committed, by a daemon without retention."""

    def make(steps=STEPS, **options):
        home = make_home()
        for step in steps:
            verl_step(home.out, step, **options)
        drive(home.daemon())
        return home

    return make


@pytest.fixture
def restart(tmp_path):
    """restart(home, tables): a daemon with other tables against the same store, behind a gate."""

    def make(home, tables):
        home.configure(f'{tables}\n[upload]\nstore = "file://{tmp_path}/store"\n')
        daemon = home.daemon()
        remote = daemon.node.remote()
        remote.store = gate = Gate(remote.store)
        return daemon, gate

    return make


def test_a_slow_store_delays_no_pass_and_nothing_goes_before_it_has_answered(settled, restart):
    home = settled()
    daemon, gate = restart(home, KEEP_TWO)
    daemon.tick()
    assert gate.asked.wait(60)
    verl_step(home.out, 50)
    for _ in range(3):
        daemon.tick()  # ends, although the question does not
    assert home.latest == "global_step_50"
    assert names(home) == [*STEPS, 50]
    assert not daemon.quiet
    gate.open.set()
    until(lambda: names(home) == [40, 50], daemon.tick, "the deletions")


def test_a_store_that_is_away_is_told_and_asked_again(settled, restart, monkeypatch):
    monkeypatch.setattr("ckptsync.daemon.inquiry._AFTER_FAULT_S", 0.0)
    home = settled()
    daemon, gate = restart(home, KEEP_TWO)
    gate.fails = True

    def told():
        return any("before the store says what is pinned" in text for text in read_status(home.state)["problems"])

    daemon.tick()
    until(told, daemon.tick, "the problem")
    assert names(home) == list(STEPS)
    gate.fails = False
    gate.open.set()
    until(lambda: names(home) == [30, 40], daemon.tick, "the deletions")
    daemon.tick()
    assert not told()


def test_a_pin_that_comes_meanwhile_is_seen_before_the_next_deletion(settled, restart, monkeypatch):
    home = settled()
    daemon, gate = restart(home, KEEP_TWO)
    remote = daemon.node.remote()
    commit = next(iter(remote.index(10).commits))
    daemon.tick()
    assert gate.asked.wait(60)
    put_pin(remote, Pin(commit, 10, 0, "just in time"))
    gate.open.set()
    until(lambda: 20 not in names(home), daemon.tick, "the deletions")
    assert 10 in names(home)


def test_an_answer_that_comes_in_the_middle_of_a_pass_frees_nothing_judged_without_it(settled, restart, monkeypatch):
    home = settled()
    daemon, gate = restart(home, KEEP_TWO)
    remote, retention = daemon.node.remote(), daemon._retention
    commit = next(iter(remote.index(10).commits))
    daemon.tick()
    assert gate.asked.wait(60)
    put_pin(remote, Pin(commit, 10, 0, "just in time"))
    plan = retention._planner.plan

    def judged_just_before(*args, **kwargs):
        judged = plan(*args, **kwargs)
        gate.open.set()
        retention._inquiry._thread.join(60)
        return judged

    with monkeypatch.context() as patch:
        patch.setattr(retention._planner, "plan", judged_just_before)
        daemon.tick()
    assert names(home) == list(STEPS)
    until(lambda: names(home) == [10, 30, 40], daemon.tick, "the deletions")


def test_pins_of_an_earlier_process_hold_without_the_store(settled, restart, monkeypatch):
    """The disk fills up while the store is away: what is pinned stays, the rest gives way."""
    home = settled()
    daemon, gate = restart(home, KEEP_TWO.replace("keep_last = 2", "keep_last = 9"))
    remote = daemon.node.remote()
    put_pin(remote, Pin(next(iter(remote.index(10).commits)), 10, 0, "paper"))
    gate.open.set()
    until((home.state / "told.json").exists, daemon.tick, "the answer")
    again, gate = restart(home, KEEP_TWO + 'min_free = "1GB"\n')
    gate.fails = True
    monkeypatch.setattr("ckptsync.daemon.retention_plan.disk_of", lambda _: Disk(free=10**9, total=10**10))
    again.tick()
    assert names(home) == [10, 30, 40]


@pytest.mark.parametrize("keep", ["keep_last = 3", "keep_last = 9"])
def test_a_lost_commit_gives_way_last_and_in_the_way_of_nobody(settled, restart, monkeypatch, keep):
    """Unwanted (3), it was counted as room that comes, and stayed: the disk ran full. Wanted (9), it went first."""
    home = settled()
    daemon, gate = restart(home, KEEP_TWO.replace("keep_last = 2", keep) + 'min_free = "1GB"\n')
    remote = daemon.node.remote()
    (commit,) = remote.index(10).commits
    remote.store.delete(keys.commit_key(remote.run, 10, commit))
    free = [10**10, 10**9, 0]
    monkeypatch.setattr("ckptsync.daemon.retention_plan.disk_of", lambda _: Disk(free=free[0], total=10**10))
    gate.open.set()
    until(lambda: daemon._retention._inquiry.lost(commit), daemon.tick, "the answer")
    assert names(home) == list(STEPS)
    free.pop(0)
    daemon.tick()
    assert names(home) == [10, 30, 40]
    free.pop(0)
    daemon.tick()
    assert names(home) == [30, 40]
    assert any(
        "step 10 had to be deleted although the store had lost it" in text for text in daemon._retention.problems
    )


def test_what_an_earlier_process_knew_to_be_lost_gives_way_last_without_the_store(settled, restart, monkeypatch):
    home = settled()
    daemon, gate = restart(home, KEEP_TWO.replace("keep_last = 2", "keep_last = 9"))
    remote = daemon.node.remote()
    (commit,) = remote.index(10).commits
    remote.store.delete(keys.commit_key(remote.run, 10, commit))
    gate.open.set()
    until((home.state / "told.json").exists, daemon.tick, "the answer")
    again, gate = restart(home, KEEP_TWO + 'min_free = "1GB"\n')
    gate.fails = True
    monkeypatch.setattr("ckptsync.daemon.retention_plan.disk_of", lambda _: Disk(free=10**9, total=10**10))
    again.tick()
    assert names(home) == [10, 30, 40]


def test_the_upload_of_the_moment_is_a_floor_even_on_a_full_disk(settled, restart, monkeypatch, make_home):
    home = make_home()
    for step in STEPS:
        verl_step(home.out, step)
    home.configure('[retention.local]\ndelete = true\nmin_free = "1GB"\n[upload]\nstore = "file:///dev/null/none"\n')
    daemon = home.daemon()  # not started: nothing is uploaded, all is due
    daemon.tick()
    assert names(home) == list(STEPS)
    save = next(save for save in daemon.node.local.known if save.part.step == 10)
    monkeypatch.setattr("ckptsync.daemon.retention_plan.disk_of", lambda _: Disk(free=0, total=10**10))
    left = daemon._retention.run(daemon.node.local, daemon.node.local.look(time.monotonic()), save)
    assert sorted(view.step for view in left) == [10, 30, 40]
    assert names(home) == [10, 30, 40]
    assert any("step 20 had to be deleted before it was uploaded" in text for text in daemon._retention.problems)
    daemon.tick()
    assert any("step 20 had to be deleted" in text for text in read_status(home.state)["problems"])


def test_what_an_earlier_process_left_in_the_trash_goes_whatever_the_tables_say(settled, restart):
    home = settled()
    left = home.out.parent / ".out.ckptsync/trash/global_step_7#0123456789abcdef"
    shutil.copytree(home.out / "global_step_10", left)
    daemon, gate = restart(home, "")
    until(lambda: not left.exists(), daemon.tick, "the end of the trash")
    assert names(home) == list(STEPS)
    assert not gate.asked.is_set()  # one node, no policy, no note: nobody is asked


def test_a_step_that_the_trainer_rewrites_is_not_the_one_that_was_judged(settled, restart):
    """Between the scan and the deletion: it stays, and the pass goes on."""
    home = settled()
    daemon, gate = restart(home, KEEP_TWO)
    gate.open.set()
    daemon.tick()
    until(lambda: not daemon._retention._inquiry.busy, daemon._retention._inquiry.settle, "the answer")
    views = daemon.node.local.look(time.monotonic())
    path = home.out / "global_step_10/actor/model_world_size_1_rank_0.pt"
    path.write_bytes(path.read_bytes())
    left = daemon._retention.run(daemon.node.local, views, None)
    assert sorted(view.step for view in left) == [10, 30, 40]
    assert names(home) == [10, 30, 40]
    assert os.path.exists(path)
