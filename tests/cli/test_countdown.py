"""Waiting for other nodes, as people and journals see it."""

from __future__ import annotations

import sys

import pytest

from ckptsync.cli import countdown as module
from ckptsync.cli.countdown import countdown
from ckptsync.sync.agree import Wait


def test_a_journal_gets_a_line_for_what_is_new_and_one_each_half_minute(capsys):
    now = 100.0
    with countdown(clock=lambda: now) as shown:
        for _ in range(90):
            shown.tell(Wait("1 of 2 nodes are here, 1 absent", 600 - (now - 100)))
            now += 1
        shown.tell(Wait("step 20 is uploaded by n1", 599.9))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "waiting: 1 of 2 nodes are here, 1 absent (10:00 left)",
        "waiting: 1 of 2 nodes are here, 1 absent (9:30 left)",
        "waiting: 1 of 2 nodes are here, 1 absent (9:00 left)",
        "waiting: step 20 is uploaded by n1 (9:59 left)",
    ]


def test_between_the_lines_of_others_each_says_whose_it_is(capsys):
    with countdown(who="ckptsync: ") as shown:
        shown.tell(Wait("step 20 is uploaded by n1", 600))
    assert capsys.readouterr().err == "ckptsync: waiting: step 20 is uploaded by n1 (10:00 left)\n"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(module, "is_terminal", lambda stream: stream is sys.stderr)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_has_one_line_that_counts_and_is_gone_at_the_end(capsys):
    with countdown() as shown:
        shown.clear()
        shown.tell(Wait("a\x1b[31mb", 61))
        shown.tell(Wait("a", 59.5))
        shown.clear()
        sys.stderr.write("something else\n")
    assert capsys.readouterr().err == (
        "\r\033[Kwaiting: a\\x1b[31mb (1:01 left)\r\033[Kwaiting: a (0:59 left)\r\033[Ksomething else\n"
    )
