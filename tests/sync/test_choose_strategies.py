"""By whichever strategy: the choice that reads no more than it needs is the one of somebody who has read everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dated_saves import EPOCH_NS, FATES, HOUR_NS, LAYOUTS, RUN_ID, SECOND, Past, decide, part_of, remote_of
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ckptsync.errors import NothingToResume, PreflightError
from ckptsync.model.merge import unite
from ckptsync.model.rounds import Limits, Offer, Place
from ckptsync.model.selection import NEWEST, Candidate, parse_strategy, select
from ckptsync.store import keys
from ckptsync.sync.candidates import survey
from ckptsync.sync.choose import Stock, choose, look_over
from ckptsync.sync.collect_lists import render
from ckptsync.sync.commit import check_commit
from ckptsync.sync.history import History
from ckptsync.sync.metrics import metric_of_commit
from ckptsync.sync.notes import read_said

MINUTE = 60 * SECOND
TEXTS = ("newest", "newest-committed", "multiple-of 2", "multiple-of 3", "best loss", "best loss min", "best none")


def local_of(past):
    """A whole save that is only on this disk."""
    part = part_of(past.step, past.end_ns, past.loss)
    return unite([part], part.saved_ns, LAYOUTS["verl"], window_ns=HOUR_NS)


def chosen(remote, strategy, local=(), **options):
    """What is chosen: (step, end, whether by its commit, whether something else was asked for)."""
    losses = {local_of(past).end_ns: past.loss for past in local if strategy.metric == "loss"}
    unions = [local_of(past) for past in local]
    stock = Stock(remote, LAYOUTS, HOUR_NS, unions, value_of=lambda union, _: losses.get(union.end_ns))
    try:
        found = choose(stock, Limits(select=strategy, **options))
    except (NothingToResume, PreflightError) as error:
        return type(error)
    return found.union.step, found.union.end_ns, bool(found.commit), bool(found.fallback)


def exhaustive(remote, strategy, local=()):
    """The same by reading everything, in no order."""
    found, history = [], History(remote, LAYOUTS, HOUR_NS).refresh()
    said = read_said(remote, {"loss"})
    for index in remote.index_all().values():
        for digest in index.commits:
            union, _ = check_commit(remote, index, digest, LAYOUTS, remote.condemned(), window_ns=HOUR_NS)
            if union is None or history.against(union, index):
                continue
            digests = [digest, *(part.digest for part in union.parts)]
            tag = said.tag_of("loss", digests)
            value = tag if tag is not None else metric_of_commit(remote, union, "loss")
            value = value if strategy.metric == "loss" else None
            found.append(Candidate(union.step, union.end_ns, True, value, "", len(union.files), digest))
    for past in local:
        union = local_of(past)
        if not history.against(union, remote.index(past.step)):
            value = past.loss if strategy.metric == "loss" else None
            digest = union.commit.digest
            found.append(Candidate(union.step, union.end_ns, False, value, "", len(union.files), digest))
    selected = select(strategy, found)
    if selected is None:
        return PreflightError if strategy.committed_only and found else NothingToResume
    best = selected.candidate
    return best.step, best.end_ns, best.committed, bool(selected.fallback)


LOSSES = st.one_of(st.none(), st.integers(0, 3).map(float))
TAGS = st.one_of(st.none(), st.tuples(st.sampled_from(["commit", "part"]), st.integers(0, 3).map(float)))
LAGS = st.one_of(st.none(), st.integers(0, 8 * SECOND), st.sampled_from([0, HOUR_NS]))


def pasts(fates=(*FATES, "bad")):
    ends = st.integers(0, 40).map(lambda n: EPOCH_NS + n * SECOND // 2)
    one = st.builds(Past, st.integers(0, 6), ends, LAGS, st.sampled_from(fates), LOSSES, TAGS)
    return st.lists(one, max_size=9, unique_by=lambda past: past.end_ns)


HERE = st.lists(
    st.builds(
        Past, st.integers(1, 7), st.integers(0, 60).map(lambda n: EPOCH_NS + n * SECOND + 1), st.none(), loss=LOSSES
    ),
    max_size=3,
    unique_by=lambda past: past.end_ns,
)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(TEXTS), pasts(), HERE, st.booleans())
def test_the_cheap_choice_is_the_one_of_who_has_read_everything(text, saved, here, rolled_back):
    strategy, remote = parse_strategy(text), remote_of(saved)
    if rolled_back and saved:
        decide(remote.store, 1, EPOCH_NS + 15 * SECOND, saved[0].end_ns)
    expected = exhaustive(remote, strategy, here)
    event(f"{strategy.kind}: {expected if isinstance(expected, type) else expected[2:]}")
    assert chosen(remote, strategy, here) == expected


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TEXTS), pasts())
def test_nodes_together_find_what_a_node_alone_finds_where_all_is_committed(text, saved):
    strategy, remote = parse_strategy(text), remote_of(saved)
    place, limits = Place("run", remote.run_id, "job", 1), Limits(select=strategy)
    history = History(remote, LAYOUTS, HOUR_NS).refresh()
    found = survey(history, [Offer(place, "a", "id", 1, limits)], ())
    selected = select(strategy, [each for each in found.candidates if each.committed])
    expected = exhaustive(remote, strategy)
    if selected is None:
        assert expected is NothingToResume
    else:
        assert (selected.candidate.step, selected.candidate.end_ns, True, bool(selected.fallback)) == expected


# -- what it costs


@pytest.fixture
def thousand():
    """A thousand committed steps, a minute apart, each with a loss in a file: from 1000 to 1, but for step 400."""
    saved = [Past(n, EPOCH_NS + n * MINUTE, 30 * SECOND, loss=1001.0 - n) for n in range(1, 1001)]
    saved[399] = replace(saved[399], loss=0.5)
    return saved


def reads(remote):
    return {kind: len(remote.store.asked("get", f"/{kind}/")) for kind in ("commits", "parts", "chunks")}


def lists(remote):
    return sorted(remote.store.asked("list"))


FOUR = ["run/attempts", "run/bad", "run/gc", "run/steps"]


@pytest.mark.parametrize("text", ["newest", "newest-committed"])
def test_of_a_thousand_steps_the_newest_alone_is_read(thousand, text):
    remote = remote_of(thousand)
    assert chosen(remote, parse_strategy(text))[0] == 1000
    assert reads(remote) == {"commits": 1, "parts": 1, "chunks": 0}
    assert lists(remote) == FOUR


def test_of_the_multiples_only_as_many_are_read_as_are_broken(thousand):
    remote = remote_of(thousand)
    assert chosen(remote, parse_strategy("multiple-of 300"))[0] == 900
    assert reads(remote) == {"commits": 1, "parts": 1, "chunks": 0}
    assert lists(remote) == FOUR
    thousand[899] = replace(thousand[899], fate="part broken")
    remote = remote_of(thousand)
    assert chosen(remote, parse_strategy("multiple-of 300"))[0] == 600
    assert reads(remote)["commits"] <= 3
    assert {int(key.split("/")[2]) % 300 for key in remote.store.asked("get", "/commits/")} == {0}
    assert lists(remote) == FOUR


def test_without_a_sound_multiple_one_more_commit_is_read(thousand):
    thousand[699] = replace(thousand[699], fate="bad")
    remote = remote_of(thousand)
    found = look_over(Stock(remote, LAYOUTS, HOUR_NS), Limits(select=parse_strategy("multiple-of 700")))
    assert found.choice.union.step == 1000
    assert found.choice.fallback == "no sound step is a multiple of 700: the newest is taken instead"
    assert found.skipped == ((700, "its commit is marked as bad"),)
    assert reads(remote)["commits"] == 2
    assert lists(remote) == sorted([*FOUR, "run/gc"])


def test_the_best_reads_each_commit_and_each_metric_once_and_one_more_list(thousand):
    thousand[799] = replace(thousand[799], tag=("commit", 0.25), loss=None)
    remote = remote_of(thousand)
    assert chosen(remote, parse_strategy("best loss min"))[0] == 800
    assert lists(remote) == sorted([*FOUR, "run/gc", "run/tags"])
    assert reads(remote) == {"commits": 1000, "parts": 1000, "chunks": 999}


@pytest.mark.parametrize(
    ("text", "step", "read", "more"),
    [
        ("newest", 1000, {"commits": 1, "parts": 1, "chunks": 0}, []),
        ("newest-committed", 1000, {"commits": 1, "parts": 1, "chunks": 0}, []),
        ("multiple-of 300", 900, {"commits": 1, "parts": 1, "chunks": 0}, []),
        ("multiple-of 1001", 1000, {"commits": 1, "parts": 1, "chunks": 0}, []),
        ("best loss min", 400, {"commits": 1000, "parts": 1000, "chunks": 1000}, ["run/tags"]),
    ],
)
def test_nodes_together_read_no_more_than_one_alone(thousand, text, step, read, more):
    remote, strategy = remote_of(thousand), parse_strategy(text)
    offers = [Offer(Place("run", remote.run_id, "job", 1), "a", "id", 1, Limits(select=strategy))]
    found = survey(History(remote, LAYOUTS, HOUR_NS).refresh(), offers, ()).candidates
    assert select(strategy, found).candidate.step == step
    assert reads(remote) == read
    assert set(lists(remote)) == {*FOUR, *more}
    assert len(lists(remote)) <= len(FOUR) + len(more) + 1, "the collections may be listed twice"


# -- what is said


def test_a_tag_counts_before_a_file_and_a_damaged_metric_puts_its_step_out():
    saved = [Past(n, EPOCH_NS + n * MINUTE, 30 * SECOND, loss=float(n)) for n in range(1, 5)]
    saved[0] = replace(saved[0], fate="chunk gone", loss=0.125)
    saved[3] = replace(saved[3], tag=("part", 0.5))
    remote = remote_of(saved)
    found = look_over(Stock(remote, LAYOUTS, HOUR_NS), Limits(select=parse_strategy("best loss min")))
    assert found.selected.candidate.step == 4
    assert found.selected.why == "loss = 0.5, the least of 3"
    ((step, why),) = found.skipped
    assert step == 1
    assert "/chunks/" in why


def test_max_step_bounds_a_strategy_and_a_step_by_its_number_needs_none():
    saved = [Past(n, EPOCH_NS + n * MINUTE, 30 * SECOND, loss=float(n)) for n in range(1, 9)]
    remote = remote_of(saved)
    assert chosen(remote, parse_strategy("multiple-of 3"), max_step=5)[0] == 3
    assert chosen(remote, parse_strategy("best loss"), max_step=5)[0] == 5
    assert chosen(remote, parse_strategy("multiple-of 6"), max_step=5) == (5, EPOCH_NS + 5 * MINUTE, True, True)
    assert chosen(remote, NEWEST, step=4)[0] == 4


def test_what_is_only_on_this_disk_is_refused_by_newest_committed_and_not_called_nothing():
    remote, here = remote_of([]), Past(30, EPOCH_NS, None)
    stock = Stock(remote, LAYOUTS, HOUR_NS, [local_of(here)])
    said = "step 30 is whole on this disk, and newest-committed takes nothing"
    with pytest.raises(PreflightError, match=said) as caught:
        choose(stock, Limits(select=parse_strategy("newest-committed")))
    assert caught.value.exit_code == 9
    assert chosen(remote, NEWEST, [here]) == (30, EPOCH_NS, False, False)


def test_a_commit_that_is_collected_while_the_best_is_looked_for_is_not_chosen():
    saved = [Past(n, EPOCH_NS + n * MINUTE, 30 * SECOND, loss=float(n)) for n in range(1, 4)]
    remote = remote_of(saved)
    before, looked = remote.condemned, []

    def condemned():
        looked.append(1)
        if len(looked) == 2:  # between reading all and taking the best
            remote.store.put("run/gc/000001/list", listed(saved[2]))
        return before()

    remote.condemned = condemned
    assert chosen(remote, parse_strategy("best loss"))[0] == 2


def listed(past):
    part = part_of(past.step, past.end_ns, past.loss)
    return render("run", RUN_ID, [keys.part_key("run", past.step, str(part.id))], keeps=[])
