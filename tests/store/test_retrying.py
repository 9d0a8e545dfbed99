"""Lost replies, conflicts, and giving up: nothing is reported that is not so."""

from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptsync.errors import CorruptObject, Interrupted, KeyMissing, StoreError, StoreRefused, StoreUnavailable
from ckptsync.store.objects import open_objects
from ckptsync.store.retrying import RetryingStore
from ckptsync.testing.clock import FakeClock
from ckptsync.testing.faulty import Fault, FaultyStore


@pytest.fixture
def inner():
    return open_objects(f"memory://{uuid.uuid4().hex}")


def retrying(store, clock=None, **options):
    clock = clock or FakeClock()
    return RetryingStore(store, sleep=clock.sleep, clock=clock.monotonic, **options)


def test_a_lost_reply_to_a_create_is_found_to_be_success(inner):
    faulty = FaultyStore(inner, [Fault("put_new", "after")])
    assert retrying(faulty).put_new("run/a", b"mine") is True
    faulty.assert_all_hit()
    assert [operation for operation, _ in faulty.calls] == ["put_new", "get"]


def test_a_create_that_never_arrived_is_sent_again(inner):
    faulty = FaultyStore(inner, [Fault("put_new", "before"), Fault("put_new", "conflict", nth=2)])
    assert retrying(faulty).put_new("run/a", b"mine") is True
    faulty.assert_all_hit()
    assert inner.get("run/a", max_size=10) == b"mine"


@pytest.mark.parametrize("theirs", [b"theirs", b"much longer than mine", b""])
def test_a_create_that_lost_is_found_to_have_lost(inner, theirs):
    inner.put("run/a", theirs)
    faulty = FaultyStore(inner, [Fault("put_new", "after"), Fault("get", "before")])
    assert retrying(faulty).put_new("run/a", b"mine") is False
    faulty.assert_all_hit()
    assert inner.get("run/a", max_size=100) == theirs


def test_a_create_that_is_simply_late_needs_no_read(inner):
    inner.put("run/a", b"mine")
    faulty = FaultyStore(inner)
    assert retrying(faulty).put_new("run/a", b"mine") is False
    assert faulty.calls == [("put_new", "run/a")]


class Landing(FaultyStore):
    """The first create lands only after it was read back as absent."""

    def get(self, key, *, max_size):
        try:
            return super().get(key, max_size=max_size)
        except KeyMissing:
            self._inner.put_new(key, b"mine")
            raise


def test_a_create_that_lands_late_is_still_ours(inner):
    store = Landing(inner, [Fault("put_new", "before")])
    assert retrying(store).put_new("run/a", b"mine") is True


def test_nothing_is_retried_that_cannot_help(inner):
    faulty = FaultyStore(inner, [Fault("put", "refused")])
    with pytest.raises(StoreRefused):
        retrying(faulty).put("run/a", b"x")
    with pytest.raises(KeyMissing):
        retrying(faulty).get("run/b", max_size=1)
    inner.put("run/c", b"xx")
    with pytest.raises(CorruptObject):
        retrying(faulty).get("run/c", max_size=1)
    assert len(faulty.calls) == 3


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("put", lambda store: store.put("run/a", b"x")),
        ("get", lambda store: store.get("run/a", max_size=9)),
        ("head", lambda store: store.head("run/a")),
        ("list", lambda store: list(store.list("run"))),
        ("children", lambda store: store.children("")),
        ("delete", lambda store: store.delete("run/a")),
    ],
)
def test_every_request_is_retried_then_given_up_with_cause_and_remedy(inner, operation, call):
    inner.put("run/a", b"x")
    call(retrying(FaultyStore(inner, [Fault(operation, "before", times=2)]), attempts=3))
    faulty = FaultyStore(inner, [Fault(operation, "before", times=3)])
    with pytest.raises(StoreUnavailable, match="3 attempts") as caught:
        call(retrying(faulty, attempts=3))
    assert isinstance(caught.value.__cause__, StoreUnavailable)
    assert caught.value.remedy
    faulty.assert_all_hit()


def test_a_list_that_breaks_off_starts_again_and_is_never_partial(inner):
    names = [f"run/{number}" for number in range(9)]
    for name in names:
        inner.put(name, b"")
    faulty = FaultyStore(inner, [Fault("list", "cut list", times=2)])
    assert [meta.key for meta in retrying(faulty).list("run")] == names
    faulty.assert_all_hit()
    faulty = FaultyStore(inner, [Fault("list", "cut list", times=9)])
    with pytest.raises(StoreUnavailable):
        retrying(faulty, attempts=2).list("run")


def test_pauses_grow_jitter_and_are_capped(inner):
    clock = FakeClock()
    faulty = FaultyStore(inner, [Fault("head", "before", times=5)])
    store = retrying(faulty, clock, attempts=6, base_s=0.1, cap_s=0.4, random=lambda: 0.5)
    store.head("run/a")
    assert clock.slept == pytest.approx([0.05, 0.1, 0.2, 0.2, 0.2])


def test_no_attempt_begins_after_the_deadline(inner):
    clock = FakeClock()
    faulty = FaultyStore(inner, [Fault("head", "before", times=100)])
    store = retrying(faulty, clock, attempts=100, base_s=10, cap_s=10, deadline_s=35, random=lambda: 0.999)
    with pytest.raises(StoreUnavailable):
        store.head("run/a")
    assert len(faulty.calls) == 4
    assert sum(clock.slept) <= 35


def test_a_stop_ends_the_waiting(inner):
    clock = FakeClock()
    faulty = FaultyStore(inner, [Fault("head", "before", times=100)])
    store = retrying(faulty, clock, base_s=60, cap_s=60, random=lambda: 0.9, stopped=lambda: len(clock.slept) >= 3)
    with pytest.raises(Interrupted):
        store.head("run/a")
    assert sum(clock.slept) < 2


@pytest.mark.parametrize("seed", range(3))
def test_eight_writers_among_lost_replies_and_conflicts_agree_on_one_value_without_false_failure(inner, seed):
    faults = [FaultyStore(inner, rates={"after": 0.2, "conflict": 0.2}, seed=100 * seed + n) for n in range(8)]
    stores = [retrying(faulty, attempts=30) for faulty in faults]
    barrier = threading.Barrier(8)

    def write(writer):
        won = []
        for number in range(25):
            barrier.wait()
            won.append(stores[writer].put_new(f"run/{number}", f"writer {writer}".encode()))
        return won

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(write, range(8)))
    for number in range(25):
        value = inner.get(f"run/{number}", max_size=100)
        winners = [writer for writer in range(8) if outcomes[writer][number]]
        assert [f"writer {writer}".encode() for writer in winners] == [value]
    for faulty in faults:
        faulty.assert_all_hit()


def test_equal_writers_all_succeed_or_see_their_own_bytes(inner):
    stores = [retrying(FaultyStore(inner, rates={"after": 0.5}, seed=n), attempts=60) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda store: [store.put_new(f"run/{n}", b"same") for n in range(20)], stores))
    for number in range(20):
        assert any(outcome[number] for outcome in won)
        assert inner.get(f"run/{number}", max_size=9) == b"same"


def test_it_is_transparent(inner):
    store = retrying(inner)
    assert (store.url, store.capabilities) == (inner.url, inner.capabilities)
    assert inner.url in repr(store)


def test_faults_happen_as_planned(inner):
    inner.put("run/a", b"12345678")
    plan = [Fault("get", "wrong bytes"), Fault("get", "truncated", nth=2), Fault("get", "missing", nth=3)]
    faulty = FaultyStore(inner, [*plan, Fault("*", "full", key="run/full*")])
    assert faulty.get("run/a", max_size=8) == b"1234u678"
    assert faulty.get("run/a", max_size=8) == b"1234"
    with pytest.raises(KeyMissing):
        faulty.get("run/a", max_size=8)
    assert faulty.get("run/a", max_size=8) == b"12345678"
    with pytest.raises(AssertionError, match="full"):
        faulty.assert_all_hit()
    with pytest.raises(Exception, match="no space"):
        faulty.put("run/full/x", b"")
    faulty.assert_all_hit()


def test_a_delay_is_only_a_delay(inner):
    clock = FakeClock()
    faulty = FaultyStore(inner, [Fault("put", "delay", delay_s=7)], sleep=clock.sleep)
    faulty.put("run/a", b"x")
    assert clock.slept == [7]
    assert inner.head("run/a") is not None


def test_the_random_faults_of_a_seed_repeat(inner):
    def run():
        faulty = FaultyStore(inner, rates={"before": 0.3, "cut list": 0.3}, seed=4)
        for _ in range(30):
            with contextlib.suppress(StoreError):
                list(faulty.list("run"))
        return faulty.hits

    first = run()
    assert first == run()
    assert {kind for kind, _, _ in first} == {"before", "cut list"}
