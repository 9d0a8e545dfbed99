"""Whatever candidates there are: never an unsound one, always what the strategy says, and a fallback is said."""

from __future__ import annotations

import random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ckptsync.config_values import selection
from ckptsync.model.selection import (
    NEWEST,
    Candidate,
    Strategy,
    not_committed,
    parse_strategy,
    reason_against,
    select,
)

VALUES = st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([float("nan"), float("inf")]))
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        step=st.integers(0, 12),
        end_ns=st.integers(1, 8),
        committed=st.booleans(),
        value=VALUES,
        out=st.sampled_from(["", "", "", "superseded", "its commit is marked as bad"]),
        files=st.integers(1, 2),
        digest=st.integers(0, 10**6).map(str),
    ),
    max_size=10,
    unique_by=lambda each: each.rank,
)
METRICS = st.sampled_from(["acc", "val/reward", "metrics.json:loss", "min", "ü"])
STRATEGIES = st.one_of(
    st.just(NEWEST),
    st.just(Strategy("newest-committed")),
    st.integers(1, 7).map(lambda number: Strategy("multiple-of", number=number)),
    st.builds(
        lambda metric, mode: Strategy("best", metric=metric, mode=mode), METRICS, st.sampled_from(["max", "min"])
    ),
)


def eligible(strategy, candidates):
    return [
        each for each in candidates if each.out == "" and (each.committed or strategy != Strategy("newest-committed"))
    ]


@given(STRATEGIES, CANDIDATES)
def test_what_is_selected_is_sound_and_nothing_is_selected_only_if_nothing_is(strategy, candidates):
    selected = select(strategy, candidates)
    found = eligible(strategy, candidates)
    event("selected" if selected else "nothing")
    assert (selected is None) == (not found)
    if selected is not None:
        assert selected.candidate in found
        assert selected.why


@given(STRATEGIES, CANDIDATES, st.randoms(use_true_random=False))
def test_the_order_in_which_a_node_reads_says_nothing(strategy, candidates, shuffle: random.Random):
    shown = list(candidates)
    shuffle.shuffle(shown)
    one, other = select(strategy, candidates), select(strategy, shown)
    assert repr(one) == repr(other)  # a value may be nan


@given(CANDIDATES)
def test_the_newest_has_the_greatest_save_time(candidates):
    selected = select(NEWEST, candidates)
    if selected is not None:
        assert selected.candidate.end_ns == max(each.end_ns for each in candidates if not each.out)
        assert selected.fallback == ""


@given(CANDIDATES)
def test_newest_committed_never_takes_what_is_only_on_a_disk(candidates):
    strategy = Strategy("newest-committed")
    selected = select(strategy, candidates)
    if selected is not None:
        assert selected.candidate.committed
        times = [each.end_ns for each in candidates if each.committed and not each.out]
        assert selected.candidate.end_ns == max(times)
    on_disk = [each for each in candidates if not each.committed and not each.out]
    assert (not_committed(strategy, candidates) is None) == (not on_disk)
    assert not_committed(NEWEST, candidates) is None


@given(st.integers(1, 7), CANDIDATES)
def test_multiple_of_takes_the_newest_sound_multiple_or_says_that_there_is_none(number, candidates):
    strategy = Strategy("multiple-of", number=number)
    selected = select(strategy, candidates)
    sound = [each for each in candidates if not each.out]
    multiples = [each for each in sound if each.step > 0 and each.step % number == 0]
    if selected is None:
        assert sound == []
    elif multiples:
        event("a multiple")
        assert selected.candidate == max(multiples, key=lambda each: each.rank)
        assert selected.fallback == ""
    else:
        event("fallback")
        assert selected.candidate == select(NEWEST, candidates).candidate
        assert f"multiple of {number}" in selected.fallback


@given(st.sampled_from(["max", "min"]), CANDIDATES)
def test_best_takes_the_best_value_of_equal_ones_the_newest_or_says_that_there_is_none(mode, candidates):
    strategy = Strategy("best", metric="acc", mode=mode)
    selected = select(strategy, candidates)
    finite = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    valued = [each for each in candidates if not each.out and each.value in finite]
    if selected is None:
        assert [each for each in candidates if not each.out] == []
    elif valued:
        event("a value")
        best = (max if mode == "max" else min)(each.value for each in valued)
        assert selected.candidate == max((e for e in valued if e.value == best), key=lambda each: each.rank)
        assert selected.fallback == ""
        assert f"acc = {best:g}" in selected.why
    else:
        event("fallback")
        assert repr(selected.candidate) == repr(select(NEWEST, candidates).candidate)
        assert "no sound step has a value of acc" in selected.fallback


@given(STRATEGIES, CANDIDATES)
def test_every_other_candidate_has_a_reason_that_is_true(strategy, candidates):
    selected = select(strategy, candidates)
    for each in candidates:
        if selected is not None and each is selected.candidate:
            continue
        reason = reason_against(strategy, selected, each)
        assert reason
        if each.out:
            assert reason == each.out
        elif reason == "older":
            assert selected is not None
            assert each.rank < selected.candidate.rank
        elif reason.startswith("no multiple"):
            assert each.step == 0 or each.step % strategy.number != 0
        elif reason == "it is not committed":
            assert not each.committed


@given(STRATEGIES, CANDIDATES)
def test_where_a_strategy_looks_first_is_what_it_takes_if_anything_there_is_sound(strategy, candidates):
    """Who reads the preferred steps first, and the others only if he has to, comes to the same."""
    first = [each for each in candidates if strategy.prefers(each.step)]
    found = select(strategy, first)
    if found is None or found.fallback:
        found = select(strategy, candidates)
    assert repr(found) == repr(select(strategy, candidates)) or strategy.kind == "best"


@given(STRATEGIES)
def test_a_strategy_is_read_back_from_its_text(strategy):
    assert parse_strategy(str(strategy)) == strategy
    assert selection(str(strategy)) == str(strategy)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("newest", NEWEST),
        ("newest-committed", Strategy("newest-committed")),
        ("multiple-of 100", Strategy("multiple-of", number=100)),
        ("best val/reward", Strategy("best", metric="val/reward")),
        ("best val/reward max", Strategy("best", metric="val/reward")),
        ("best loss min", Strategy("best", metric="loss", mode="min")),
        ("best min", Strategy("best", metric="min")),
        ("best min min", Strategy("best", metric="min", mode="min")),
    ],
)
def test_what_people_write(text, strategy):
    assert parse_strategy(text) == strategy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "oldest",
        "Newest",
        "newest ",
        "newest\n",
        "multiple-of",
        "multiple-of 0",
        "multiple-of -1",
        "multiple-of 1.5",
        "multiple-of 08",
        "multiple-of 1234567890123",
        "multiple-of \u0661",
        "best",
        "best ",
        "best  acc",
        "best acc average",
        "best acc\x1b[31m",
        "best acc\nmin",
        "best \u200b",
        f"best {'x' * 256}",
    ],
)
def test_what_selects_nothing_is_refused(text):
    with pytest.raises(ValueError, match="selects nothing"):
        parse_strategy(text)
