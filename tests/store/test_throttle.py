"""The limit holds over any stretch of time, whatever is sent, by however many threads."""

from __future__ import annotations

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.config import parse
from ckptsync.errors import Interrupted
from ckptsync.store.objects import open_objects
from ckptsync.store.retrying import RetryingStore
from ckptsync.store.throttle import Throttle, ThrottledStore
from ckptsync.store.traffic import Traffic
from ckptsync.stores import open_store
from ckptsync.testing.faulty import Fault, FaultyStore

RATE = 1000


class Time:
    """A clock that only sleeping moves; with many threads, to the latest time that any of them sleeps to."""

    def __init__(self):
        self.now = 0.0
        self.lock = threading.Lock()

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        with self.lock:
            self.now += seconds


class Recorder:
    """The store below: when did what begin."""

    url = "record://"

    def __init__(self, clock):
        self.clock, self.sent = clock, []

    def put_new(self, _key, data):
        self.sent.append((self.clock(), len(data)))
        return True

    def put(self, key, data):
        self.put_new(key, data)


@given(steps=st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10)), min_size=1, max_size=30), new=st.booleans())
def test_in_no_stretch_of_time_more_than_the_rate_and_one_object(steps, new):
    clock = Time()
    below = Recorder(clock)
    store = ThrottledStore(below, Throttle(RATE, clock=clock, sleep=clock.sleep))
    for size, idle in steps:
        (store.put_new if new else store.put)("k", bytes(size))
        clock.now += idle
    for i, (begun, _) in enumerate(below.sent):
        for j in range(i, len(below.sent)):
            sizes = [size for _, size in below.sent[i : j + 1]]
            assert sum(sizes) <= RATE * (below.sent[j][0] - begun) + sizes[-1] + 1e-6


def test_the_limit_is_used_up_and_the_first_object_waits_for_nothing():
    clock = Time()
    below = Recorder(clock)
    store = ThrottledStore(below, Throttle(RATE, clock=clock, sleep=clock.sleep))
    for _ in range(10):
        store.put_new("k", bytes(500))
    assert [begun for begun, _ in below.sent] == pytest.approx([0.5 * i for i in range(10)])


def test_threads_share_one_limit_and_their_first_chunks_are_no_burst():
    """With a real clock, but nothing is timed: a start before its turn is what would be wrong."""
    import time  # noqa: PLC0415 - a real one, for once

    below = Recorder(time.monotonic)
    store = ThrottledStore(below, Throttle(100_000))
    sizes = [random.Random(i).randrange(1, 4000) for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda size: store.put_new("k", bytes(size)), sizes))
    begun = sorted(below.sent)
    for j in range(len(begun)):
        before = sum(size for _, size in begun[:j])
        assert before <= 100_000 * (begun[j][0] - begun[0][0]) + 4000  # recorded after the turn came, perhaps later


def test_stopping_ends_the_wait_and_nothing_is_sent():
    clock, stopped = Time(), []

    def sleep(seconds):
        clock.sleep(seconds)
        stopped.append(True)

    below = Recorder(clock)
    store = ThrottledStore(below, Throttle(RATE, clock=clock, sleep=sleep), stopped=lambda: bool(stopped))
    store.put("k", bytes(100 * RATE))
    with pytest.raises(Interrupted, match="bandwidth"):
        store.put("k", b"x")
    assert len(below.sent) == 1
    assert clock.now < 1


def test_what_is_sent_again_counts_again():
    clock, traffic = Time(), Traffic()
    memory = open_objects(f"memory://{uuid.uuid4().hex}")
    faulty = FaultyStore(memory, [Fault("put_new", "before", times=2)])
    throttled = ThrottledStore(faulty, Throttle(RATE, clock=clock, sleep=clock.sleep, traffic=traffic))
    store = RetryingStore(throttled, sleep=lambda _: None, traffic=traffic)
    assert store.put_new("key", bytes(RATE))
    assert clock.now == pytest.approx(2.0)
    assert (traffic.retries, traffic.throttled_s) == (2, pytest.approx(2.0))


def test_reading_is_free():
    clock = Time()
    memory = open_objects(f"memory://{uuid.uuid4().hex}")
    store = ThrottledStore(memory, Throttle(RATE, clock=clock, sleep=clock.sleep))
    store.put_new("a/key", bytes(50 * RATE))
    for _ in range(3):
        assert len(store.get("a/key", max_size=10**6)) == 50 * RATE
        assert store.head("a/key").size == 50 * RATE
        assert [meta.key for meta in store.list("a")] == ["a/key"]
        assert store.children("") == ("a",)
    store.delete("a/key")
    assert store.capabilities == memory.capabilities
    assert clock.now == 0


def test_the_configured_share_is_in_the_way_of_every_put(tmp_path):
    text = (
        f'[run]\noutput_dir = "{tmp_path}"\n[node]\ncount = 4\n'
        f'[upload]\nstore = "file://{tmp_path}/store"\nbandwidth_total = "4kB/s"\n'
    )
    traffic = Traffic()
    store = open_store(parse(text.encode(), str(tmp_path / "c.toml"), {}), lambda: True, traffic)
    store.put_new("first", bytes(1_000_000))
    with pytest.raises(Interrupted, match="bandwidth"):  # a quarter of an hour would have to be waited
        store.put("second", b"")
    assert 800 < traffic.throttled_s <= 1000
