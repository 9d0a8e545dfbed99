"""The daemon's collections: begun when it is time, on their own thread, and only where a policy asks for them."""

from __future__ import annotations

import threading

import pytest

from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.daemon import collector as module
from ckptsync.daemon.collector import Collector
from ckptsync.errors import StoreUnavailable
from ckptsync.sync.collect import Collected
from ckptsync.sync.scrub import Scrubbed

CONFIG = '[run]\nname = "run"\noutput_dir = "{home}/out"\nstate_dir = "{home}/state"\n'


@pytest.fixture
def collector(tmp_path):
    """Makes one whose time has come."""

    def make(policy="keep_last = 2"):
        text = CONFIG.format(home=tmp_path) + f"[retention.remote]\n{policy}\n"
        made = Collector(open_node(parse(text.encode(), str(tmp_path / "c.toml"), {})))
        made._next = 0.0
        return made

    (tmp_path / "out").mkdir()
    return make


def test_nothing_is_collected_without_a_policy(collector, monkeypatch):
    monkeypatch.setattr(module, "collect_by_policy", pytest.fail)
    made = collector('grace = "1h"')
    assert made.tick() == []
    assert made._thread is None


def test_a_pass_does_not_wait_and_begins_no_second_one(collector, monkeypatch):
    go, begun = threading.Event(), []

    def slow(node, **options):
        begun.append(options)
        go.wait()
        return Collected(refused=["locked"])

    monkeypatch.setattr(module, "collect_by_policy", slow)
    made = collector()
    assert (made.tick(), made.tick()) == ([], [])
    go.set()
    assert made.stop(60)
    (options,) = begun
    assert (options["grace_s"], options["strict"]) == (86400.0, False)
    assert made.tick() == ["not deleted: locked"]
    assert len(begun) == 1, "the next one has its own time"


def test_a_store_that_fails_is_a_problem_not_the_end(collector, monkeypatch):
    def fail(node, **options):
        raise StoreUnavailable("request failed", where="s3://x")

    monkeypatch.setattr(module, "collect_by_policy", fail)
    made = collector()
    made.tick()
    assert made.stop(60)
    assert made.tick() == ["the store is not looked after: request failed: s3://x"]


def test_a_daemon_that_stops_ends_it(collector, monkeypatch):
    begun = threading.Event()

    def endless(node, *, stop, **options):
        begun.set()
        while not stop():
            threading.Event().wait(0.01)
        return Collected()

    monkeypatch.setattr(module, "collect_by_policy", endless)
    made = collector()
    made.tick()
    begun.wait()
    assert made.stop(60)


def test_scrubbing_has_its_own_switch_and_an_hours_share_of_the_budget(collector, monkeypatch):
    asked = []

    def found(node, *, budget_bytes, stop):
        asked.append(budget_bytes)
        return Scrubbed(healed=["run/chunks/x"], bad=[(20, "c", "damaged chunk")])

    monkeypatch.setattr(module, "collect_by_policy", pytest.fail)
    monkeypatch.setattr(module, "scrub_by_node", found)
    made = collector('grace = "1h"\n[scrub]\nbytes_per_day = "24KiB"')
    made.tick()
    assert made.stop(60)
    assert asked == [1024]
    assert made.tick() == ["step 20 cannot be restored from the store: damaged chunk"]
