"""When a step is to blame for a crash, and how long a restart waits."""

from __future__ import annotations

import pytest

from ckptsync.actions.starts import NotAgain, Starts, pause_s


def test_pauses_grow_to_five_minutes():
    assert [pause_s(number) for number in (1, 2, 3, 7, 10**6)] == [5, 10, 20, 300, 300]


def test_a_step_is_given_up_after_two_starts_without_a_newer_save():
    starts = Starts(began_ns=100)
    assert not starts.crashed(40, 50)
    assert starts.crashed(40, 50)
    assert starts.avoid == (40,)


def test_a_newer_save_clears_a_step_and_lets_its_number_be_taken_again():
    starts = Starts(began_ns=100)
    assert not starts.crashed(40, 50)
    assert not starts.crashed(40, 150)
    assert not starts.crashed(40, 50)
    assert starts.crashed(40, 50)
    starts.began_ns = 200
    assert not starts.crashed(20, 250)
    assert starts.avoid == ()


def test_only_one_step_is_given_up():
    starts = Starts(began_ns=100)
    assert [starts.crashed(40, 0), starts.crashed(40, 0), starts.crashed(20, 0)] == [False, True, False]
    with pytest.raises(NotAgain, match="hardly the steps"):
        starts.crashed(20, 0)


def test_a_start_from_nothing_gives_up_nothing():
    starts = Starts()
    assert not any(starts.crashed(None, 0) for _ in range(5))
