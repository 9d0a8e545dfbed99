"""What a preflight says in one line."""

import pytest

from ckptsync.resume.outcome import Report, failed, passed, skipped, warned

GOOD = (("a", passed("fine")), ("b", skipped("not known", "look")))
BAD = (*GOOD, ("z", failed("bad", "mend it")), ("c", warned("odd")), ("d", failed("bad", "mend it")))
CONTINUES = "this start continues the run, as far as can be known"
NOT = "this start would not continue the run"
NO_STEP = "no step was found to resume from"


@pytest.mark.parametrize(
    ("checks", "begins", "line"),
    [
        (GOOD[:1], False, "this start continues the run: 1 passed"),
        (GOOD, False, f"{CONTINUES}: 1 passed; 1 not known"),
        (GOOD, True, f"{NO_STEP}, so this start begins at step 0: 1 passed; 1 not known"),
        ((*GOOD, ("c", warned("odd"))), False, f"{CONTINUES}: look at c; 1 passed; 1 not known"),
        (BAD, False, f"{NOT}: d, z failed; look at c; 1 passed; 1 not known"),
        (BAD, True, f"{NO_STEP}, and a start at step 0 is not ready: d, z failed; look at c; 1 passed; 1 not known"),
    ],
)
def test_a_start_continues_or_does_not_or_has_nothing_to_continue(checks, begins, line):
    assert Report(checks, begins=begins).line == line


def test_a_failure_on_another_node_is_everybodys():
    line = Report(GOOD, elsewhere=[("n1", ("tracker", "disk"))]).line
    assert line == f"{NOT}: disk, tracker failed on node n1; 1 passed; 1 not known"
