from __future__ import annotations

from dataclasses import replace

import pytest

from ckptsync.model.settle import observe
from ckptsync.model.step import FileStat, Listing, Problem

STAT = FileStat(size=10, mtime_ns=5, mode=0o644, dev=1, inode=2, ctime_ns=7, nlink=1)


def _listing(**changes):
    return replace(Listing("step-1", "/x/step-1", {"a": STAT, "b": STAT}, {"l": "a"}, {"": STAT}), **changes)


@pytest.mark.parametrize("field", ["size", "mtime_ns", "dev", "inode", "ctime_ns"])
def test_a_file_is_taken_to_be_another_when_one_of_these_moves(field):
    assert STAT.unchanged_since(STAT)
    assert not replace(STAT, **{field: 99}).unchanged_since(STAT)


def test_a_new_link_to_a_file_moves_its_ctime_and_is_no_change():
    assert replace(STAT, ctime_ns=99, nlink=2).unchanged_since(STAT)
    assert not replace(STAT, ctime_ns=99, nlink=2, mtime_ns=6).unchanged_since(STAT)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"a": STAT}},
        {"files": {"a": STAT, "b": STAT, "c": STAT}},
        {"files": {"a": STAT, "b": replace(STAT, size=11)}},
        {"links": {"l": "b"}},
        {"links": {}},
    ],
)
def test_any_change_of_files_or_links_starts_the_quiet_time_again(changes):
    first = observe(None, _listing(), 100.0)
    assert (first.since, first.seconds(103.0)) == (100.0, 3.0)
    same = observe(first, _listing(), 105.0)
    assert same.since == 100.0
    changed = observe(same, _listing(**changes), 106.0)
    assert changed.since == 106.0
    assert observe(changed, _listing(**changes), 109.0).seconds(109.0) == 3.0


def test_what_does_not_say_that_somebody_writes_does_not_start_it_again():
    first = observe(None, _listing(), 1.0)
    touched = _listing(dirs={"": replace(STAT, mtime_ns=9)}, warnings=(Problem("x", "loop", "a loop"),))
    seen = observe(first, touched, 2.0)
    assert seen.since == 1.0
    assert seen.listing is touched  # later changes are compared with what was seen last
