"""Looking for the trainer below a command: real processes, look by look."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from waiting import until

from ckptsync.actions import sighting as module
from ckptsync.actions.sighting import Sighting
from ckptsync.resume.running.below import processes_below

WAIT = "import os; os.read(0, 1)"


@pytest.fixture
def below(tmp_path):
    """Runs a shell's text; TRAIN in it is a process that waits for a byte of stdin, or its end."""
    script = tmp_path / "train.py"
    script.write_text(WAIT)
    started = []

    def start(text):
        text = text.replace("TRAIN", shlex.join([sys.executable, str(script)]))
        started.append(subprocess.Popen(["bash", "-c", f"{text}\ntrue"], stdin=subprocess.PIPE))
        return started[-1]

    start.words = (sys.executable, str(script))
    yield start
    for process in started:
        process.communicate()


def sighting(process, *words):
    return Sighting(process.pid, words or ("bash", "run.sh"), "/out", "")


def test_what_was_typed_is_no_news_but_is_known_to_be_below(below):
    process = below("TRAIN trainer.nnodes=1")
    looking = sighting(process, *below.words, "trainer.nnodes=1")
    looks = []
    until(lambda: looks.append(looking.look()) or looking.direct, "the trainer")
    assert set(looks) == {None}


def test_what_a_script_gives_is_news_once_and_then_looked_after_seldom(below, monkeypatch):
    monkeypatch.setattr(module, "_BESIDE_S", 0.0)
    process = below("export MINE=yes; cd /; TRAIN trainer.nnodes=1")
    looking = sighting(process)
    often_s = looking.pause_s
    seen = until(looking.look, "the trainer")
    assert (seen.process.words, seen.process.cwd, seen.why) == ((*below.words, "trainer.nnodes=1"), "/", "")
    assert (seen.env["MINE"], looking.direct) == ("yes", True)
    assert looking.look() is None
    assert looking.pause_s > often_s


def test_the_same_trainer_started_again_is_no_news_and_another_one_makes_both_unknown(below):
    process = below("TRAIN trainer.nnodes=1; TRAIN trainer.nnodes=1; TRAIN trainer.nnodes=2 trainer.api_key=abc")
    looking = sighting(process)
    first = until(looking.look, "the first")
    looks = []
    for _ in range(2):
        process.stdin.write(b".")
        process.stdin.flush()
        until(lambda: first.process.pid not in processes_below(process.pid))
    until(lambda: looks.append(looking.look()) or looks[-1], "the other one")
    assert set(looks[:-1]) <= {None}
    assert looks[-1].why.endswith("they differ in trainer.api_key, trainer.nnodes")
    assert looking.look() is None


def test_without_the_interpreter_itself_nobody_knows_where_it_runs(below):
    """A program that only carries the trainer's words: a stand-in for `ray job submit`."""
    process = below(f"sh -c 'read line' {sys.executable} -m verl.trainer.main_ppo trainer.nnodes=1")
    looking = sighting(process)
    assert until(looking.look, "the words").process.words[0] == "sh"
    assert not looking.direct


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_what_another_user_runs_is_not_seen(below):
    process = below("TRAIN trainer.nnodes=1")
    until(lambda: any(each.words for each in processes_below(process.pid).values()), "the trainer")
    look = "from ckptsync.resume.running.below import processes_below as b; print({p.words for p in b(%d).values()})"
    code = f"import os; {look % process.pid}"
    asked = [sys.executable, "-c", f"import ckptsync.resume.running.below, os; os.setuid(65534); {code}"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "{()}\n"
