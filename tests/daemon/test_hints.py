"""The control socket: what a trainer says shortens a wait, and whatever anybody says changes nothing else."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from dataclasses import replace

from speaking import SAVED, refused, say, trainer
from waiting import until

from ckptsync.daemon.control import Hint
from ckptsync.model.step import LocalState
from ckptsync.testing.checkpoints import age, verl_step


def test_a_step_that_the_trainer_calls_complete_settles_sooner_but_never_within_two_seconds(make_home):
    home = make_home()
    verl_step(home.out, 20)
    local = home.daemon().node.local
    local.setup = replace(local.setup, settle_s=30.0)
    assert local.look(100.0)[0].state is LocalState.SETTLING
    local.said("global_step_20")
    assert local.look(101.9)[0].state is LocalState.SETTLING
    assert local.look(102.1)[0].state is LocalState.COMPLETE
    local.setup = replace(local.setup, settle_s=2.0)
    assert local.settle_s("global_step_20") == 2.0


def test_what_was_said_is_void_once_a_file_changes(make_home):
    """Another save has begun in the directory, and nobody has said that it is over."""
    home = make_home()
    step = verl_step(home.out, 20)
    local = home.daemon().node.local
    local.setup = replace(local.setup, settle_s=30.0)
    local.said("global_step_20")
    local.said("global_step_40")
    local.look(100.0)
    assert set(local.spoken_of) == {"global_step_20"}, "of a directory that is not there nothing can be said"
    data = (step / "data.pt").read_bytes()
    (step / "data.pt").write_bytes(data)
    assert local.look(101.0)[0].state is LocalState.SETTLING
    assert local.look(110.0)[0].state is LocalState.SETTLING
    assert local.look(131.1)[0].state is LocalState.COMPLETE


def test_no_hint_makes_an_incomplete_step_complete(make_home, drive, committed):
    home = make_home()
    next(verl_step(home.out, 20, world=2).glob("actor/optim_*_rank_0.pt")).unlink()
    lie = Hint(20, (str(home.out / "global_step_20"),), settled=True, chosen=True)
    daemon = home.daemon(hints=lambda: [lie])
    drive(daemon, rounds=2)
    assert [view.state for view in daemon.views] == [LocalState.GROWING]
    assert (home.latest, committed()) == (None, [])


def test_no_hint_passes_a_damaged_step(make_home, drive, committed):
    home = make_home()
    step = verl_step(home.out, 20)
    shard = next(step.glob("actor/model_*"))
    shard.write_bytes(shard.read_bytes()[:-30])
    age(step, 60)
    lie = Hint(20, (str(step),), settled=True, chosen=True)
    daemon = home.daemon(hints=lambda: [lie])
    drive(daemon, rounds=2)
    assert [view.state for view in daemon.views] == [LocalState.BROKEN]
    assert (home.latest, committed()) == (None, [])


def patient(home):
    """A daemon that by itself would wait for minutes."""
    home.config.write_text(
        home.config.read_text().replace('settle = "2s"', 'settle = "10m"').replace('"200ms"', '"10m"')
    )


def test_a_real_trainer_process_spares_a_real_daemon_the_wait(make_home, start, committed):
    home = make_home()
    patient(home)
    daemon = start(home)
    daemon.hears("READY=1")
    path = home.state / "control.sock"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o660
    began = time.monotonic()
    step = verl_step(home.out, 20)
    trainer(step, 20, path)
    until(lambda: committed() == [20])
    assert time.monotonic() - began >= 2, "two seconds of quiet are the least that stat can vouch for"
    assert home.latest == "global_step_20"
    assert "global_step_20 is complete, says the trainer" in daemon.log
    assert daemon.stop() == 0
    assert not path.exists()


def test_an_asynchronous_save_only_makes_it_look(make_home, start, tmp_path):
    home = make_home()
    patient(home)
    daemon = start(home)
    daemon.hears("READY=1")
    verl_step(home.out, 20)
    say(home.state / "control.sock", {**SAVED, "settled": False})
    until(lambda: [step["local"] for step in home.status["steps"]] == ["settling"])
    assert "says the trainer" not in daemon.log
    daemon.send(9)


def test_a_new_daemon_replaces_the_socket_of_a_killed_one(make_home, start, committed):
    home = make_home()
    patient(home)
    first = start(home)
    first.hears("READY=1")
    first.send(9)
    first.popen.wait()
    path = home.state / "control.sock"
    assert path.exists()
    trainer("/c/global_step_20", 20, path)  # nobody there: nothing happens
    second = start(home)
    second.hears("READY=1")
    trainer(verl_step(home.out, 20), 20, path)
    until(lambda: committed() == [20])
    assert second.stop() == 0


def test_it_goes_on_listening_after_a_reload_and_after_the_loss_of_its_state_directory(make_home, start, committed):
    home = make_home()
    patient(home)
    daemon = start(home)
    daemon.hears("READY=1")
    path = home.state / "control.sock"
    daemon.send(signal.SIGHUP)
    daemon.hears("READY=1", times=2)
    trainer(verl_step(home.out, 20), 20, path)
    until(lambda: committed() == [20])
    home.state.rename(home.state.with_name("gone"))  # deleting it file by file would race with the daemon
    verl_step(home.out, 40)  # the event wakes it
    until(path.exists)
    daemon.hears("READY=1", times=3)
    trainer(home.out / "global_step_40", 40, path)
    until(lambda: committed() == [20, 40])
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


def test_rubbish_and_floods_do_not_disturb_a_real_daemon(make_home, start, committed):
    home = make_home()
    daemon = start(home)
    daemon.hears("READY=1")
    path = home.state / "control.sock"
    for data in (b"", b"\0" * 20_000, os.urandom(500), b"[" * 9000, json.dumps({**SAVED, "saved": 999}).encode()):
        say(path, data)
    assert any(refused(path, SAVED) for _ in range(2000))
    verl_step(home.out, 20)
    until(lambda: committed() == [20])
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log
