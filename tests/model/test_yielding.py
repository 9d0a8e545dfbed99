"""An upload takes less while the trainer is held up, takes it back when it is not, and never stops altogether."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.model.yielding import Allowance, Stalls, parse_stalled_us

# recorded on Linux 6.18 (2 cores); before 5.13 the cpu file had no line "full"
CPU = """some avg10=97.76 avg60=96.91 avg300=74.96 total=446381838
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
IO = """some avg10=18.78 avg60=11.06 avg300=5.18 total=31316912
full avg10=0.00 avg60=0.00 avg300=0.44 total=7115402
"""
OLD_CPU = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"

shares = st.floats(0, 1)
stalls = st.builds(Stalls, shares, shares, shares)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CPU, 446381838),
        (IO, 31316912),
        (OLD_CPU, 0),
        ("", None),
        ("full avg10=0 total=5", None),
        ("some total=x", None),
    ],
)
def test_the_time_in_which_some_task_was_held_up_is_read(text, expected):
    assert parse_stalled_us(text) == expected


def test_shares_are_of_the_time_between_two_readings():
    assert Stalls(3.0, 2.0, 1.0).since(Stalls(1.0, 2.0, 0.5), 4.0) == Stalls(0.5, 0.0, 0.125)
    assert Stalls(0.0).since(Stalls(9.0), 1.0) == Stalls()  # a counter that began again


@given(most=st.integers(1, 64), seen=st.lists(stalls, max_size=40), idle=st.booleans())
def test_at_least_one_works_and_never_more_than_allowed(most, seen, idle):
    allowance = Allowance(most, idle)
    for each in seen:
        allowance.told(each)
        assert 1 <= allowance.workers <= most
        assert not allowance.resting or allowance.workers == 1


@given(most=st.integers(1, 64), seen=st.lists(stalls, max_size=20))
def test_all_is_taken_back_when_nobody_is_held_up(most, seen):
    allowance = Allowance(most)
    for each in seen:
        allowance.told(each)
    for _ in range(most + 1):
        allowance.told(Stalls())
    assert (allowance.workers, allowance.resting) == (most, False)


@pytest.mark.parametrize("busy", [Stalls(cpu=0.6), Stalls(io=0.5), Stalls(memory=0.15)])
def test_pressure_halves_until_one_is_left_which_then_rests(busy):
    allowance, seen = Allowance(8), []
    for _ in range(5):
        allowance.told(busy)
        seen.append((allowance.workers, allowance.resting))
    assert seen == [(4, False), (2, False), (1, False), (1, True), (1, True)]


def test_in_the_idle_class_a_busy_processor_is_no_sign():
    allowance = Allowance(8, idle=True)
    allowance.told(Stalls(cpu=1.0))
    assert allowance.workers == 8
    allowance.told(Stalls(memory=1.0))
    assert allowance.workers == 4


def test_between_calm_and_high_nothing_changes():
    allowance = Allowance(8, workers=4)
    allowance.told(Stalls(io=0.3))
    assert allowance.workers == 4
