"""The command behind its guard: each signal once, however it was sent; nothing is left when somebody is killed."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import passing_on
import pytest
from waiting import PATIENCE_S, alive, until

from ckptsync.resume.running.guard import PASSED, descendants

RUNNER = [sys.executable, passing_on.__file__]
TRAINER = """
import os, signal, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in map(int, sys.argv[2].split(",")):
    signal.signal(number, lambda number, frame: os.write(log, f"{number}\\n".encode()))
os.write(log, f"pid {os.getpid()}\\n".encode())
while True:
    signal.pause()
"""
TREE = """
import os, sys, time
for step in range(3):  # a child; one in a session of its own; one that is a daemon
    if os.fork() == 0:
        if step:
            os.setsid()
        if step == 2 and os.fork():
            os._exit(0)
        with open(sys.argv[1], "a") as log:
            log.write(f"{os.getpid()}\\n")
        if step == 0 and len(sys.argv) > 2:
            sys.exit(0)
        time.sleep(600)
time.sleep(600)
"""


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Run:
    """A started runner, with what its trainer has logged."""

    def __init__(self, log, *command, rest="leave", **options):
        self.log = log
        self.popen = subprocess.Popen([*RUNNER, rest, *map(str, command)], **options)

    def lines(self):
        return self.log.read_text().split("\n")[:-1] if self.log.exists() else []

    @property
    def pid(self):
        """Of the trainer."""
        return int(until(self.lines)[0].removeprefix("pid "))

    @property
    def guard(self):
        return until(lambda: descendants(self.popen.pid))[0]

    def counts(self):
        return Counter(int(line) for line in self.lines()[1:])

    def end(self):
        """Kill whatever is left of it."""
        for pid in (self.popen.pid, *descendants(self.popen.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()


@pytest.fixture
def start(tmp_path):
    """start(command...): under the runner; killed at the end."""
    runs = []

    def go(*command, **options):
        runs.append(Run(tmp_path / f"log{len(runs)}", *command, **options))
        return runs[-1]

    yield go
    for run in runs:
        run.end()


@pytest.fixture
def trainer(start, tmp_path):
    """A trainer that logs these signals."""

    def go(numbers, **options):
        listed = ",".join(str(int(number)) for number in numbers)
        return start(sys.executable, "-c", TRAINER, tmp_path / "log0", listed, **options)

    return go


# -- signals


def test_every_signal_that_can_be_passed_on_comes_once(trainer):
    run = trainer(PASSED)
    assert run.pid != run.popen.pid
    for number in sorted(PASSED - {signal.SIGCONT}):
        os.kill(run.popen.pid, number)
    until(lambda: run.counts().keys() == PASSED - {signal.SIGCONT}, "every signal")
    os.kill(run.popen.pid, signal.SIGCONT)  # the kernel forgets it when SIGTSTP comes before it was taken
    until(lambda: run.counts()[signal.SIGCONT])
    os.kill(run.popen.pid, signal.SIGUSR1)  # whatever was on its way before it has come when this one has
    until(lambda: run.counts()[signal.SIGUSR1] == 2)
    assert run.counts() == {**dict.fromkeys(map(int, PASSED), 1), signal.SIGUSR1: 2}


def test_a_signal_for_the_whole_group_comes_once(trainer):
    run = trainer([signal.SIGTERM, signal.SIGUSR1], start_new_session=True)
    assert run.pid
    os.killpg(run.popen.pid, signal.SIGTERM)
    until(lambda: run.counts()[signal.SIGTERM])
    os.kill(run.popen.pid, signal.SIGUSR1)
    until(lambda: run.counts()[signal.SIGUSR1])
    assert run.counts() == {signal.SIGTERM: 1, signal.SIGUSR1: 1}


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_signal_for_each_process_of_the_job_comes_once(trainer, turn):
    """As slurmstepd sends them, process by process."""
    run = trainer([signal.SIGTERM, signal.SIGUSR1])
    pids = [run.popen.pid, run.guard, run.pid]
    for pid in (*pids[turn:], *pids[:turn]):
        os.kill(pid, signal.SIGTERM)
    until(lambda: run.counts()[signal.SIGTERM])
    os.kill(run.popen.pid, signal.SIGUSR1)
    until(lambda: run.counts()[signal.SIGUSR1])
    assert run.counts() == {signal.SIGTERM: 1, signal.SIGUSR1: 1}


def test_signals_that_were_ignored_stay_ignored(start, tmp_path):
    show = "import signal,sys; open(sys.argv[1], 'w').write(str([signal.getsignal(n) for n in (1, 2, 10, 15)]) + '\\n')"
    nohup = ["sh", "-c", 'trap "" HUP USR1; exec "$@"', "sh"]
    run = start("true")
    command = [*nohup, *RUNNER, "leave", sys.executable, "-c", show, str(tmp_path / "shown")]
    assert subprocess.run(command, check=False).returncode == 0
    assert run.popen.wait() == 0
    shown = (tmp_path / "shown").read_text()
    assert [word.count("SIG_IGN") for word in shown.split(", ")] == [1, 0, 1, 0]


def test_a_command_that_is_stopped_stops_us_and_goes_on_with_us(start, tmp_path):
    body = "import os, signal, sys; os.kill(os.getpid(), signal.SIGSTOP); sys.exit(7)"
    run = start(sys.executable, "-c", body)
    assert os.WIFSTOPPED(os.waitpid(run.popen.pid, os.WUNTRACED)[1])
    os.kill(run.popen.pid, signal.SIGCONT)
    assert run.popen.wait(PATIENCE_S) == 7


def test_a_command_that_somebody_else_lets_go_on_takes_us_with_it(trainer):
    run = trainer([signal.SIGUSR1])
    os.kill(run.pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(run.popen.pid, os.WUNTRACED)[1])
    os.kill(run.pid, signal.SIGCONT)
    until(lambda: state(run.popen.pid) != "T")
    os.kill(run.popen.pid, signal.SIGUSR1)
    until(lambda: run.counts()[signal.SIGUSR1])


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
def test_a_key_on_the_terminal_comes_once(tmp_path, key, number):
    pid, terminal = pty.fork()
    log = tmp_path / "log"
    listed = f"{int(number)},{int(signal.SIGUSR1)}"
    if pid == 0:
        os.execv(sys.executable, [*RUNNER, "leave", sys.executable, "-c", TRAINER, str(log), listed])
    try:
        until(lambda: log.exists() and "pid" in log.read_text())
        os.write(terminal, key)
        until(lambda: f"\n{int(number)}\n" in log.read_text())
        os.kill(pid, signal.SIGUSR1)
        until(lambda: f"\n{int(signal.SIGUSR1)}\n" in log.read_text())
        assert log.read_text().split("\n")[1:-1] == listed.split(",")
    finally:
        for each in (*descendants(pid), pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


# -- what else is passed through


@pytest.mark.parametrize("code", [0, 1, 5, 9, 143, 255])
def test_the_exit_code_is_the_commands(start, code):
    assert start("sh", "-c", f"exit {code}").popen.wait() == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR2])
def test_the_signal_that_killed_the_command_is_known(start, number):
    assert start("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$").popen.wait() == 128 + number


@pytest.mark.parametrize(
    ("command", "code"),
    [("/nonexistent/x", 127), ("no-such-program-here", 127), ("/etc/passwd", 126), ("/tmp", 126), ("", 127)],
)
def test_what_cannot_be_started(start, command, code):
    assert start(command).popen.wait() == code


def test_a_script_without_a_first_line_is_the_shells(start, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text('exit "$1"\n')
    script.chmod(0o755)
    assert start(script, "6").popen.wait() == 6


def test_stdin_goes_to_the_command_byte_by_byte(tmp_path):
    data = os.urandom(300_000)
    found = subprocess.run([*RUNNER, "leave", "cat"], input=data, capture_output=True, check=True)
    assert found.stdout == data
    assert found.stderr == b""


SHOW = """
import json, os, signal, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
json.dump([
    open("/proc/self/environ").read(), sorted(set(os.listdir("/proc/self/fd")) - {"3", "4"}), os.getcwd(), sys.argv[1:],
    status["SigBlk"], status["SigIgn"], os.getpgrp() == os.getpgid(0), os.read(9, 100).decode(),
], sys.stdout)
"""


def test_environment_descriptors_masks_and_arguments_are_as_without_us(tmp_path):
    (tmp_path / "nine").write_text("inherited")
    command = [sys.executable, "-c", SHOW, "", "a b", "{resume}", "\udcff"]
    env = {"PATH": os.environ["PATH"], "ODD": "a=b\nc", "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = [
        subprocess.run(
            ["sh", "-c", f'exec 9<{tmp_path}/nine "$@"', "sh", *before, *command],
            env=env,
            capture_output=True,
            check=True,
        ).stdout
        for before in ([], [*RUNNER, "leave"])
    ]
    assert shown[0] == shown[1]
    assert b"inherited" in shown[0]


# -- nothing is left


@pytest.mark.parametrize("victim", ["exec", "guard"])
def test_who_is_killed_takes_everything_along(start, tmp_path, victim):
    run = start(sys.executable, "-c", TREE, tmp_path / "log0")
    until(lambda: len(run.lines()) == 3, "the tree")
    everybody = [*map(int, run.lines()), *descendants(run.popen.pid)]
    assert all(map(alive, everybody))
    os.kill(run.popen.pid if victim == "exec" else run.guard, signal.SIGKILL)
    assert run.popen.wait(PATIENCE_S) == (-9 if victim == "exec" else 137)
    until(lambda: not any(map(alive, everybody)), "the end of all")


def test_the_command_dies_even_if_exec_and_guard_are_killed_at_once(trainer):
    run = trainer([signal.SIGUSR1])
    pid, guard = run.pid, run.guard
    os.kill(run.popen.pid, signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    os.kill(run.popen.pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the end of the command")


def test_what_the_command_leaves_running_stays_unless_it_is_to_be_killed(start, tmp_path):
    for number, (rest, stays) in enumerate([("leave", True), ("kill", False)]):
        run = start("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/log{number}; exit 4", rest=rest)
        assert run.popen.wait(PATIENCE_S) == 4
        assert alive(run.pid) is stays
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGKILL)


def test_what_a_shell_leaves_when_a_signal_kills_it_can_be_given_the_signal(start, tmp_path):
    """A shell that waits for its command dies of SIGTERM without passing it on."""
    inner = [sys.executable, "-c", TRAINER.replace("while True:", "if True:"), str(tmp_path / "log0"), "15"]
    run = start("sh", "-c", '"$@"; true', "sh", *inner, rest="pass")
    assert run.pid
    os.kill(run.popen.pid, signal.SIGTERM)
    assert run.popen.wait(PATIENCE_S) == 143
    assert run.lines()[1:] == ["15"]


def test_ids_that_are_given_anew_while_processes_are_listed_make_no_circle():
    seen = {2: 1, 3: 2, 4: 3, 2000: 4, 1: 4, 5: 9}
    assert descendants(1, among=seen) == [2, 3, 4, 2000]
    assert descendants(1, without=[3], among=seen) == [2]
    assert descendants(2, among={2: 3, 3: 2}) == [3]
