"""Which saves lie on lines that were left: compared with a run that simply remembers what each save continues."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from ckptsync.model.lines import Turn, superseded


def left(times, turns):
    return [time for time in times if superseded(time, turns)]


def test_without_turns_nothing_is_left():
    assert not superseded(5, [])


def test_a_roll_back_leaves_what_came_after_the_save_it_went_back_to():
    back = Turn(decided_ns=200, saved_ns=80)
    assert left([40, 80, 120, 199, 201, 290], [back]) == [120, 199]


def test_a_resume_from_the_newest_save_leaves_nothing_that_was_committed():
    assert left([40, 80, 120, 240], [Turn(200, 120)]) == []


def test_a_forced_return_leaves_the_line_that_it_came_from():
    """Saves up to 120, back to 80, a save at 290 (of step 90), then back to 120 by force, which was left before."""
    turns = [Turn(200, 80), Turn(300, 120)]
    assert left([40, 80, 120, 290, 310], turns) == [290]


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=30))
def test_what_is_left_is_what_the_run_does_not_continue(moves):
    """None = save; a number = go back to that one of the saves, counted from the newest."""
    line: list[int] = []
    saves: list[tuple[int, list[int]]] = []
    turns = []
    for index, move in enumerate(moves):
        now = 10 * (index + 1)
        if move is None:
            line = [*line, now]
            saves.append((now, line))
        elif saves:
            saved, line = saves[-1 - move % len(saves)]
            turns.append(Turn(now, saved))
    gone = {saved for saved, _ in saves} - set(line)
    event(f"{min(len(gone), 5)} left")
    assert set(left([saved for saved, _ in saves], turns)) == gone
