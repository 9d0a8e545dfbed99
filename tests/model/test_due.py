from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.model.due import Cadence, SavePoint, due, idle_after_s

NS = 10**9
START = 1_000_000 * NS
EVERY_S = 60  # between saves, unless a test says otherwise


def _saves(*steps, spacing_s=EVERY_S):
    return [SavePoint(step, START + index * spacing_s * NS) for index, step in enumerate(steps)]


def _due(saves, cadence, *, now=None, stopping=False):
    """The steps that are due, in order; now = just after the newest save."""
    now_ns = saves[-1].end_ns + 1 if now is None and saves else (now or 0)
    return [saves[index].step for index in due(saves, cadence, now_ns, stopping=stopping)]


HUNDRED = Cadence(every_steps=100)


def test_the_first_save_past_each_multiple_is_due():
    """The design's example: saved every 30 steps, uploaded every 100."""
    saves = _saves(*range(30, 331, 30))
    assert _due(saves, HUNDRED) == [120, 210, 300]
    assert _due(saves, Cadence(every_steps=30)) == list(range(30, 331, 30))


def test_every_steps_1_is_each_save_even_that_of_step_0():
    assert _due(_saves(0, 1, 2, 3), Cadence()) == [0, 1, 2, 3]
    assert _due(_saves(0, 1, 2, 3), Cadence(every_steps=2)) == [2]


def test_a_save_that_jumps_over_multiples_is_due_once():
    assert _due(_saves(350, 380, 410), HUNDRED) == [350, 410]


@pytest.mark.parametrize("minutes", [10, 30, 45])
def test_by_time_the_first_save_of_each_stretch_is_due(minutes):
    saves = _saves(*range(20), spacing_s=minutes * 60)
    stretches = [save.end_ns // (1800 * NS) for save in saves]
    first = [saves[stretches.index(stretch)].step for stretch in sorted(set(stretches))]
    assert _due(saves, Cadence(every_s=1800)) == first
    assert len(first) >= 20 * min(minutes, 30) // 30


def test_by_time_nodes_that_disagree_once_agree_again():
    """n1's files are 20 s older than n0's, and save 4 falls between two stretches."""
    cadence = Cadence(every_s=1800)
    n0 = _saves(*range(24), spacing_s=610)
    shift_ns = -n0[4].end_ns % (1800 * NS) + 10 * NS
    n0 = [replace(save, end_ns=save.end_ns + shift_ns) for save in n0]
    n1 = [replace(save, end_ns=save.end_ns - 20 * NS) for save in n0]
    assert set(_due(n0, cadence)) ^ set(_due(n1, cadence)) == {4, 5}


def test_by_time_a_later_save_that_was_found_due_stands_for_its_stretch():
    saves = _saves(1, 2, 3)
    assert len({save.end_ns // (1800 * NS) for save in saves}) == 1
    saves[2] = replace(saves[2], due=True)
    assert _due(saves, Cadence(every_s=1800)) == [3]


def test_since_leaves_older_steps_out_whatever_else_speaks_for_them():
    saves = _saves(100, 200, 300)
    saves[0] = replace(saves[0], due=True)
    assert _due(saves, replace(HUNDRED, since=200)) == [200, 300]
    assert _due(saves[:1], replace(HUNDRED, since=200), now=START + 10**6 * NS, stopping=True) == []


def test_the_newest_is_due_when_no_newer_one_comes():
    saves = _saves(30, 60, 90, spacing_s=3600)
    last = saves[-1].end_ns
    assert idle_after_s(saves, HUNDRED) == 3 * 3600
    assert _due(saves, HUNDRED, now=last + 3 * 3600 * NS) == []
    assert _due(saves, HUNDRED, now=last + 3 * 3600 * NS + 1) == [90]


def test_how_long_idle_is():
    assert idle_after_s(_saves(30, 60), HUNDRED) == 600  # never less than ten minutes
    assert idle_after_s([], HUNDRED) == 600
    assert idle_after_s(_saves(30, 60, spacing_s=3600), replace(HUNDRED, idle_s=5)) == 5
    downtime = [*_saves(30, 60, 90, spacing_s=600), SavePoint(120, START + 10**6 * NS)]
    assert idle_after_s(downtime, HUNDRED) == 1800  # one long gap is no spacing


def test_the_newest_is_due_when_the_daemon_stops():
    assert _due(_saves(30, 60), HUNDRED) == []
    assert _due(_saves(30, 60), HUNDRED, stopping=True) == [60]
    assert due([], HUNDRED, 0, stopping=True) == {}


def test_a_pre_emption_save_is_due_and_the_regular_one_after_it_is_not():
    assert _due(_saves(30, 60, 90, 95), Cadence(every_steps=1000)) == [95]
    assert _due(_saves(30, 60, 90, 95, 120, 150), Cadence(every_steps=1000)) == [95]
    assert _due(_saves(30, 60, 90, 120), Cadence(every_steps=1000)) == []
    # a trainer that counts on from where it resumed
    assert _due(_saves(30, 60, 90, 95, 125, 155), Cadence(every_steps=1000)) == [95]
    # there is no usual spacing yet
    assert _due(_saves(30, 60, 65), Cadence(every_steps=1000)) == []
    assert _due(_saves(10, 40, 50, 90, 95), Cadence(every_steps=1000)) == []


def test_a_roll_back_begins_a_new_line_of_numbers():
    """120 was uploaded, then the run went back to 80; the bytes under 120 and 130 are others now."""
    old = _saves(80, 100, 120)
    assert _due(old, HUNDRED) == [100]
    again = _saves(80, 100, 120, 90, 110, 130)
    assert _due(again, HUNDRED) == [100, 110]
    assert _due(_saves(80, 100, 120, 100, 120), HUNDRED) == [100, 100]
    assert _due(_saves(100, 200, 210, 130, 160, 220), HUNDRED) == [100, 200, 220]  # 100 still stands for 130


def test_what_was_found_due_stays_due_and_counts():
    saves = _saves(30, 60, 90, 120, 150)
    saves[2] = replace(saves[2], due=True)  # nobody came for long then, or the daemon stopped
    assert due(saves, HUNDRED, START)[2] == "found due before"
    assert _due(saves, HUNDRED) == [90, 120]
    saves[3] = replace(saves[3], step=199)
    saves[2] = replace(saves[2], step=130)
    assert _due(saves, HUNDRED) == [130]


def test_after_a_restart_a_pruned_history_gives_the_same_answers():
    """The trainer deletes all but its newest steps; the newest that was due is remembered."""
    saves = [replace(save, due=save.step in (120, 210)) for save in _saves(*range(30, 271, 30))]
    assert _due(saves, HUNDRED) == [120, 210]
    assert _due([save for save in saves if save.step in (210, 240, 270)], HUNDRED) == [210]
    assert _due(saves[-2:], HUNDRED) == [240]  # the control: without 210, its successor stands in for it


def test_steps_that_were_there_first_are_verified_newest_first_and_not_all_uploaded():
    steps = range(30, 331, 30)
    known: list[SavePoint] = []
    for save in reversed(_saves(*steps)):
        known = [save, *known]
        found = due(known, HUNDRED, START)
        known = [replace(point, due=point.due or index in found) for index, point in enumerate(known)]
    assert [save.step for save in known if save.due] == [180, 270, 330]
    assert len(_due(_saves(*steps), HUNDRED)) == 3


def test_a_later_save_of_another_line_does_not_stand_for_an_earlier_one():
    saves = _saves(110, 50, 150)
    saves[2] = replace(saves[2], due=True)
    assert _due(saves, HUNDRED) == [110, 150]
    assert _due([saves[0], saves[2]], HUNDRED) == [150]


STEPS = st.lists(st.integers(0, 60), max_size=25)
CADENCES = st.builds(
    Cadence,
    every_steps=st.integers(1, 15),
    every_s=st.sampled_from([0.0, 0.0, 90.0, 600.0]),
    idle_s=st.sampled_from([None, 30.0, 1e6]),
    since=st.sampled_from([0, 0, 20]),
)


@settings(max_examples=150)
@given(STEPS, CADENCES, st.integers(0, 10_000), st.integers(0, 10_000))
def test_what_is_due_stays_due_as_time_goes_by(steps, cadence, one, two):
    saves = _saves(*steps)
    earlier, later = sorted((one, two))
    assert due(saves, cadence, START + earlier * NS).items() <= due(saves, cadence, START + later * NS).items()
    assert due(saves, cadence, START).keys() <= due(saves, cadence, START, stopping=True).keys()


@settings(max_examples=150)
@given(STEPS, CADENCES)
def test_each_save_is_marked_at_most_once_as_saves_come_in(steps, cadence):
    """Marks persist; what one pass has marked, no later pass marks again, and none is taken back."""
    saves: list[SavePoint] = []
    marked: list[int] = []
    for save in _saves(*steps):
        saves.append(save)
        for _ in range(2):
            found = due(saves, cadence, save.end_ns)
            assert set(marked) <= found.keys()
            marked += [index for index in found if not saves[index].due]
            saves = [replace(point, due=index in found) for index, point in enumerate(saves)]
    assert len(marked) == len(set(marked))
    assert marked == sorted(marked)


@settings(max_examples=150)
@given(st.lists(st.integers(0, 2000), max_size=40, unique=True).map(sorted), st.integers(2, 400))
def test_the_number_of_due_steps_is_bounded_by_the_multiples_passed(steps, every):
    """On a line without roll-backs; saves off the usual grid are due for another reason."""
    saves = _saves(*steps)
    reasons = due(saves, Cadence(every_steps=every), START)
    regular = [saves[index].step for index, reason in reasons.items() if reason.startswith("every")]
    assert len(regular) <= (steps[-1] // every if steps else 0)
    passed = {step // every for step in steps} - {0}
    assert {saves[index].step // every for index in reasons} >= passed


def test_many_saves_are_judged_in_one_pass():
    """20,000 saves: a pass that looked at all earlier ones for each would take minutes."""
    saves = _saves(*range(20_000))
    assert len(due(saves, HUNDRED, START)) == 199
