"""Which saves the daemon uploads: by number, by time, when nothing follows, when it stops, and at odd numbers."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from ckptsync.daemon.status import remote_summary
from ckptsync.testing.checkpoints import age, verl_step

MINUTE = 60


@pytest.fixture
def train(drive):
    """Steps as a trainer writes them, `spacing_s` apart, the last one now; the daemon looks after each."""

    def go(home, steps, daemon=None, *, spacing_s=MINUTE, keep=1000):
        for index, step in enumerate(steps):
            age(verl_step(home.out, step, n=64), spacing_s * (len(steps) - 1 - index))
            written = sorted(home.out.glob("global_step_*"), key=lambda path: path.stat().st_mtime)
            for path in written[:-keep]:
                shutil.rmtree(path)
            daemon = drive(daemon or home.daemon())
        return daemon

    return go


@pytest.fixture
def upload(tmp_path):
    """The tables of a configuration with these upload keys."""
    return lambda keys: f'[upload]\nstore = "file://{tmp_path}/store"\n{keys}\n'


def test_every_hundredth_of_saves_every_twenty(make_home, upload, train, committed):
    home = make_home(upload('every_steps = 100\nidle = "10h"'))
    train(home, range(20, 241, 20))
    assert committed() == [100, 200]
    assert home.latest == "global_step_240"


def test_the_trainers_rotation_changes_nothing(make_home, upload, train, committed):
    """The trainer keeps two steps; what was committed is gone from the disk, and is neither forgotten nor hidden."""
    home = make_home(upload('every_steps = 100\nidle = "10h"'))
    train(home, range(20, 301, 20), keep=2)
    assert committed() == [100, 200, 300]
    again = train(home, (320, 340, 360), spacing_s=0, keep=2)
    assert committed() == [100, 200, 300]
    summary = remote_summary(again.node.saves, again.node.local.known, 10**10)
    assert (summary["committed"], summary["lag_steps"]) == (300, 60)


def test_what_was_there_before_the_daemon_counts_by_its_newest(make_home, upload, drive, committed):
    """The newest of each hundred stands for it: on the first day that is what matters most."""
    home = make_home(upload('every_steps = 100\nidle = "10h"'))
    for step in range(20, 241, 20):
        age(verl_step(home.out, step, n=64), 2 * (240 - step))
    drive(home.daemon())
    assert committed() == [180, 240]


def test_by_time(make_home, upload, train, committed):
    """The first save in each stretch of the clock, the same on every node."""
    home = make_home(upload('every = "30m"\nidle = "10d"'))
    train(home, range(1, 11), spacing_s=10 * MINUTE)
    stretch_of = {n: (home.out / f"global_step_{n}" / "data.pt").stat().st_mtime // (30 * MINUTE) for n in range(1, 11)}
    firsts = [n for n in range(1, 11) if n == 1 or stretch_of[n] != stretch_of[n - 1]]
    assert committed() == firsts
    assert 4 <= len(firsts) <= 5


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_save_on_the_border_of_two_stretches_is_uploaded_by_all_nodes_or_none(
    make_home, upload, drive, committed, first
):
    """By node a's files the save still belongs to the stretch before, by node b's the next one has begun."""
    homes = {name: make_home(upload('every = "30m"\nidle = "10d"'), name) for name in "ab"}
    border = (time.time() // (30 * MINUTE) - 1) * 30 * MINUTE
    for step, ends in ((20, border - 10 * MINUTE), (40, border)):
        for name, ranks in (("a", [0, 1]), ("b", [2, 3])):
            made = verl_step(homes[name].out, step, world=4, ranks=ranks, driver=name == "b", n=64)
            for path in made.rglob("*"):
                at = ends + (1 if name == "b" and path.name == "data.pt" else -1)
                os.utime(path, (at, at))
        if step == 20:
            daemons = {name: drive(home.daemon()) for name, home in homes.items()}
            drive(daemons["a"])
            assert committed() == [20]
    for name in (first, "b" if first == "a" else "a"):
        drive(daemons[name])
    assert committed() == ([20] if first == "a" else [20, 40]), "a put its part before b began: it has to ask again"
    for daemon in daemons.values():
        daemon._uploads.again_at.clear()  # half a minute later
    drive(daemons["a"])
    assert committed() == [20, 40]


@pytest.mark.parametrize(("idle", "expected"), [("30m", [5]), ("3h", [])])
def test_the_last_save_of_a_run_that_went_idle(make_home, upload, train, drive, committed, idle, expected):
    home = make_home(upload(f'every_steps = 100\nidle = "{idle}"'))
    for step in range(1, 6):
        age(verl_step(home.out, step, n=64), 60 * MINUTE - step)
    drive(home.daemon())
    assert committed() == expected


def test_a_number_that_breaks_the_spacing(make_home, upload, train, committed):
    """A save on pre-emption carries any number, and may be the last thing the node does."""
    home = make_home(upload('every_steps = 1000\nidle = "10h"'))
    train(home, [20, 40, 60, 80, 100, 107])
    assert committed() == [107]


def test_steps_below_since_are_left_alone(make_home, upload, train, committed):
    home = make_home(upload("since = 30"))
    train(home, [20, 40])
    assert committed() == [40]


def test_stopping_uploads_the_newest_verified_step(make_home, upload, train, committed):
    home = make_home(upload("every_steps = 1000"))
    daemon = train(home, [20, 40])
    assert committed() == []
    daemon.flush(60.0)
    assert committed() == [40]


def test_a_restart_uploads_nothing_twice_and_goes_on_in_the_same_rhythm(make_home, upload, train, drive, committed):
    home = make_home(upload('every_steps = 100\nidle = "10h"'))
    train(home, range(20, 141, 20)).end(60.0)
    parts = sorted(home.out.parent.parent.glob("store/run/steps/*/parts/*"))
    drive(home.daemon())
    assert committed() == [100]
    assert sorted(home.out.parent.parent.glob("store/run/steps/*/parts/*")) == parts
