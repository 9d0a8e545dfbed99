"""A strategy is a limit that all nodes share; old documents are read, and what old nodes would misread they refuse."""

from __future__ import annotations

import json

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ckptsync.model.agreement import (
    Candidate,
    Chosen,
    CommitFirst,
    Nothing,
    Refused,
    Waiting,
    gather,
    pick,
)
from ckptsync.model.manifest import ManifestError, PartId
from ckptsync.model.rounds import Decision, Limits, Offer, Place, parse_decision, parse_offer
from ckptsync.model.selection import NEWEST, Strategy, parse_strategy

PLACE = Place("r", "id", "job-1", 1)
HUNDREDS = parse_strategy("multiple-of 100")
COMMITTED = parse_strategy("newest-committed")
LOSS = parse_strategy("best loss min")
PART = PartId("n@1", "a" * 64)


def offer(node, *, nodes=2, **fields):
    return Offer(PLACE, node, f"id-{node}", nodes, **fields)


def both(strategy, **limits):
    return [offer(node, limits=Limits(select=strategy, **limits)) for node in "ab"]


def candidate(step, *, committed=True, end=None, value=None):
    lacking = frozenset() if committed else frozenset({PartId("b", f"{step:064x}")})
    return Candidate(step, step if end is None else end, 3, f"{step:064x}", "verl", committed, lacking, value)


# -- may anything be decided


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (HUNDREDS, NEWEST, 'a: --select "multiple-of 100"; b: no limits'),
        (HUNDREDS, parse_strategy("multiple-of 50"), 'a: --select "multiple-of 100"; b: --select "multiple-of 50"'),
        (LOSS, parse_strategy("best loss"), 'a: --select "best loss min"; b: --select "best loss"'),
    ],
)
def test_strategies_that_differ_are_refused_once_all_can_hear_it(mine, theirs, words):
    offers = [offer("a", limits=Limits(select=mine)), offer("b", limits=Limits(select=theirs))]
    verdict = gather(offers, 2, timed_out=False)
    assert isinstance(verdict, Refused)
    assert f"disagree about the limits: {words}" in verdict.why
    early = gather(offers, 3, timed_out=False)
    assert isinstance(early, Waiting)
    assert gather(both(mine), 2, timed_out=False) is None


# -- for what


def test_multiples_are_preferred_and_brought_in_first_and_the_newest_stands_in_for_them():
    coarse, fine = candidate(200), candidate(230)
    assert pick([coarse, fine], both(HUNDREDS), 2, timed_out=False) == Chosen(coarse)
    new = candidate(300, committed=False)
    assert pick([coarse, fine, new], both(HUNDREDS), 2, timed_out=False) == CommitFirst(new)
    assert pick([coarse, fine, new], both(HUNDREDS), 2, timed_out=True) == Chosen(coarse)
    instead = pick([fine, new], both(HUNDREDS), 2, timed_out=True)
    assert isinstance(instead, Chosen)
    assert (instead.candidate, "is a multiple of 100" in instead.fallback) == (fine, True)


def test_limits_bound_each_strategy():
    found = [candidate(step, value=-float(step)) for step in (100, 150, 200, 230)]
    assert pick(found, both(HUNDREDS, max_step=199), 2, timed_out=False) == Chosen(found[0])
    assert pick(found, both(LOSS, max_step=199), 2, timed_out=False) == Chosen(found[1])
    assert pick(found, both(COMMITTED, max_step=199), 2, timed_out=False) == Chosen(found[1])
    assert pick(found, both(HUNDREDS, max_step=99), 2, timed_out=False) == Nothing()


def test_the_best_is_brought_in_first_if_it_is_on_the_disks_only():
    found = [candidate(100, value=2.0), candidate(150, committed=False, value=1.0), candidate(200)]
    assert pick(found, both(LOSS), 2, timed_out=False) == CommitFirst(found[1])
    assert pick(found, both(LOSS), 2, timed_out=True) == Chosen(found[0])


def test_newest_committed_uploads_nothing_and_loses_nothing():
    old, new = candidate(80), candidate(90, committed=False)
    assert pick([old, new], both(COMMITTED), 2, timed_out=False) == Chosen(old)
    verdict = pick([new], both(COMMITTED), 2, timed_out=False)
    assert isinstance(verdict, Refused), "nothing to resume from would let them begin from the start"
    assert "step 90 is whole on the disks, but no step is committed" in verdict.why
    assert isinstance(pick([new], both(COMMITTED), 2, timed_out=True), Refused)
    assert pick([], both(COMMITTED), 2, timed_out=False) == Nothing()


STRATEGIES = st.sampled_from([NEWEST, COMMITTED, HUNDREDS, LOSS, parse_strategy("multiple-of 30")])
CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.sampled_from([0, 30, 50, 60, 90, 100, 200]),
        committed=st.booleans(),
        end=st.integers(1, 9),
        value=st.one_of(st.none(), st.integers(0, 3).map(float)),
    ),
    max_size=8,
    unique_by=lambda each: each.rank,
)


@given(STRATEGIES, CANDIDATES, st.booleans(), st.randoms(use_true_random=False))
def test_all_nodes_pick_the_same_and_what_is_chosen_is_committed(strategy, found, timed_out, shuffle):
    offers, shown = both(strategy), list(found)
    verdict = pick(found, offers, 2, timed_out=timed_out)
    shuffle.shuffle(shown)
    assert pick(shown, offers, 2, timed_out=timed_out) == verdict
    event(type(verdict).__name__)
    if isinstance(verdict, Chosen):
        assert verdict.candidate.committed
    if isinstance(verdict, CommitFirst):
        assert not timed_out
        assert strategy != COMMITTED
    if isinstance(verdict, Nothing):
        assert found == [], "nothing to resume from is said only where nothing is"


# -- documents


def raw(document):
    return json.loads(document.to_bytes())


def spelled(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_without_a_strategy_documents_are_those_of_format_1_0():
    said = raw(offer("a", limits=Limits(80, 90, "verl")))
    assert said["format"] == [1, 0]
    assert said["limits"] == {"layout": "verl", "max_step": 90, "step": 80}
    assert said.keys() == {
        "attempt", "format", "kind", "limits", "node", "node_id", "nodes", "parts", "round", "run", "run_id", "scope",
    }  # fmt: skip
    decided = raw(Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6))
    assert decided["format"] == [1, 0]
    assert "select" not in decided
    assert "fallback" not in decided


@pytest.mark.parametrize("strategy", [HUNDREDS, COMMITTED, LOSS, parse_strategy("best ü/x")])
def test_documents_with_a_strategy_come_back_as_they_were(strategy):
    values = frozenset({(PART, 0.1), (PartId("n@1", "b" * 64), -1e-300)})
    said = offer("n@1", limits=Limits(None, 500, "verl", strategy), parts=frozenset({(80, PART)}), values=values)
    assert parse_offer(said.to_bytes(), PLACE, "n@1") == said
    decided = Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6, "why", strategy, "none is")
    back = parse_decision(decided.to_bytes(), PLACE)
    assert (back, back.why, back.fallback) == (decided, "why", "none is")
    assert back != Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6)


def test_what_older_nodes_wrote_is_for_the_newest():
    """Byte for byte what a node without strategies puts."""
    said = (
        b'{"attempt":"job-1","format":[1,0],"kind":"offer","limits":{"layout":"","max_step":-1,"step":-1},"node":"a",'
        b'"node_id":"id-a","nodes":2,"parts":[],"round":1,"run":"r","run_id":"id","scope":"all"}'
    )
    assert parse_offer(said, PLACE, "a") == offer("a")
    decided = (
        b'{"attempt":"job-1","commit":"' + b"b" * 64 + b'","decided_ns":6,"format":[1,0],"kind":"decision","node":"a",'
        b'"nodes":2,"outcome":"commit","round":1,"run":"r","run_id":"id","saved_ns":5,"step":80,"why":""}'
    )
    assert parse_decision(decided, PLACE).select == NEWEST


def test_a_node_that_does_not_know_strategies_refuses_the_offer_and_can_follow_the_decision():
    """It would take the newest, where all others take something else: so its major version is one that it refuses."""
    assert raw(offer("a", limits=Limits(select=HUNDREDS)))["format"] == [2, 0]
    decided = Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6, select=HUNDREDS)
    assert raw(decided)["format"] == [1, 1]
    later = raw(offer("a", limits=Limits(select=HUNDREDS)))
    later["format"] = [3, 0]
    with pytest.raises(ManifestError, match="upgrade ckptsync") as caught:
        parse_offer(spelled(later), PLACE, "a")
    assert caught.value.too_new
    with pytest.raises(ManifestError, match="upgrade ckptsync"):
        parse_decision(spelled({**raw(decided), "format": [2, 0]}), PLACE)


@pytest.mark.parametrize("text", ["oldest", "", 7, None, ["newest"], "multiple-of 0", "best x\x00"])
def test_a_strategy_that_is_none_is_told(text):
    said = raw(offer("a", limits=Limits(select=HUNDREDS)))
    said["limits"]["select"] = text
    with pytest.raises(ManifestError):
        parse_offer(spelled(said), PLACE, "a")
    with pytest.raises(ManifestError):
        parse_decision(spelled({**raw(Decision(PLACE, "a", 2, "nothing", select=HUNDREDS)), "select": text}), PLACE)


@pytest.mark.parametrize(
    "values",
    [7, [], [["n@1", "0.5"]], {"n@1": "0.5"}, {str(PART): 1}, {str(PART): "nan"}, {str(PART): "inf"}, {str(PART): ""}],
)
def test_values_that_are_none_are_told(values):
    said = {**raw(offer("a", limits=Limits(select=LOSS))), "values": values}
    with pytest.raises(ManifestError):
        parse_offer(spelled(said), PLACE, "a")


@pytest.mark.parametrize(
    ("limits", "decided", "follows"),
    [
        (Limits(), NEWEST, True),
        (Limits(), HUNDREDS, False),
        (Limits(select=HUNDREDS), HUNDREDS, True),
        (Limits(select=HUNDREDS), NEWEST, False),
        (Limits(select=Strategy("best", metric="a")), Strategy("best", metric="b"), False),
        (Limits(step=80), HUNDREDS, True),
    ],
)
def test_a_late_node_follows_its_own_strategy_or_the_step_that_it_was_told(limits, decided, follows):
    assert limits.follow(decided) is follows
