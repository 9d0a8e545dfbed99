"""Nodes that pull together in one process: over a store that loses replies, with clocks that disagree."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from ckptsync.actions.launched import Launch
from ckptsync.actions.pull import PullOptions, pull_step
from ckptsync.actions.push import settle_local
from ckptsync.errors import StoreError
from ckptsync.store.base import Capabilities
from ckptsync.store.objects import open_objects
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync import agree
from ckptsync.sync.collect_lists import render
from ckptsync.sync.remote import Remote
from ckptsync.testing.checkpoints import age, verl_step
from ckptsync.testing.faulty import FaultyStore

NODES = ("a", "b", "c", "d")
WORLD = 8
SLOW_NS = 600 * 10**9
SHORT_S = 3.0


def save(bench, step, **how):
    """Two ranks on each node, the driver on the last one."""
    for number, name in enumerate(NODES):
        ranks = range(2 * number, 2 * number + 2)
        verl_step(bench.out(name), step, world=WORLD, ranks=ranks, driver=name == NODES[-1], **how)


def commit(bench, step):
    for name in NODES:
        outcome = bench.push(bench.node(name), step).outcome
    assert outcome.commit is not None


def pull(bench, attempt, nodes=NODES, *, stores=None, said=None, timeout_s=60.0, waiting=lambda _: None, **which):
    """All nodes at once; node -> result."""
    which = {"step": None, "max_step": None, **which}

    def one(name):
        threading.current_thread().name = name
        node = bench.node(name, store=stores[name] if stores else None)
        options = PullOptions(launch=Launch(len(nodes), attempt), timeout_s=timeout_s, waiting=waiting)
        tell = (said if said is not None else []).append
        with pull_step(node, dest=None, keep_newer=False, say=tell, options=options, **which) as planned:
            return planned.execute(lambda _: None)

    with ThreadPoolExecutor(len(nodes)) as pool:
        return dict(zip(nodes, pool.map(one, nodes), strict=True))


def test_one_decision_through_a_store_that_loses_every_fifth_reply(bench, url):
    """Nothing of the newest save is in the store when they begin: all have to upload, commit and decide."""
    bench.url = url
    save(bench, 20)
    commit(bench, 20)
    save(bench, 30, seed=3)
    faulty = {
        name: FaultyStore(open_objects(url), rates={"after": 0.2, "before": 0.05, "conflict": 0.2}, seed=number)
        for number, name in enumerate(NODES)
    }
    stores = {name: RetryingStore(store, attempts=60, sleep=lambda _: None) for name, store in faulty.items()}
    results = pull(bench, "job-1", stores=stores)
    assert {result.step for result in results.values()} == {30}
    assert len(bench.objects("run/steps/000000000030", "commits")) == 1
    assert len([key for key in bench.objects("run/attempts") if key.endswith("decision.json")]) == 1
    assert len(bench.objects("run/attempts", "done")) == len(NODES)
    assert all(store.hits for store in faulty.values())


@pytest.fixture
def slow_clock(monkeypatch):
    """The clock of node a is ten minutes slow, the store's and the others' are right."""

    def offset(_, node, *__):
        return SLOW_NS if node == "a" else 0

    def now_ns():
        return time.time_ns() - (SLOW_NS if threading.current_thread().name == "a" else 0)

    monkeypatch.setattr(Remote, "clock_offset_ns", offset)
    clock = SimpleNamespace(time_ns=now_ns, sleep=time.sleep, monotonic=time.monotonic)
    monkeypatch.setattr(agree, "time", clock)


@pytest.mark.usefixtures("slow_clock")
@pytest.mark.parametrize("alone", ["a", "b"])
def test_clocks_ten_minutes_apart_change_nothing_but_a_warning(bench, alone):
    """`alone` decides for a roll-back before the others come, by its own clock."""

    def written(step, seconds_ago, **how):
        save(bench, step, **how)
        for name in NODES:
            age(bench.out(name) / f"global_step_{step}", seconds_ago + (600 if name == "a" else 0))

    for step, ago in ((80, 500), (120, 400)):
        written(step, ago)
        commit(bench, step)
    said = []
    first = pull(bench, "job-1", (alone,), said=said, step=80)
    assert [result.step for result in first.values()] == [80]
    assert any("clock is 10m behind the store's" in line for line in said) == (alone == "a")
    results = pull(bench, "job-2")
    assert {result.step for result in results.values()} == {80}, "not back to 120"
    written(90, -60, seed=9)
    results = pull(bench, "job-3")
    assert {result.step for result in results.values()} == {90}


def rolled_back(bench):
    """Back from 120 to 80, and the training dies before it has saved anything; then it goes on to 90."""
    for step in (80, 120):
        save(bench, step)
        commit(bench, step)
    pull(bench, "job-1", step=80)
    again = {result.step for result in pull(bench, "job-2").values()}
    save(bench, 90, seed=9)
    return again, {result.step for result in pull(bench, "job-3").values()}


def test_after_a_roll_back_nobody_returns_to_what_was_left(bench):
    assert rolled_back(bench) == ({80}, {90})
    for name in NODES:
        assert not (bench.out(name) / "global_step_120").exists()


def test_without_the_rule_the_run_would_return_to_what_was_left(bench, monkeypatch):
    """The control."""
    monkeypatch.setattr("ckptsync.sync.history.superseded", lambda *_: False)
    again, _ = rolled_back(bench)
    assert again == {120}


def test_a_commit_that_cannot_be_restored_any_more_makes_a_new_round(bench):
    """A collection condemns what was decided for, before the second node has come."""
    for step in (80, 120):
        save(bench, step)
        commit(bench, step)
    node = bench.node("a")
    together = PullOptions(launch=Launch(2, "job-1"), timeout_s=0.5)
    with pull_step(node, step=None, max_step=None, dest=None, keep_newer=False, say=str, options=together) as planned:
        assert planned.plan.choice.union.step == 120  # killed before it has restored anything
    (commit_key,) = bench.objects("run/steps/000000000120", "commits")
    remote = node.remote()
    condemned = render("run", remote.run_id, [commit_key], keeps=[])
    bench.store.put("run/gc/000001/list", condemned)
    said = []
    results = pull(bench, "job-1", ("a", "b"), said=said)
    assert {result.step for result in results.values()} == {80}
    assert all("/000002/" in key for key in bench.objects("run/attempts", "done"))


def test_a_store_without_atomic_creation_cannot_be_agreed_in(bench):
    class Loose(FaultyStore):
        capabilities = Capabilities(atomic_create=False)

    save(bench, 20)
    commit(bench, 20)
    with pytest.raises(StoreError, match="does not promise that one wins") as caught:
        pull(bench, "job-1", ("a",), stores={"a": Loose(bench.store)})
    assert caught.value.exit_code == 6


def test_a_node_that_still_verifies_is_waited_for_however_long_it_takes(bench, monkeypatch):
    """Its offer comes after the others' time would have been up."""
    monkeypatch.setattr("ckptsync.sync.attempt._PROGRESS_S", 0.0)
    save(bench, 20)
    commit(bench, 20)
    save(bench, 30, seed=3)
    waited = threading.Event()
    before = settle_local

    def slowly(local, *, beat, **options):
        if local.setup.identity.node == "a":
            deadline = time.monotonic() + 60
            while not waited.is_set():  # until another node would have given up
                beat()
                time.sleep(0.05)
                assert time.monotonic() < deadline
        return before(local, beat=beat, **options)

    monkeypatch.setattr("ckptsync.actions.pull.settle_local", slowly)
    begun = time.monotonic()

    def waiting(_):
        if time.monotonic() > begun + 2 * SHORT_S:
            waited.set()

    results = pull(bench, "job-1", timeout_s=SHORT_S, waiting=waiting)
    assert waited.is_set()
    assert {result.step for result in results.values()} == {30}
