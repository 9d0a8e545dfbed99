from __future__ import annotations

import os

import pytest

from ckptsync.errors import CkptsyncError
from ckptsync.resume.confirmation import tail as module
from ckptsync.resume.confirmation.tail import Tail


def add(path, text, mode="a"):
    with path.open(mode, newline="") as file:
        file.write(text)


def test_lines_are_read_once_and_whole(tmp_path):
    log, tail = tmp_path / "log", Tail(str(tmp_path / "log"))
    assert tail.read() == [], "it may still come"
    add(log, "one\ntwo\nthr")
    assert tail.read() == ["one\n", "two\n"]
    assert tail.read() == []
    add(log, "ee\n")
    assert tail.read() == ["three\n"]
    add(log, "four")
    assert tail.read() == []
    assert tail.rest() == ["four"]
    assert tail.rest() == []


def test_a_log_that_is_replaced_or_cut_off_is_read_from_its_beginning(tmp_path):
    log, tail = tmp_path / "log", Tail(str(tmp_path / "log"))
    add(log, "one\ntwo\nhalf")
    tail.read()
    add(log, "new\n", mode="w")
    assert tail.read() == ["new\n"]
    log.rename(tmp_path / "log.1")
    add(log, "newer, and longer than before\n")
    assert tail.read() == ["newer, and longer than before\n"]
    log.unlink()
    assert tail.read() == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_where_a_read_ends_does_not_matter(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    log = tmp_path / "log"
    log.write_bytes("\u00e4\u00f6\n\n\nx\rlonger\nend".encode())
    tail, found = Tail(str(log)), []
    for _ in range(40):
        found += tail.read()
    assert found == ["\u00e4\u00f6\n", "\n", "\n", "x\rlonger\n"]
    assert tail.rest() == ["end"]


def test_of_a_huge_log_and_of_a_huge_line_the_bounded_part_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOG_BYTES_MAX", 20)
    monkeypatch.setattr(module, "_LINE_BYTES_MAX", 8)
    log = tmp_path / "log"
    log.write_text("x" * 100 + "\nsecond\n0123456789\n")
    tail = Tail(str(log))
    assert tail.read() == ["second\n", "01234567\n"]
    add(log, "y" * 1000)
    assert tail.read() == []
    add(log, "y" * 1000 + "\nz\n")
    assert tail.read() == ["yyyyyyyy\n", "z\n"]


def test_what_is_no_log_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(CkptsyncError, match=r"cannot read the train log: .*: not a file"):
            Tail(str(path)).read()
