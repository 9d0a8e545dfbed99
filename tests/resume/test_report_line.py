"""What a preflight says in one line."""

from ckptsync.resume.outcome import Report, failed, passed, skipped, warned

GOOD = (("a", passed("fine")), ("b", skipped("not known", "look")))


def test_a_start_continues_or_does_not_or_has_nothing_to_continue():
    assert Report(GOOD).line == "this start continues the run, as far as can be known: 1 passed, 1 skipped"
    begins = "no step was found to resume from, so this start begins at step 0: 1 passed, 1 skipped"
    assert Report(GOOD, begins=True).line == begins
    bad = (*GOOD, ("c", warned("odd")), ("d", failed("bad", "mend it")))
    counted = "1 passed, 1 to look at, 1 failed, 1 skipped"
    assert Report(bad, begins=True).line == f"this start would not continue the run: {counted}"


def test_a_failure_on_another_node_is_everybodys():
    line = Report(GOOD, elsewhere=[("n1", ("tracker",))]).line
    assert line == "this start would not continue the run: 1 passed, 1 skipped"
