"""`ckptsync run` as systemd sees it: a process with signals, a log and a socket to talk to."""

from __future__ import annotations

import os
import signal

import pytest
from waiting import until

from ckptsync.testing.checkpoints import verl_step


def test_systemd_is_told_of_the_start_of_life_and_of_the_end(make_home, start, committed):
    home = make_home()
    verl_step(home.out, 20)
    daemon = start(home, environ={"WATCHDOG_USEC": "10000000"})
    daemon.hears("READY=1")
    daemon.says("step 20 committed")
    assert home.latest == "global_step_20"
    daemon.hears("WATCHDOG=1", times=2)
    assert daemon.stop() == 0
    daemon.hears("STOPPING=1")
    assert committed() == [20]
    assert daemon.told.index("READY=1") < daemon.told.index("STOPPING=1")
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("yields", [True, False])
def test_the_daemon_gives_way_to_the_trainer_if_it_is_to(make_home, start, tmp_path, committed, yields):
    setting = f"yield_to_trainer = {str(yields).lower()}"
    home = make_home(f'[upload]\n{setting}\nstore = "file://{tmp_path}/store"\n')
    verl_step(home.out, 20)
    daemon = start(home)
    daemon.hears("READY=1")
    pid = daemon.popen.pid
    way = os.sched_getscheduler(pid) == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert way is yields
    until(lambda: committed() == [20])
    assert daemon.stop() == 0


def test_sigterm_pushes_the_newest_verified_step(make_home, start, tmp_path, committed):
    home = make_home(f'[upload]\nstore = "file://{tmp_path}/store"\nevery_steps = 1000\n')
    verl_step(home.out, 20)
    daemon = start(home)
    daemon.says("latest -> global_step_20")
    assert committed() == []
    assert daemon.stop() == 0
    assert committed() == [20]


def test_sigterm_during_verification_leaves_no_half_truth(make_home, start, committed):
    """Whatever it comes down to: `latest` is absent or right, and the next start completes."""
    home = make_home()
    verl_step(home.out, 20, n=8 << 20, kinds=("model",))
    daemon = start(home)
    linked = home.out.parent / ".out.ckptsync" / "linked"  # a quick machine may be through before anybody looks
    until(lambda: list(linked.glob("*")) or home.latest is not None or daemon.popen.poll() is not None)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log
    assert home.latest is None or "step 20 verified" in daemon.log
    again = start(home)
    again.hears("READY=1")  # before that it has no handlers yet
    until(lambda: committed() == [20])  # by the second, unless the first was through in time
    assert again.stop() == 0
    assert committed() == [20]


def test_sigterm_during_a_slow_upload_ends_in_time_and_the_next_start_goes_on(make_home, start, tmp_path, committed):
    """The upload would take half an hour; stop_timeout is 1 s. Chunks that are in the store are not sent again."""
    table = '[upload]\nstore = "file://{}/store"\nworkers = 1\n{}\n[daemon]\nstop_timeout = "1s"\n'
    home = make_home(table.format(tmp_path, 'bandwidth = "1kB/s"'))
    verl_step(home.out, 20, n=400_000)
    chunks = tmp_path / "store" / "run" / "chunks"
    daemon = start(home)
    until(lambda: list(chunks.rglob("*")) or daemon.popen.poll() is not None)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log
    assert committed() == []
    assert home.latest == "global_step_20"

    sent = {path: path.stat().st_ino for path in chunks.rglob("*") if path.is_file()}
    home.configure(table.format(tmp_path, ""))
    again = start(home)
    again.says("step 20 committed")
    assert again.stop() == 0
    assert committed() == [20]
    assert all(path.stat().st_ino == inode for path, inode in sent.items())


def test_sighup_reads_the_configuration_again(make_home, start, tmp_path, committed):
    table = '[upload]\nstore = "file://{}/store"\nevery_steps = {}\n'
    home = make_home(table.format(tmp_path, 1000))
    verl_step(home.out, 20)
    daemon = start(home)
    daemon.hears("READY=1")
    daemon.says("latest -> global_step_20")

    home.configure(table.format(tmp_path, '"often"'))
    daemon.send(signal.SIGHUP)
    daemon.says("the configuration stays as it was")
    daemon.hears("READY=1", times=2)
    complaints = [line for line in daemon.log.splitlines() if "stays as it was" in line]
    assert len(complaints) == 1
    assert "every_steps" in complaints[0]
    assert committed() == []

    home.configure(table.format(tmp_path, 20))
    daemon.send(signal.SIGHUP)
    daemon.says("configuration read again")
    daemon.says("step 20 committed")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


def test_a_reload_while_output_dir_is_away_does_not_end_the_daemon(make_home, start):
    home = make_home()
    verl_step(home.out, 20)
    daemon = start(home)
    daemon.says("step 20 committed")
    away = home.out.rename(home.out.with_name("away"))
    until(lambda: home.status["problems"])
    daemon.send(signal.SIGHUP)
    daemon.says("configuration read again")
    daemon.says(f"waiting for output_dir: {home.out}: it does not exist yet")
    away.rename(home.out)
    verl_step(home.out, 40)
    daemon.says("step 40 committed")
    assert home.latest == "global_step_40"
    assert daemon.stop() == 0


def test_a_second_daemon_for_the_run_is_refused(make_home, start):
    home = make_home()
    first = start(home)
    first.hears("READY=1")
    second = start(home)
    assert second.popen.wait(60) == 7
    (line,) = second.log.splitlines()
    assert "a daemon runs already for this run on this node" in line
    assert f"process {first.popen.pid}" in line
    assert "systemctl stop" in line
    assert first.stop() == 0


def test_latest_moves_while_the_store_is_down_and_uploads_go_on_when_it_is_back(
    make_home, start, s3_server, s3_environ, tmp_path
):
    home = make_home(f'[upload]\nstore = "{s3_server.url(tmp_path.name)}"\n')
    verl_step(home.out, 20)
    s3_server.stop()
    try:
        daemon = start(home)
        daemon.says("latest -> global_step_20")
        assert home.latest == "global_step_20"
        assert "committed" not in daemon.log
    finally:
        s3_server.start()
    daemon.says("step 20 committed")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize(("write", "arguments"), [("missing", ["--once"]), ("a file", []), ("a file", ["--once"])])
def test_an_unusable_output_dir_at_the_start_is_one_line(make_home, start, write, arguments):
    home = make_home()
    home.out.rmdir()
    if write == "a file":
        home.out.write_text("")
    daemon = start(home, *arguments)
    assert daemon.popen.wait(60) == 3
    (line,) = daemon.log.splitlines()
    assert "cannot use output_dir" in line
    assert str(home.out) in line
    assert not home.state.exists()


def test_where_changes_wake_nobody_it_is_said_once_and_steps_are_found_by_scanning(make_home, start, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    code = "from ckptsync.disk import watch\nwatch.file_system_type = lambda _: 'nfs4'\n"
    (site / "sitecustomize.py").write_text(code)
    home = make_home()
    daemon = start(home, environ={"PYTHONPATH": str(site)})
    daemon.hears("READY=1")
    verl_step(home.out, 20)
    daemon.says("step 20 committed")
    assert daemon.stop() == 0
    assert daemon.log.count(f"{home.out} is on nfs4, which reports no changes") == 1


def test_once_settles_verifies_promotes_uploads_and_leaves(make_home, start, committed):
    home = make_home()
    verl_step(home.out, 20)
    daemon = start(home, "--once")
    assert daemon.popen.wait(60) == 0
    assert (home.latest, committed()) == ("global_step_20", [20])


def test_an_output_dir_that_comes_late_is_waited_for(make_home, start, committed):
    """The trainer has not made it yet, or a mount comes later: systemd is told that the daemon is up and alive."""
    home = make_home()
    home.out.rmdir()
    daemon = start(home, environ={"WATCHDOG_USEC": "10000000"})
    daemon.hears("READY=1")
    daemon.hears("WATCHDOG=1")
    line = f"waiting for output_dir: {home.out}: it does not exist yet (or correct [run] output_dir)"
    until(lambda: home.status["problems"] == [line])
    seen = home.status["last_pass_s"]
    until(lambda: home.status["last_pass_s"] > seen)  # it looks again and again
    assert home.status["problems"] == [line]
    verl_step(home.out, 20)
    daemon.says("step 20 committed")
    assert daemon.stop() == 0
    assert daemon.log.count("waiting for output_dir") == 1
    assert (home.latest, committed()) == ("global_step_20", [20])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_waits_for_output_dir_ends_when_told(make_home, start, number):
    home = make_home()
    home.out.rmdir()
    daemon = start(home)
    daemon.says("waiting for output_dir")
    daemon.send(number)
    assert daemon.popen.wait(60) == 0
    assert "Traceback" not in daemon.log


def test_a_wrong_output_dir_is_corrected_by_a_reload(make_home, start):
    home = make_home()
    text = home.config.read_text()
    home.config.write_text(text.replace(str(home.out), f"{home.out}-mistyped"))
    daemon = start(home)
    daemon.says("waiting for output_dir")
    home.config.write_text(text)
    daemon.send(signal.SIGHUP)
    verl_step(home.out, 20)
    daemon.says("step 20 committed")
    assert daemon.stop() == 0


def test_what_comes_late_and_cannot_be_used_ends_the_daemon_as_it_would_have_at_once(make_home, start):
    home = make_home()
    home.out.rmdir()
    daemon = start(home)
    daemon.says("waiting for output_dir")
    home.out.write_text("")
    assert daemon.popen.wait(60) == 3
    assert "not a directory" in daemon.log.splitlines()[-1]


def test_a_state_directory_that_is_deleted_makes_the_daemon_begin_again(make_home, start, committed):
    """Its lock went with it: a second daemon could run beside it otherwise."""
    home = make_home()
    verl_step(home.out, 20)
    daemon = start(home)
    daemon.says("step 20 committed")
    node_id = (home.state / "node_id").read_text()
    home.state.rename(home.state.with_name("gone"))  # at once, while the daemon may be writing there
    daemon.says("the state directory was deleted: beginning again")
    daemon.hears("READY=1", times=2)
    verl_step(home.out, 40)
    daemon.says("step 40 committed")
    assert (home.state / "node_id").read_text() != node_id
    second = start(home)
    assert second.popen.wait(60) == 7
    assert daemon.stop() == 0
    assert daemon.log.count("beginning again") == 1
    assert "Traceback" not in daemon.log
    assert committed() == [20, 40]


def test_a_daemon_that_has_lost_its_lock_to_another_ends(make_home, start):
    home = make_home()
    daemon = start(home)
    daemon.hears("READY=1")
    held = home.state.with_name("held")
    daemon.send(signal.SIGSTOP)
    home.state.rename(held)
    second = start(home)
    second.hears("READY=1")
    daemon.send(signal.SIGCONT)
    assert daemon.popen.wait(60) == 7
    assert "a daemon runs already" in daemon.log.splitlines()[-1]
    assert second.stop() == 0
