"""The quick choice is the exhaustive one, and asks for no more than it needs."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from dated_saves import EPOCH_NS, FATES, HOUR_NS, LAYOUTS, SECOND, Past, decide, remote_of
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ckptsync.errors import NothingToResume
from ckptsync.model.rounds import Limits
from ckptsync.sync.choose import Stock, choose
from ckptsync.sync.commit import check_commit
from ckptsync.sync.remote import LATER_NS, READERS, Remote
from ckptsync.testing.checkpoints import verl_step


def chosen(remote: Remote, **options) -> str:
    try:
        found = choose(Stock(remote, LAYOUTS, HOUR_NS), Limits(**options))
    except NothingToResume:
        return ""
    return found.commit


def exhaustive(remote: Remote) -> str:
    """The same by reading everything, in no order."""
    found = []
    for index in remote.index_all().values():
        for digest in index.commits:
            union, _ = check_commit(remote, index, digest, LAYOUTS, remote.condemned(), window_ns=HOUR_NS)
            if union is not None:
                found.append((union.end_ns, len(union.files), digest))
    return max(found, default=(0, 0, ""))[2]


def pasts(lags):
    """Few steps and few seconds, so that numbers are saved again, roll back and tie."""
    ends = st.integers(0, 40).map(lambda n: EPOCH_NS + n * SECOND // 2)
    return st.lists(st.builds(Past, st.integers(1, 5), ends, lags, st.sampled_from(FATES)), max_size=12)


@settings(max_examples=150, deadline=None)
@given(pasts(st.one_of(st.none(), st.integers(-LATER_NS, 8 * SECOND), st.sampled_from([0, HOUR_NS]))))
def test_the_quick_choice_is_the_exhaustive_one(pasts):
    remote = remote_of(pasts)
    event("chosen" if exhaustive(remote) else "nothing")
    assert chosen(remote) == exhaustive(remote)


@settings(max_examples=60, deadline=None)
@given(pasts(st.just(0)), st.integers(-60, 60))
def test_times_that_a_copy_has_set_to_one_moment_are_seen_through(pasts, seconds):
    """Also to a moment before the saves ended: the first commit that is read shows that they prove nothing."""
    moment = EPOCH_NS + seconds * SECOND
    remote = remote_of([replace(past, lag_ns=moment - past.end_ns) for past in pasts])
    assert chosen(remote) == exhaustive(remote)


def test_of_many_steps_only_the_newest_is_read_and_one_list_is_asked_for():
    remote = remote_of([Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(300)])
    assert choose(Stock(remote, LAYOUTS, HOUR_NS), Limits()).union.step == 299
    assert sorted(remote.store.asked("list")) == ["run/attempts", "run/bad", "run/gc", "run/steps"]
    assert remote.store.asked("children") == []
    assert len(remote.store.asked("get", "/commits/")) == 1
    assert len(remote.store.asked("get", "/parts/")) == 1


def test_a_roll_back_is_newest_by_time_though_its_number_is_low():
    before = [Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(300)]
    remote = remote_of([*before, Past(7, EPOCH_NS + HOUR_NS * 24, 30 * SECOND)])
    found = choose(Stock(remote, LAYOUTS, HOUR_NS), Limits())
    assert (found.union.step, found.union.end_ns) == (7, EPOCH_NS + HOUR_NS * 24)
    assert len(remote.store.asked("get", "/commits/")) == 1


def test_a_broken_newest_commit_costs_the_next_ones_not_all():
    times = [Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(300)]
    remote = remote_of([*times[:-1], replace(times[-1], fate="part broken")])
    found = choose(Stock(remote, LAYOUTS, HOUR_NS), Limits())
    assert found.union.step == 298
    assert found.skipped[0][0] == 299
    assert len(remote.store.asked("get", "/commits/")) <= 3


def test_a_copied_bucket_costs_each_document_once():
    """A copy has new times only, in an order that says nothing."""
    copied_ns = EPOCH_NS + HOUR_NS * 1000
    count = 4 * READERS
    ends = [EPOCH_NS + step * 60 * SECOND for step in range(count)]
    remote = remote_of([Past(step, end, copied_ns - end + step % 7) for step, end in enumerate(ends)])
    assert choose(Stock(remote, LAYOUTS, HOUR_NS), Limits()).union.step == count - 1
    assert len(remote.store.asked("get", "/commits/")) == count
    assert len(remote.store.asked("get", "/parts/")) == count
    assert sorted(remote.store.asked("list")) == ["run/attempts", "run/bad", "run/gc", "run/steps"]


def test_a_step_by_its_number_lists_that_step_alone():
    remote = remote_of([Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(30)])
    assert choose(Stock(remote, LAYOUTS, HOUR_NS), Limits(step=3)).union.step == 3
    assert remote.store.asked("list", "steps") == ["run/steps/000000000003"]
    with pytest.raises(NothingToResume, match="step 3 cannot be restored"):
        choose(Stock(remote, LAYOUTS, HOUR_NS), Limits(step=3, max_step=2))
    for absent in (77, -1, 10**12):
        with pytest.raises(NothingToResume, match=f"step {absent} cannot be restored"):
            choose(Stock(remote, LAYOUTS, HOUR_NS), Limits(step=absent))


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_real_stores_date_a_commit_after_the_end_of_its_save(bench, scheme, request, tmp_path):
    """What the bound rests on."""
    bench.url = f"file://{tmp_path}/store"
    if scheme == "s3":
        request.getfixturevalue("s3_environ")
        bench.url = request.getfixturevalue("s3_server").url(uuid.uuid4().hex)
    verl_step(bench.out("n"), 20)
    node = bench.node("n")
    pushed = bench.push(node, 20)
    index = node.remote().index(20)
    (modified_ns,) = index.commits.values()
    assert modified_ns is not None
    assert pushed.outcome.union.end_ns <= modified_ns + LATER_NS


def test_a_slow_probe_of_the_clock_is_asked_again(bench):
    """A put that took 30 s says nothing about an offset of 5 s: it would make saves newer than they are."""
    remote = bench.node("n").remote()
    now_ns = remote.store.head(put_probe(remote)).modified_ns
    times = iter([now_ns - 20 * SECOND, now_ns + 10 * SECOND, now_ns, now_ns + SECOND // 100])
    assert remote.clock_offset_ns("n", lambda: next(times)) == 0
    assert next(times, None) is None


def test_a_store_that_stays_slow_is_asked_three_times_and_the_quickest_answer_counts(bench):
    remote = bench.node("n").remote()
    now_ns = remote.store.head(put_probe(remote)).modified_ns
    hour_ago = now_ns - HOUR_NS
    waits = (40, 10, 20)
    times = iter([t for wait in waits for t in (hour_ago, hour_ago + wait * SECOND)])
    offset_ns = remote.clock_offset_ns("n", lambda: next(times))
    assert abs(offset_ns - (HOUR_NS - 5 * SECOND)) < 4 * SECOND
    assert next(times, None) is None


def put_probe(remote: Remote) -> str:
    remote.store.put("run/probes/n", b"clock")
    return "run/probes/n"


def test_of_many_decisions_only_those_are_read_that_can_speak_against_the_newest_save():
    ends = [EPOCH_NS + step * 60 * SECOND for step in range(50)]
    remote = remote_of([Past(step, end, 30 * SECOND) for step, end in enumerate(ends)])
    for number, end in enumerate(ends[:-1]):
        decide(remote.store, number, end + 10 * SECOND, end)
    assert choose(Stock(remote, LAYOUTS, HOUR_NS), Limits()).union.step == 49
    assert remote.store.asked("get", "/attempts/") == []
    decide(remote.store, 99, ends[-1] + 40 * SECOND, ends[45])
    assert choose(Stock(remote, LAYOUTS, HOUR_NS), Limits()).union.step == 45
    assert len(remote.store.asked("get", "/attempts/")) < 10
    assert choose(Stock(remote, LAYOUTS, HOUR_NS), Limits(step=49)).union.step == 49
