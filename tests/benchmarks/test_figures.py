"""Ratios, targets and the report: what turns rounds into claims."""

from __future__ import annotations

import pytest

from benchmarks.report import markdown, number, spelled
from benchmarks.results import Arm, Result, Table, Target, against, figure, load, store
from benchmarks.stats import Spread, ratios, spread


def table(**walls):
    return Table("push of 1 GB", [Arm(name, {"wall s": values}) for name, values in walls.items()])


def result(*targets, tables=()):
    return Result("push_first", "Push", "How.", 3, "2026-01-01 00:00", "full", list(tables), list(targets))


def test_a_ratio_pairs_the_rounds_and_does_not_divide_the_medians():
    ours, theirs = [1.0, 8.0, 3.0], [2.0, 4.0, 1.0]
    assert ratios(ours, theirs) == Spread(2.0, 0.5, 3.0)  # the medians would give 1.5


def test_rounds_that_do_not_pair_or_are_absent_are_no_ratio():
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="no round"):
        spread([])


@pytest.mark.parametrize(
    ("measured", "at_least", "met"),
    [(1.0, False, True), (1.01, False, False), (1.0, True, True), (0.99, True, False)],
)
def test_a_bound_itself_is_within_the_bound(measured, at_least, met):
    assert Target("speed", Spread(measured, 0.0, 9.0), 1.0, at_least=at_least).met is met


def test_a_peer_that_is_absent_leaves_the_target_unjudged_and_says_so():
    target = against(table(ckptsync=[1.0]), "restic", 0.6, "push: wall to restic's")
    assert target.met is None
    assert "restic is not installed" in markdown([result(target)], {})


def test_the_first_arm_is_held_against_the_peer_unless_another_is_named():
    measured = table(ckptsync=[1.0, 1.0], slow=[4.0, 4.0], s5cmd=[2.0, 2.0])
    assert against(measured, "s5cmd", 1.0, "push").measured == Spread(0.5, 0.5, 0.5)
    assert against(measured, "s5cmd", 1.0, "push", ours="slow").measured == Spread(2.0, 2.0, 2.0)
    assert figure(measured, "s5cmd", "wall s", 3.0, "wall", "s").measured == Spread(2.0, 2.0, 2.0)


def test_the_report_tells_met_from_missed_and_gives_unjudged_lines_no_verdict():
    good, bad = Target("fast", Spread(0.5, 0.4, 0.6), 1.0), Target("small", Spread(2.0, 2.0, 2.0), 1.0)
    lines = markdown([result(good, bad, Target("(beside)", Spread(2.0, 2.0, 2.0), 1.0))], {}).splitlines()
    assert "| fast | <= 1x | 0.500 (0.400-0.600)x | met |" in lines
    assert "| small | <= 1x | 2.00x | **missed** |" in lines
    assert "| (beside) | <= 1x | 2.00x |  |" in lines


def test_each_arm_has_its_figures_and_the_ratio_of_the_first_arm_to_it():
    text = markdown([result(tables=[table(ckptsync=[1.0, 2.0], s5cmd=[2.0, 4.0])])], {"kernel": "Linux 6"})
    assert "| kernel | Linux 6 |" in text
    assert "| s5cmd | 3.00 (2.00-4.00) | 0.500 |" in text


def test_an_arm_without_a_figure_has_an_empty_cell():
    arms = [Arm("verify", {"GB/s": [1.0]}), Arm("push", {"read": [2.0]})]
    assert "| push |  | 2.00 |" in markdown([result(tables=[Table("step", arms, versus="")])], {})


def test_quick_figures_are_called_quick():
    quick = Result("codec", "Codec", "How.", 1, "2026-01-01 00:00", "quick")
    assert "Quick run" in markdown([quick], {})
    assert "Quick run" not in markdown([result()], {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0123, "0.0123"),
        (0.9996, "1.00"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (123.4, "123"),
        (98765.0, "98765"),
    ],
)
def test_numbers_have_three_digits_that_count(value, text):
    assert number(value) == text


def test_a_spread_that_looks_like_one_number_is_written_as_one():
    assert spelled(Spread(1.0, 0.9999, 1.0001)) == "1.00"


def test_results_come_back_from_disk_as_they_were_in_the_order_asked_for(tmp_path):
    kept = result(Target("fast", Spread(0.5, 0.4, 0.6), 1.0), tables=[table(ckptsync=[1.0])])
    other = Result("codec", "Codec", "How.", 1, "2026-01-01 00:00", "full")
    store(kept, tmp_path / "results")
    store(other, tmp_path / "results")
    assert load(tmp_path / "results", ["codec", "verify", "push_first"]) == [other, kept]
