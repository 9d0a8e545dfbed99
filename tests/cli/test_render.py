from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import threading

import pytest

from ckptsync.cli.render import (
    human_age,
    human_duration,
    human_size,
    is_terminal,
    print_json,
    printable,
    progress,
    table,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1288490189, "1.2 GiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**6, "5120.0 PiB"),
    ],
)
def test_sizes_for_people(size, text):
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0.4, "now"),
        (1, "1s ago"),
        (59.9, "59s ago"),
        (185, "3m ago"),
        (7200, "2h ago"),
        (200000, "2d ago"),
    ],
)
def test_ages_for_people(seconds, text):
    assert human_age(seconds) == text


def test_durations_for_people():
    assert [human_duration(s) for s in (-1, 0, 59, 60, 3600, 86400)] == ["0s", "0s", "59s", "1m", "1h", "1d"]


def test_what_is_printed_is_harmless_to_a_terminal():
    assert printable("\x1b]0;x\x07 \n é\udcff") == "\\x1b]0;x\\x07 \\n é\\udcff"


def test_a_table_elsewhere_is_aligned_lines(capsys):
    table(["step", "state"], [["120", "verified"], ["1000", "broken \x1b"]])
    assert capsys.readouterr().out == "STEP  STATE\n120   verified\n1000  broken \\x1b\n"


def test_json_is_ascii(capsys):
    print_json({"path": "\udcff", "é": 1})
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert json.loads(shown) == {"path": "\udcff", "é": 1}


def test_progress_elsewhere_is_a_line_every_ten_seconds(capsys):
    now = [0.0]
    with progress(4 * 1024**2, "pull step 120", clock=lambda: now[0]) as advance:
        for _ in range(4):
            now[0] += 6.0
            advance(1024**2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "pull step 120: 2.0 MiB of 4.0 MiB (50 %), 170.7 KiB/s",
        "pull step 120: 4.0 MiB of 4.0 MiB (100 %), 170.7 KiB/s",
    ]


def test_progress_counts_from_many_threads_and_without_a_total(capsys):
    now = [0.0]
    with progress(None, "push", clock=lambda: now[0]) as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        now[0] = 10.0
        advance(0)
    assert capsys.readouterr().err == "push: 7.8 KiB, 800 B/s\n"


def test_a_pipe_is_no_terminal():
    assert not is_terminal(io.StringIO())


def _on_a_terminal(code):
    """The bytes that `code` writes to a pseudo terminal."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, stdin=slave, env=env)
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux: EIO once the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert child.wait() == 0
    return shown.decode()


def test_a_terminal_gets_a_rich_table_that_takes_names_literally():
    shown = _on_a_terminal("from ckptsync.cli.render import table\ntable(['step'], [['[bold]x[/bold]']])")
    assert "[bold]x[/bold]" in shown
    assert "─" in shown


def test_a_terminal_gets_a_bar():
    shown = _on_a_terminal(
        "from ckptsync.cli.render import progress\nwith progress(1024, 'pull [x]') as go: go(512); go(512)"
    )
    assert "pull [x]" in shown
    assert "1.0/1.0 KiB" in shown
