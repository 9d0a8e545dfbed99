"""What a daemon does about disks that lose data, steps that go away under it, and problems that come back."""

from __future__ import annotations

import shutil

import pytest

from ckptsync.daemon import latest
from ckptsync.daemon.status import read_status
from ckptsync.disk import durable
from ckptsync.errors import CkptsyncError, StepChanged
from ckptsync.store.files import FileStore
from ckptsync.sync.remote import Remote
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore


@pytest.fixture
def losing(monkeypatch):
    """losing(directory): the first fsync of a file below it fails, and every later one lies."""
    real, asked = durable.fsync_file, []

    def lose(directory):
        def fsync_file(path):
            if path.startswith(str(directory)):
                asked.append(path)
                if len(asked) == 1:
                    raise CkptsyncError("cannot make a file durable", where=path, why="Input/output error")
            real(path)

        monkeypatch.setattr(durable, "fsync_file", fsync_file)
        return asked

    return lose


def test_a_step_that_the_disk_lost_is_broken_and_not_synced_again(make_home, drive, losing):
    home = make_home()
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    made = verl_step(home.out, 40)
    asked = losing(made)
    drive(daemon, rounds=2)
    assert home.latest == "global_step_20"
    count = len(asked)
    assert count == len(set(asked)) > 0
    assert any("lost data" in problem for problem in read_status(str(home.state))["problems"])

    drive(home.daemon())
    assert home.latest == "global_step_20"
    assert len(asked) == count

    shutil.rmtree(made)
    verl_step(home.out, 40, seed=5)
    drive(home.daemon())
    assert home.latest == "global_step_40"


def test_a_step_that_goes_away_while_it_is_promoted_ends_nothing(make_home, monkeypatch):
    def gone(listing, pointer, **options):
        raise StepChanged("the step changed while it was made durable", where=listing.path)

    home = make_home()
    verl_step(home.out, 20)
    daemon = home.daemon()
    with monkeypatch.context() as patch:
        patch.setattr(latest, "promote", gone)
        daemon.tick()
    assert home.latest is None
    daemon.tick()
    assert home.latest == "global_step_20"


def test_nothing_is_tried_for_ever_for_a_save_whose_bytes_are_gone(make_home, drive, tmp_path):
    """Each job wakes the loop: one that can do nothing, offered by each pass, would keep both busy."""
    home = make_home()
    made = verl_step(home.out, 20)
    woken = []
    daemon = home.daemon(wake=lambda: woken.append(1))
    directory = FileStore(str(tmp_path / "store"), url="file:///store")
    remote = Remote(FaultyStore(directory, [Fault("put_new", "refused", "*/chunks/*", times=10**6)]), "run")
    remote.run_id = daemon.node.remote().run_id
    daemon.node._remote = remote
    drive(daemon)
    shutil.rmtree(made)
    (home.out / "global_step_40").mkdir()
    for key in daemon.node.staging.staged():
        daemon.node.staging.release(key)
    drive(daemon)
    assert [save.part.step for save in daemon.node.local.known] == [20]
    before = len(woken)
    drive(daemon, rounds=3)
    assert len(woken) == before


def test_a_problem_that_went_away_is_told_when_it_comes_again(make_home, drive, caplog):
    home = make_home()
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    for _ in range(2):
        (home.out / "latest").unlink()
        (home.out / "latest").mkdir()
        drive(daemon)
        (home.out / "latest").rmdir()
        drive(daemon)
    assert sum("promotion is off" in record.message for record in caplog.records) == 2


def test_links_that_no_save_needs_are_given_up(make_home, drive):
    """A step that moved while it was staged leaves a link tree behind: two of them would block staging for ever."""
    home = make_home()
    verl_step(home.out, 20)
    daemon = drive(home.daemon())
    verl_step(home.out, 40)
    daemon.node.staging.stage(daemon.node.local.look(0.0)[1].listing)
    assert daemon.node.staging.staged() != ()
    shutil.rmtree(home.out / "global_step_40")
    drive(daemon)
    assert daemon.node.staging.staged() == ()
