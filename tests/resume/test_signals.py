"""Signals before the command runs: they end what runs, cleanly if that goes soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ckptsync.resume.running import signals as module
from ckptsync.resume.running.signals import Signals, Stopped

HANGS = """
import signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from ckptsync.resume.running import signals
signals.LINGER_S = float(sys.argv[1])
with signals.Signals(), ThreadPoolExecutor() as pool:
    answer = pool.submit(threading.Event().wait)
    print("ready", flush=True)
    answer.result()
"""


def test_a_signal_is_raised_where_the_process_is_and_known_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        with pytest.raises(Stopped) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert (caught.value.number, signals.stopped) == (signal.SIGTERM, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


DECIDED = """
import os, signal, sys
from ckptsync.resume.running.signals import Signals
with Signals() as signals:
    signals.queue_them()
    signals.decide()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    os.kill(os.getpid(), number)
sys.exit(3)
"""


def test_once_the_end_is_decided_no_signal_changes_it():
    assert subprocess.run([sys.executable, "-c", DECIDED], check=False).returncode == 3


def test_while_a_command_runs_signals_only_queue_up():
    with Signals() as signals:
        signals.queue_them()
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGWINCH):
            os.kill(os.getpid(), number)
        assert signals.wait(60)
        assert sorted(signals.take()) == sorted([signal.SIGUSR1, signal.SIGTERM, signal.SIGWINCH])
        assert signals.stopped == signal.SIGTERM


def test_what_came_before_the_command_and_stops_nothing_is_not_for_it():
    with Signals() as signals:
        signals.queue_them()
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.raise_them()
        os.kill(os.getpid(), signal.SIGUSR2)
        signals.queue_them()
        assert signals.take() == []
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            signals.raise_them()


@pytest.mark.parametrize(("linger_s", "again", "code"), [(0.2, False, 143), (600, True, -15)])
def test_a_store_that_does_not_answer_does_not_keep_the_process(linger_s, again, code):
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, str(linger_s)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        if again:
            time.sleep(0.5)  # the first has been taken by then, or it is the one that is
            process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("though something had not ended" in said) is not again


def test_cleaning_up_in_time_is_not_cut_short(monkeypatch):
    monkeypatch.setattr(module, "LINGER_S", 0.2)
    with Signals() as signals:
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        signals.queue_them()
        time.sleep(0.4)  # it would have ended this process
