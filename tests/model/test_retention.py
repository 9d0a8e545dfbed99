"""Retention: each situation of retention_cases/*.toml, and what holds for all of them.

A row: step | when it was saved | what its deletion gives back (remote: files) | what it is | verdict | reasons.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.model.policies import Best, Policies, Weight
from ckptsync.model.pressure import Limits, Shortage, Space, fits, give_way, next_save, shortage
from ckptsync.model.retention import LocalFacts, RemoteFacts, condemned, judge_local, judge_remote
from ckptsync.model.step import LocalState
from ckptsync.units import FreeSpace, parse_duration, parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NS = 10**9
CASES = sorted((Path(__file__).parent / "retention_cases").glob("*.toml"))
STATES = {state.value for state in LocalState}


def _rows(case):
    return [[cell.strip() for cell in line.split("|")] for line in case["table"].strip().splitlines()]


def _words(text):
    found = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if key in STATES:
            key, value = "state", LocalState(key)
        elif key == "metric":
            value = float(value)
        elif key in ("pin", "unsound"):
            value = value.replace(",", " ")
        elif not equals:
            value = True
        found[key] = value
    return found


def _fact(side, index, row):
    step, saved, amount, words = row[:4]
    known = {"step": int(step), "save": f"{index:064x}", "end_ns": int(parse_duration(saved) * NS), **_words(words)}
    if side == "remote":
        return RemoteFacts(files=int(amount), **known)
    return LocalFacts(bytes=parse_size(amount), **known)


def _policies(table):
    best = table.get("keep_best")
    return Policies(
        table.get("keep_last"),
        table.get("keep_every"),
        parse_duration(table["keep_within"]) if "keep_within" in table else None,
        Best(**best) if best else None,
    )


def _judge(case, facts):
    policies = _policies(case.get("policies", {}))
    now_ns = int(parse_duration(case["now"]) * NS) if "now" in case else max(fact.end_ns for fact in facts)
    if case.get("side") == "remote":
        found = judge_remote(facts, policies, now_ns)
        return [found[fact.step, fact.save] for fact in facts]
    verdicts = judge_local(facts, policies, now_ns)
    short = Shortage(parse_size(case.get("short_free", "0B")), parse_size(case.get("short_size", "0B")))
    return list(give_way(facts, verdicts, short))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_verdicts_of(path):
    case = tomllib.loads(path.read_text())
    rows = _rows(case)
    verdicts = _judge(case, [_fact(case.get("side"), index, row) for index, row in enumerate(rows)])
    said = [
        (row[0], "keep" if v.keep else "LOUD" if v.loud else "goes", "; ".join(str(reason) for reason in v.reasons))
        for row, v in zip(rows, verdicts, strict=True)
    ]
    assert said == [(row[0], row[4], row[5]) for row in rows], case["say"]


def test_there_are_enough_situations():
    assert len(CASES) >= 30


# -- what holds for every run and every configuration

saves = st.fixed_dictionaries(
    {
        "step": st.integers(0, 12),
        "end_ns": st.integers(0, 20).map(lambda hours: hours * 3600 * NS),
        "metric": st.none() | st.floats(width=16),
        "unread": st.booleans(),
        "pin": st.none() | st.just(""),
        "resumed": st.booleans(),
    }
)
rare = st.sampled_from([False, False, False, True])
local_extra = st.fixed_dictionaries(
    {
        "state": st.sampled_from([LocalState.VERIFIED] * 6 + list(LocalState)),
        "bytes": st.integers(0, 5),
        "pin": st.sampled_from([None, None, None, ""]),
        **dict.fromkeys(("latest", "tracker", "resumed", "due", "committed", "staged", "uploading"), rare),
    }
)
locals_ = st.lists(st.builds(lambda a, b: {**a, **b}, saves, local_extra), max_size=9).map(
    lambda rows: [LocalFacts(save=f"s{index}", **row) for index, row in enumerate(rows)]
)
remotes = st.lists(
    st.builds(
        lambda a, b: {**a, **b},
        saves,
        st.fixed_dictionaries(
            {
                "void": rare,
                "bad": rare,
                "left": rare,
                "unsound": st.sampled_from(["", "", "", "broken"]),
                "files": st.integers(1, 3),
            }
        ),
    ),
    max_size=9,
).map(lambda rows: [RemoteFacts(save=f"s{index}", **row) for index, row in enumerate(rows)])
policies_ = st.builds(
    Policies,
    last=st.none() | st.integers(1, 4),
    every=st.none() | st.integers(1, 7),
    within_s=st.none() | st.floats(0.001, 10 * 3600),
    best=st.none() | st.builds(Best, st.just("m"), st.sampled_from(["max", "min"]), st.integers(1, 3)),
)
nows = st.integers(0, 40).map(lambda hours: hours * 3600 * NS)
shortages = st.builds(Shortage, st.integers(0, 30), st.integers(0, 30))


def _two_newest(facts):
    verified = sorted((f for f in facts if f.state is LocalState.VERIFIED), key=lambda f: (f.end_ns, f.step, f.save))
    return {fact.save for fact in verified[-2:]}


def _untouchable(fact, facts):
    """Design, Retention: said again, independently of the code."""
    unjudged = fact.state in (LocalState.GROWING, LocalState.SETTLING, LocalState.COMPLETE, LocalState.BROKEN)
    named = fact.latest or fact.tracker or fact.pin is not None or fact.resumed
    return unjudged or named or fact.uploading or fact.save in _two_newest(facts)


@given(locals_, policies_, nows, shortages)
@settings(max_examples=200)
def test_no_configuration_and_no_shortage_crosses_a_floor(facts, policies, now_ns, short):
    verdicts = judge_local(facts, policies, now_ns)
    pressed = give_way(facts, verdicts, short)
    for fact, before, after in zip(facts, verdicts, pressed, strict=True):
        if _untouchable(fact, facts):
            assert before.keep
            assert after.keep
        waiting = (fact.due or fact.staged) and not fact.committed
        if waiting:
            assert before.keep
            assert after.keep or (after.loud and short.free > 0)
        assert after.loud == (before.keep and not after.keep and waiting)
        assert after.reasons
        if not policies.named:
            assert before.keep


@given(remotes, policies_, nows)
@settings(max_examples=200)
def test_the_store_is_never_emptied(facts, policies, now_ns):
    verdicts = judge_remote(facts, policies, now_ns)
    sound = [fact for fact in facts if not fact.void and not fact.unsound]
    if sound:
        assert any(verdicts[fact.step, fact.save].keep for fact in sound)
    taken = [fact for fact in sound if not fact.bad and not fact.left]  # what a resume could take
    if taken:
        newest_ns = max(fact.end_ns for fact in taken)
        assert any(verdicts[f.step, f.save].keep for f in sound if f.end_ns == newest_ns)
    for fact in facts:
        verdict = verdicts[fact.step, fact.save]
        assert verdict.reasons
        if not fact.void and (fact.pin is not None or fact.unsound or fact.resumed or not policies.named):
            assert verdict.keep
        assert (fact.save in condemned(verdicts)) != verdict.keep


def _more(policies, other):
    """`policies` with what `other` adds where it is off."""
    return Policies(
        *(
            getattr(policies, f.name) if getattr(policies, f.name) is not None else getattr(other, f.name)
            for f in fields(policies)
        )
    )


@given(locals_, remotes, policies_.filter(lambda policies: policies.named), policies_, nows)
@settings(max_examples=200)
def test_another_policy_never_takes_a_step_away(facts, commits, policies, other, now_ns):
    wider = _more(policies, other)
    for before, after in zip(judge_local(facts, policies, now_ns), judge_local(facts, wider, now_ns), strict=True):
        assert after.keep or not before.keep
    assert condemned(judge_remote(commits, wider, now_ns)) <= condemned(judge_remote(commits, policies, now_ns))


@given(st.data(), locals_, remotes, policies_, nows, shortages)
@settings(max_examples=200)
def test_the_order_in_which_steps_are_listed_does_not_matter(data, facts, commits, policies, now_ns, short):
    def judged(rows):
        found = give_way(rows, judge_local(rows, policies, now_ns), short)
        return {fact.save: verdict for fact, verdict in zip(rows, found, strict=True)}

    assert judged(data.draw(st.permutations(facts))) == judged(facts)
    shuffled = data.draw(st.permutations(commits))
    assert judge_remote(shuffled, policies, now_ns) == judge_remote(commits, policies, now_ns)


@given(locals_, policies_, nows, shortages)
@settings(max_examples=200)
def test_no_more_gives_way_than_is_needed(facts, policies, now_ns, short):
    verdicts = judge_local(facts, policies, now_ns)
    pressed = give_way(facts, verdicts, short)
    rows = list(zip(facts, verdicts, pressed, strict=True))
    gone = sum(fact.bytes for fact, _, after in rows if not after.keep)
    quiet = [fact.bytes for fact, before, after in rows if before.keep and not after.keep and not after.loud]
    loud = [fact.bytes for fact, _, after in rows if after.loud]
    if loud:
        assert gone - max(loud) < short.free
    elif quiet:
        assert gone - max(quiet) < max(short.free, short.size)
    if gone < short.free:  # then nothing is left that may go
        assert all(not a.keep or b.weight is Weight.FLOOR or not f.bytes for f, b, a in rows)


# -- the disk


def test_shortage_counts_the_next_save_and_what_is_on_its_way_back():
    space = Space(free=10, total=100, returning=5, used=60, next_save=20)
    assert shortage(space, Limits()) == Shortage()
    assert shortage(space, Limits(FreeSpace(size=1))) == Shortage(free=6)
    assert shortage(space, Limits(FreeSpace(fraction=0.1))) == Shortage(free=15)
    assert shortage(space, Limits(max_size=70)) == Shortage(size=10)
    assert shortage(space, Limits(FreeSpace(size=0), 100)) == Shortage(free=5)
    assert not fits(space)
    assert fits(space, 5)


def test_the_next_save_is_as_large_as_the_largest_of_the_last_three():
    steps = [LocalFacts(step, str(step), step * NS) for step in (1, 2, 3, 4)]
    assert next_save(steps, [99, 5, 7, 6]) == 7
    assert next_save([], []) == 0
    growing = LocalFacts(5, "5", 5 * NS, LocalState.GROWING)
    assert next_save([*steps, growing], [99, 5, 7, 6, 4]) == 3
    assert next_save([*steps, growing], [99, 5, 7, 6, 9]) == 0
    stuck = LocalFacts(5, "5", 1, LocalState.GROWING)
    assert next_save([*steps, stuck], [99, 5, 7, 6, 4]) == 7
