"""The pipeline keeps to its threads and its budget, stops cleanly, and loses neither results nor errors."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.chunks.pool import run_bounded
from ckptsync.errors import Interrupted


def run(items, work, *, workers=4, budget=100, cost=lambda _: 1, stop=lambda: False, done=None, limit=None):
    run_bounded(items, work, workers=workers, budget_bytes=budget, cost=cost, stop=stop, done=done, limit=limit)


class Meter:
    """Work that counts what is in flight."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inside: list[int] = []
        self.most_threads = self.most_bytes = 0
        self.alone_when_large = True

    def work(self, item, budget=100):
        with self.lock:
            self.inside.append(item)
            self.most_threads = max(self.most_threads, len(self.inside))
            self.alone_when_large &= len(self.inside) == 1 or max(self.inside) <= budget
            if len(self.inside) > 1:
                self.most_bytes = max(self.most_bytes, sum(self.inside))
        threading.Event().wait(0.0005)
        with self.lock:
            self.inside.remove(item)
        return -item


@settings(deadline=None)
@given(costs=st.lists(st.integers(0, 130), max_size=25), workers=st.integers(1, 5))
def test_threads_and_bytes_in_flight_stay_within_their_limits(costs, workers):
    meter, results = Meter(), []
    run(costs, meter.work, workers=workers, cost=lambda c: c, done=lambda item, result: results.append((item, result)))
    assert meter.most_threads <= workers
    assert meter.most_bytes <= 100
    assert meter.alone_when_large
    assert sorted(results) == sorted((c, -c) for c in costs)


def test_work_really_runs_in_parallel():
    barrier = threading.Barrier(3)
    run(range(3), lambda _: barrier.wait(timeout=20), workers=3)


@settings(deadline=None)
@given(limits=st.lists(st.integers(-1, 6), min_size=1, max_size=20), workers=st.integers(1, 4))
def test_a_limit_that_changes_is_kept_and_never_stops_the_work(limits, workers):
    """What is in flight when the limit sinks may end; nothing new begins above it."""
    now, inside, lock, seen = [workers], [0], threading.Lock(), []

    def work(item):
        with lock:
            inside[0] += 1
            seen.append((inside[0], allowed[item]))
        threading.Event().wait(0.0005)
        with lock:
            inside[0] -= 1

    allowed = {}

    def items():
        for item in range(len(limits)):
            now[0] = limits[item]
            allowed[item] = max(1, min(workers, limits[item]))
            yield item

    run(items(), work, workers=workers, limit=lambda: now[0])
    assert sorted(allowed) == list(range(len(limits)))
    assert len(seen) == len(limits)
    assert all(count <= limit for count, limit in seen)


def test_items_are_taken_only_when_there_is_room():
    taken, seen = [], []
    in_hand, counted = threading.Event(), threading.Event()

    def items():
        for i in range(10):
            taken.append(i)
            if i == 3:  # three in flight, this one in hand
                in_hand.set()
            yield i

    def work(item):
        if item == 0:
            assert in_hand.wait(20)
            counted.wait(0.05)  # time in which a greedy pool would take more
            seen.append(len(taken))
            counted.set()
        assert counted.wait(20)

    run(items(), work, workers=3)
    assert seen == [4]
    assert taken == list(range(10))


def test_results_come_in_the_callers_thread():
    threads = set()
    run(range(5), lambda i: i, done=lambda *_: threads.add(threading.current_thread()))
    assert threads == {threading.current_thread()}


def test_the_first_error_stops_what_has_not_started_and_waits_for_what_runs():
    started, finished, reported = [], [], []
    failing = threading.Event()

    def work(item):
        started.append(item)
        if item == 1:
            failing.set()
            raise KeyError(item)
        assert failing.wait(20)
        finished.append(item)
        return item

    with pytest.raises(KeyError):
        run(itertools.count(), work, workers=2, done=lambda item, _: reported.append(item))
    assert set(finished) == set(started) - {1}
    assert set(reported) == set(finished)
    assert len(started) <= 4


def test_later_errors_do_not_hide_the_first():
    first_is_out = threading.Event()

    def work(item):
        if item == 1:
            assert first_is_out.wait(20)
            raise IndexError(item)

    def done(item, _):
        first_is_out.set()
        raise KeyError(item)

    with pytest.raises(KeyError):
        run(range(2), work, workers=2, done=done)


@pytest.mark.parametrize("where", ["done", "cost", "items"])
def test_errors_outside_of_work_wait_for_what_runs(where):
    finished = []

    def fail(*_):
        raise ZeroDivisionError

    def items():
        yield 1
        yield 2
        if where == "items":
            fail()
        yield 3

    def work(item):
        threading.Event().wait(0.01)
        finished.append(item)

    with pytest.raises(ZeroDivisionError):
        run(
            items(),
            work,
            cost=lambda item: fail() if (where, item) == ("cost", 3) else 1,
            done=fail if where == "done" else None,
        )
    assert set(finished) >= {1, 2}


def test_stop_lets_what_is_in_flight_end_and_report():
    stop = threading.Event()
    started, reported = [], []

    def work(item):
        started.append(item)
        if item == 5:
            stop.set()
        return item

    with pytest.raises(Interrupted):
        run(itertools.count(), work, workers=2, stop=stop.is_set, done=lambda item, _: reported.append(item))
    assert sorted(reported) == sorted(started)
    assert 5 in started


def test_stop_after_the_last_item_interrupts_nothing():
    stop = threading.Event()
    run([1], lambda _: stop.set(), stop=stop.is_set)
    assert stop.is_set()


def test_no_items_is_no_work():
    run([], pytest.fail)


@pytest.mark.parametrize("fails", [False, True])
def test_no_thread_outlives_the_call(fails):
    def work(item):
        if fails and item == 7:
            raise KeyError(item)

    before = set(threading.enumerate())
    try:
        run(range(20), work)
    except KeyError:
        assert fails
    assert set(threading.enumerate()) <= before
