"""What a pass does: several nodes, failing stores, torn steps, a held lock, an output_dir that comes and goes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest

from ckptsync.actions.overview import check_status, status_report
from ckptsync.actions.push import push_step
from ckptsync.daemon.status import read_status
from ckptsync.daemon.uploader import Job
from ckptsync.daemon.uploads import Uploads
from ckptsync.disk.lock import RunLock
from ckptsync.errors import CkptsyncError, ConfigError, Interrupted
from ckptsync.store.files import FileStore
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync.remote import Remote
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore


def through(daemon, store):
    """The daemon reaches its store through `store`."""
    remote = Remote(store, "run")
    remote.run_id = daemon.node.remote().run_id
    daemon.node._remote = remote
    return store


@pytest.fixture
def directory(tmp_path):
    return FileStore(str(tmp_path / "store"), url="file:///store")


def test_latest_waits_for_the_other_nodes_part(make_home, drive, committed):
    """Nobody said how many nodes there are, so a node without all shards waits until the rest is in the store."""
    one, two = make_home(name="a"), make_home(name="b")
    verl_step(one.out, 20, world=4, ranks=(0, 1), driver=False)
    waiting = drive(one.daemon())
    assert one.latest is None
    assert committed() == []

    verl_step(two.out, 20, world=4, ranks=(2, 3), driver=True)
    drive(two.daemon())
    assert two.latest == "global_step_20"
    assert committed() == [20]

    waiting._uploads.again_at.clear()  # half a minute passes
    drive(waiting)
    assert one.latest == "global_step_20"
    assert waiting.node.saves.mark_of(waiting.node.local.known[-1], "commit") is not None


def test_a_node_that_never_has_the_rest_keeps_the_older_latest(make_home, drive):
    home = make_home()
    verl_step(home.out, 20, world=2)
    daemon = drive(home.daemon())
    assert home.latest == "global_step_20"
    verl_step(home.out, 40, world=2, ranks=(0,), driver=False)
    drive(daemon)
    assert home.latest == "global_step_20"


def test_stopping_pushes_a_part_although_the_other_node_is_late(make_home, drive, committed):
    """The pause between two questions to the store does not hold the last upload back."""
    one, two = make_home(name="a"), make_home(name="b")
    verl_step(one.out, 20, world=4, ranks=(0, 1), driver=False)
    early = drive(one.daemon())
    verl_step(two.out, 20, world=4, ranks=(2, 3), driver=True)
    save = drive(two.daemon()).node.local.known[-1]
    assert save.part.step == 20
    early.flush(60.0)
    assert early.node.saves.mark_of(early.node.local.known[-1], "commit") is not None


def test_a_store_that_is_down_delays_nothing_here(make_home, drive, directory, committed):
    home = make_home()
    verl_step(home.out, 20)
    daemon = home.daemon()
    down = FaultyStore(directory, [Fault("*", "before", times=3)])
    through(daemon, RetryingStore(down, attempts=1))
    drive(daemon)
    assert home.latest == "global_step_20"
    assert committed() == []
    daemon.tick()
    assert any("request failed" in problem for problem in read_status(str(home.state))["problems"])

    while not committed():
        daemon._uploader._failed.clear()  # its pause is over
        drive(daemon)
    down.assert_all_hit()
    daemon.tick()
    assert read_status(str(home.state))["problems"] == []


def test_an_uploader_that_always_fails_is_seen_by_age_and_lag(make_home, drive, directory, committed):
    home = make_home()
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    assert committed() == [20]
    through(daemon, FaultyStore(directory, [Fault("*", "refused", times=10**6)]))
    for step in (40, 60):
        verl_step(home.out, step)
        drive(daemon)
    lock = daemon.node.daemon_lock()
    lock.acquire()
    report = status_report(daemon.node)
    assert home.latest == "global_step_60"
    assert (report["remote"]["committed"], report["remote"]["lag_steps"]) == (20, 40)
    assert report["problems"]

    ok, line = check_status(report, max_age_s=None, max_lag=39)
    assert (ok, "40 steps behind" in line, "refused" in line) == (False, True, True)
    assert check_status(report, max_age_s=None, max_lag=40)[0]
    report["remote"]["age_s"] = 7201.0
    assert not check_status(report, max_age_s=7200.0, max_lag=None)[0]
    lock.release()


def test_staged_bytes_that_changed_are_given_up_and_said(make_home, drive, directory, committed):
    """A trainer that rewrites a due step in place spoils the links: the old bytes are nowhere any more."""
    home = make_home()
    made = verl_step(home.out, 20, n=4096)
    daemon = home.daemon()
    through(daemon, FaultyStore(directory, [Fault("put_new", "refused", "*/chunks/*")]))
    drive(daemon)
    assert daemon.node.staging.staged() != ()
    with (made / "actor" / "model_world_size_1_rank_0.pt").open("r+b") as file:
        file.write(os.urandom(64))
    daemon._uploader._failed.clear()
    drive(daemon, rounds=3)
    assert daemon.node.staging.staged() == ()
    assert committed() == []
    verl_step(home.out, 20, n=4096, seed=5)
    drive(daemon, rounds=2)
    assert committed() == [20]


def test_stopping_is_heard_while_a_pull_holds_the_lock(make_home, monkeypatch):
    monkeypatch.setattr("ckptsync.daemon.loop._PATIENCE_S", 0.1)
    home = make_home()
    verl_step(home.out, 20)
    beats = []
    daemon = home.daemon(asked=lambda: len(beats) > 1, beat=lambda: beats.append(1))
    pull = RunLock(str(home.state / "lock"))
    pull.acquire()
    with pytest.raises(Interrupted):
        daemon.tick()
    pull.release()
    assert len(beats) == 2  # the watchdog hears that we live


def test_stopping_is_heard_while_a_step_is_verified(make_home):
    home = make_home()
    verl_step(home.out, 20, n=4 << 20)
    read = threading.Event()
    daemon = home.daemon(asked=read.is_set, beat=read.set)
    with pytest.raises(Interrupted):
        daemon.tick()
    assert daemon.node.local.known == []
    assert home.latest is None
    home.daemon().tick()
    assert home.latest == "global_step_20"


def test_an_output_dir_that_vanishes_is_a_fault_of_the_moment(make_home, drive):
    home = make_home()
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    home.out.rename(home.out.with_name("away"))
    with pytest.raises(ConfigError) as caught:
        daemon.tick()
    daemon.fault(caught.value)
    assert str(home.out) in read_status(str(home.state))["problems"][0]
    home.out.with_name("away").rename(home.out)
    verl_step(home.out, 40)
    drive(daemon)
    assert home.latest == "global_step_40"
    assert read_status(str(home.state))["problems"] == []


def test_a_latest_that_is_not_a_link_is_reported_and_left(make_home, drive, committed):
    home = make_home()
    verl_step(home.out, 20)
    (home.out / "latest").write_text("mine")
    drive(home.daemon())
    assert (home.out / "latest").read_text() == "mine"
    assert any("promotion is off" in problem for problem in read_status(str(home.state))["problems"])
    assert committed() == [20]


def test_latest_leaves_a_step_that_is_damaged_afterwards(make_home, drive):
    home = make_home()
    verl_step(home.out, 20)
    verl_step(home.out, 40)
    daemon = drive(home.daemon())
    assert home.latest == "global_step_40"
    shard = home.out / "global_step_40" / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:-100])
    drive(daemon)
    assert home.latest == "global_step_20"


def test_a_bug_in_one_upload_is_a_problem_not_the_end(make_home, drive, directory, committed):
    home = make_home()
    verl_step(home.out, 20)
    daemon = home.daemon()

    class Buggy(FaultyStore):
        def put_new(self, key, data):
            if not self.hits:
                self.hits.append(("bug", "put_new", key))
                raise ZeroDivisionError
            return super().put_new(key, data)

    through(daemon, Buggy(directory))
    drive(daemon)
    (error,) = daemon.errors()
    assert isinstance(error, CkptsyncError)
    assert "ZeroDivisionError" in str(error)
    daemon._uploader._failed.clear()
    drive(daemon)
    assert committed() == [20]


def test_what_came_before_the_first_step_does_not_decide_for_ever(make_home, drive, committed):
    """Logs in `epoch_1` look like a step of a trainer that nobody knows, until the real trainer's come."""
    home = make_home()
    (home.out / "epoch_1").mkdir()
    (home.out / "epoch_1" / "log.txt").write_text("started\n")
    daemon = drive(home.daemon())
    assert os.readlink(home.state / "latest").endswith("/epoch_1")
    verl_step(home.out, 20)
    daemon.tick()
    daemon.node.local.setup = replace(daemon.node.local.setup, settle_s=0.0)
    drive(daemon)
    assert home.latest == "global_step_20"
    assert not (home.state / "latest").is_symlink()  # nothing looks after it any more
    assert 20 in committed()


def test_a_step_that_is_empty_when_it_is_seen_decides_once_it_is_filled(make_home, drive):
    home = make_home()
    (home.out / "epoch_1").mkdir()
    (home.out / "epoch_1" / "log.txt").write_text("started\n")
    daemon = drive(home.daemon())
    (home.out / "global_step_20").mkdir()
    daemon.tick()
    verl_step(home.out, 20)
    daemon.tick()
    assert daemon.node.layout.name == "verl"


def test_a_push_by_hand_outlives_the_links_that_the_daemon_lets_go(make_home, drive, monkeypatch):
    """The daemon has committed the save that is pushed again, so nothing holds its staged links for it."""
    home = make_home()
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    by_hand = home.daemon().node
    remote = by_hand.remote

    def meanwhile():
        daemon.tick()
        return remote()

    monkeypatch.setattr(by_hand, "remote", meanwhile)
    assert push_step(by_hand, 20, progress=lambda _: None).outcome.commit is not None


def test_a_daemon_does_not_cry_wolf_when_a_push_by_hand_lets_the_links_go(make_home, committed):
    home = make_home()
    verl_step(home.out, 20)
    daemon = home.daemon()
    daemon.tick()
    save = daemon.node.local.known[-1]
    key, remote = daemon.node.saves.mark_of(save, "staged"), daemon.node.remote()
    uploads = Uploads(daemon.node, daemon._root)

    def meanwhile():
        daemon.node.staging.release(key)
        return remote

    daemon.node.remote = meanwhile
    staged = daemon.node.staging.path_of(key)
    Uploads(daemon.node, lambda _: staged).do(Job(save, push=True, reason="every step"), lambda: False)
    assert daemon.node.saves.mark_of(save, "torn") is None
    uploads.do(Job(save, push=True, reason="every step"), lambda: False)
    assert committed() == [20]


def test_a_link_in_a_directory_that_is_not_there_turns_only_promotion_off(make_home, drive, committed, tmp_path):
    home = make_home(f'[promote]\nlink = "{tmp_path}/not/made/latest"')
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    assert committed() == [20]
    assert any("its directory does not exist" in problem for problem in home.status["problems"])
    (tmp_path / "not" / "made").mkdir(parents=True)
    daemon.tick()
    assert os.readlink(tmp_path / "not" / "made" / "latest") == str(home.out / "global_step_20")


def test_a_save_from_the_future_is_said(make_home, drive):
    """A clock that was set back: such a save outranks all real ones, so somebody should know."""
    home = make_home()
    made = verl_step(home.out, 20)
    ahead = time.time() + 3600
    for path in made.rglob("*"):
        os.utime(path, (ahead, ahead))
    daemon = drive(home.daemon())
    assert home.latest == "global_step_20"
    assert any("saved in the future" in problem for problem in daemon._problems)


def test_what_verification_passes_over_is_told_once(make_home, drive, caplog):
    """A link that leaves the step is stored as content; a link to nothing is left out. Both are said, once each."""
    home = make_home()
    made = verl_step(home.out, 20)
    (made / "nothing").symlink_to("no-such-file")
    shared = home.out.parent / "shared.txt"
    shared.write_text("x")
    (made / "shared.txt").symlink_to(shared)
    daemon = home.daemon()
    with caplog.at_level("WARNING", logger="ckptsync"):
        drive(daemon)
        before = daemon.node.local.known[-1].name
        (made / "data.pt").touch()  # moved, with the same bytes: it is verified again
        drive(daemon)
    assert daemon.node.local.known[-1].name != before
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step 20: ")]
    assert len(told) == 2
    assert any("nothing: a link to" in line for line in told)
    assert any("shared.txt: a link that leaves the step" in line for line in told)
    assert home.status["problems"] == []


def test_a_push_puts_its_part_once_also_where_other_nodes_hold_the_rest(make_home, drive):
    """The part comes before all chunks; that the save is whole is known then, too, so that `latest` need not wait."""
    one, two = (make_home(name=name) for name in "ab")
    verl_step(one.out, 20, world=2, ranks=[0])
    verl_step(two.out, 20, world=2, ranks=[1], driver=False)
    drive(one.daemon())
    daemon = two.daemon()
    daemon.tick()
    save = daemon.node.local.known[-1]
    remote = daemon.node.remote()
    remote.store = recording = FaultyStore(remote.store)
    Uploads(daemon.node, daemon._root).do(Job(save, push=True, reason="every step"), lambda: False)
    puts = [key for operation, key in recording.calls if operation == "put_new"]
    known = ("parts", "wanted", "chunks", "ready", "commits")
    kinds = [next(kind for kind in known if f"/{kind}/" in key) for key in puts]
    assert kinds[:2] == ["parts", "wanted"]
    assert kinds.count("parts") == 1
    assert kinds[-2:] == ["ready", "commits"]
    whole = recording.calls.index(("list", "run/steps/000000000020"), recording.calls.index(("put_new", puts[0])))
    assert whole < next(i for i, (_, key) in enumerate(recording.calls) if "/chunks/" in key)
    assert daemon.node.saves.mark_of(save, "whole") is not None
