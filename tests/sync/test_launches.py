"""Launches in the store: one list to ask, a sign of life a minute, and nothing that confuses rounds."""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import replace

import pytest

from ckptsync.errors import CorruptObject, StoreUnavailable
from ckptsync.model.launch import GRACE_NS, LaunchRecord, Span, Start, wrote
from ckptsync.model.rounds import Decision, Place
from ckptsync.store import keys
from ckptsync.store.objects import open_objects
from ckptsync.sync.attempt import Attempt
from ckptsync.sync.launches import Launches
from ckptsync.sync.remote import Remote

NS = 10**9


class Counting:
    """A store that counts requests, may fail, and has another clock, or none."""

    def __init__(self, inner):
        self.inner, self.requests, self.broken, self.timeless = inner, [], False, False
        self.clock, self.put_ns = time.time_ns, {}

    @property
    def url(self):
        return self.inner.url

    @property
    def capabilities(self):
        return self.inner.capabilities

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.requests.append((name, args[0]))
            if self.broken:
                raise StoreUnavailable("the store is away", where=args[0])
            found = getattr(self.inner, name)(*args, **kwargs)
            if name.startswith("put"):
                self.put_ns[args[0]] = self.clock()
            return map(self.dated, found) if name == "list" else found

        return call

    def dated(self, meta):
        return replace(meta, modified_ns=None if self.timeless else self.put_ns.get(meta.key, meta.modified_ns))

    def count(self, name):
        return sum(1 for each, _ in self.requests if each == name)


class World:
    def __init__(self, url):
        self.store = Counting(open_objects(url))
        self.remote = Remote(self.store, "run")
        self.remote.open_run("")
        self.now = time.time_ns()
        self.store.clock = lambda: self.now
        self.launches = Launches(self.remote, now_ns=lambda: self.now)
        self.launches._offsets = dict.fromkeys(("n0", "n1", "head", *(f"pod-{n}" for n in range(20))), 0)

    def launch(self, *, node="n0", attempt="job-1", **fields):
        record = LaunchRecord("run", self.remote.run_id, attempt, node, self.launches.now_ns(node), **fields)
        self.launches.put(record)
        return record

    def wait(self, seconds):
        self.now += int(seconds * NS)
        self.launches._said_at.clear()

    def beat(self, record, seconds):
        for _ in range(int(seconds // 60)):
            self.wait(60)
            self.launches.alive(record)


@pytest.fixture
def world(url):
    return World(url)


def test_a_launch_comes_back_and_wrote_what_was_saved_in_it(world):
    record = world.launch(argv=("python3", "-m", "m", "a=1"), settings={"a": 1}, explicit=frozenset({"a"}))
    world.beat(record, 300)
    saved = world.now
    world.wait(5)
    world.launches.ended(record, 1)
    assert world.launches.wrote(saved, "n0") == record
    assert world.launches.wrote(record.started_ns - 1, "n0") is None
    assert world.launches.wrote(world.now + 100 * NS, "n0") is None
    assert world.launches.newest("n0") == record
    assert world.launches.newest("n1") is None


def test_one_without_an_end_lived_until_its_grace(world):
    record = world.launch()
    world.beat(record, 120)
    assert world.launches.wrote(world.now + GRACE_NS, "n0") == record
    assert world.launches.wrote(world.now + GRACE_NS + 1, "n0") is None


def test_the_launch_that_wrote_it_and_not_the_newest(world):
    first = world.launch(attempt="job-1")
    world.beat(first, 180)
    saved = world.now
    world.launches.ended(first, 0)
    world.wait(600)
    second = world.launch(attempt="job-2")
    world.beat(second, 120)
    assert world.launches.wrote(saved, "n0") == first
    assert world.launches.wrote(world.now, "n0") == second
    assert world.launches.newest("n0") == second


def test_a_copy_of_the_bucket_with_later_times_changes_nothing(world):
    """Times that the store gives objects only spare reading."""
    first = world.launch(attempt="job-1")
    world.beat(first, 60)
    world.wait(1000)
    second = world.launch(attempt="job-2")
    world.beat(second, 60)
    saved = world.now
    world.wait(5000)
    assert world.launches.wrote(saved, "n0") == second
    world.store.put_ns = dict.fromkeys(world.store.put_ns, world.now)
    assert world.launches.wrote(saved, "n0") == second
    assert world.launches.wrote(first.started_ns + 200 * NS, "n0") is None
    world.store.timeless = True
    assert world.launches.wrote(saved, "n0") == second
    assert world.launches.wrote(first.started_ns + 200 * NS, "n0") is None


def _decide(world, attempt, number, outcome="nothing"):
    place = Place("run", world.remote.run_id, attempt, number)
    decision = Decision(place, "n1", 2, outcome, decided_ns=world.now)
    Attempt(world.remote, attempt, "n1", "id").decide(decision)


def test_a_start_of_another_attempt_ends_what_is_known(world):
    _decide(world, "job-1", 1)
    record = world.launch()
    world.beat(record, 300)
    assert world.launches.wrote(world.now, "n0") == record
    _decide(world, "job-2", 1, "refused")
    world.beat(record, 60)
    assert world.launches.wrote(world.now, "n0") == record
    world.wait(1)
    _decide(world, "job-2", 2)
    world.beat(record, 60)
    assert world.launches.wrote(world.now, "n0") is None


def test_rounds_of_the_attempt_are_found_as_before(world):
    _decide(world, "job-1", 3)
    record = world.launch()
    world.launches.alive(record)
    world.launches.note(record, "decision", {"x": 1})
    newest = Attempt(world.remote, "job-1", "n1", "id").newest()
    assert newest is not None
    assert newest.number == 3
    assert Attempt(world.remote, "job-2", "n1", "id").newest() is None
    assert world.launches.wrote(world.now, "n0") == record


def test_asking_costs_one_list_and_few_reads_however_many_launches_there_were(world):
    for number in range(12):
        record = world.launch(attempt=f"job-{number}")
        world.launches.alive(record)
        world.launches.ended(record, 0)
        world.wait(3600)
    record = world.launch(attempt="job-x")
    world.beat(record, 60)
    world.store.requests.clear()
    assert world.launches.wrote(world.now, "n0") == record
    assert world.store.count("list") == 1
    assert world.store.count("children") == 0
    assert world.store.count("get") <= 3
    listed = list(world.store.list(keys.attempts_prefix("run")))
    world.store.requests.clear()
    assert world.launches.wrote(world.now, "n0", objects=listed) == record
    assert world.store.count("list") == 0


@pytest.mark.parametrize("seed", range(30))
def test_what_is_not_read_would_not_have_changed_the_answer(seed):
    pick = random.Random(seed)
    world = World(f"memory://{uuid.uuid4().hex}")
    spans, starts = [], []
    for number in range(pick.randint(2, 7)):
        attempt = f"job-{number}"
        if pick.random() < 0.5:
            _decide(world, attempt, 1)
            starts.append(Start(attempt, world.now))
            world.wait(7)
        for node in pick.sample(["n0", "n1", "head"], pick.randint(1, 3)):
            begun = world.now
            record = world.launch(node=node, attempt=attempt)
            seen, ended = begun, None
            if pick.random() < 0.7:
                world.wait(pick.uniform(1, 400))
                world.launches.alive(record)
                seen = world.now
            if pick.random() < 0.5:
                world.wait(pick.uniform(0, 30))
                world.launches.ended(record, 1)
                ended = world.now
            spans.append(Span(begun, node, attempt, seen, ended))
            if pick.random() < 0.8:  # else the next one begins at the same moment
                world.wait(pick.uniform(0.1, 200))
    world.store.timeless = pick.random() < 0.3
    for _ in range(40):
        saved, node = pick.randint(spans[0].started_ns - NS, world.now + 200 * NS), pick.choice(["n0", "n1", "new"])
        expected, found = wrote(saved, node, spans, starts), world.launches.wrote(saved, node)
        assert (found and (found.started_ns, found.node)) == (expected and (expected.started_ns, expected.node))


def test_nodes_that_are_long_gone_are_not_asked(world):
    """Pods have other names at each start."""
    for number in range(20):
        old = world.launch(node=f"pod-{number}", attempt="job-0")
        world.launches.ended(old, 0)
    world.wait(3600)
    record = world.launch(node="head", attempt="job-1")
    world.beat(record, 60)
    world.store.requests.clear()
    assert world.launches.wrote(world.now, "pod-new") == record
    assert world.store.count("list") == 1
    assert world.store.count("get") <= 2


def test_what_was_begun_between_two_moments(world):
    before = world.now
    world.wait(10)
    record = world.launch(node="n1")
    world.wait(10)
    _decide(world, "job-2", 1)
    after = world.now
    assert world.launches.begun(before, after)
    assert world.launches.begun(record.started_ns, after)
    assert not world.launches.begun(after, after + 10**12)
    assert not world.launches.begun(before, record.started_ns - 1)
    assert world.launches.begun(before, record.started_ns)
    assert world.launches.begun(before, after, objects=world.launches.objects())
    assert not world.launches.begun(before, after, objects=())


def test_a_sign_of_life_is_given_once_a_minute(world):
    record = world.launch()
    world.store.requests.clear()
    for _ in range(5):
        world.launches.alive(record)
    assert world.store.count("put") == 1


def test_a_sign_of_life_that_cannot_be_given_stops_nothing(world, caplog):
    record = world.launch()
    world.store.broken = True
    world.launches.alive(record)
    assert "no sign of life" in caplog.text
    with pytest.raises(StoreUnavailable):
        world.launches.ended(record, 0)


def test_secrets_do_not_reach_the_store(world):
    record = world.launch(argv=("env", "HF_TOKEN=s3cr3t", "x"), settings={"wandb.api_key": "s3cr3t"})
    world.launches.note(record, "confirm", {"password": "s3cr3t", "loss": 0.25})
    stored = [world.store.inner.get(meta.key, max_size=10**6) for meta in world.store.inner.list("run")]
    assert stored
    assert not any(b"s3cr3t" in data for data in stored)
    assert world.launches.noted(record, "confirm") == {"password": "***", "loss": 0.25}


def test_notes_are_kept_with_their_launch(world):
    record = world.launch()
    assert world.launches.noted(record, "confirm") is None
    world.launches.note(record, "confirm", {"ok": False})
    world.launches.note(record, "confirm", {"ok": True, "step": 41})
    assert world.launches.noted(record, "confirm") == {"ok": True, "step": 41}
    for name in ("record", "ended", "Con firm", "../x", ""):
        with pytest.raises(ValueError, match="not a"):
            world.launches.note(record, name, {})


@pytest.mark.parametrize("name", ["record.json", "ended.json"])
@pytest.mark.parametrize("data", [b"", b"{}", b'{"kind":"launch"}', b"\xff" * 40])
def test_what_cannot_be_read_is_an_error_and_no_answer(world, name, data):
    record = world.launch()
    world.store.inner.put(keys.launch_key("run", "job-1", record.started_ns, "n0", name), data)
    with pytest.raises(CorruptObject, match="launch"):
        world.launches.wrote(world.now, "n0")


@pytest.mark.parametrize("data", [b"", b"soon", b"9" * 40, b"-1", "²".encode()])
def test_a_sign_of_life_that_says_nothing_is_none(world, data):
    record = world.launch()
    world.store.inner.put(keys.launch_key("run", "job-1", record.started_ns, "n0", "alive"), data)
    assert world.launches.wrote(record.started_ns + GRACE_NS + 1, "n0") is None


def test_foreign_objects_are_not_ours_to_judge(world):
    record = world.launch()
    for key in (
        "run/attempts/job-1/launches/x/record.json",
        f"run/attempts/job-1/launches/{record.started_ns + 9:020d}@n0/alive",  # its record never came
        f"run/attempts/job-1/launches/{record.started_ns + 9}@n0/record.json",
        "run/attempts/job-1/launches/decision.json",
        "run/attempts/other/decision.json",
    ):
        world.store.inner.put(key, b"x")
    assert world.launches.wrote(world.now, "n0") == record
    assert world.launches.newest("n0") == record


def test_times_are_the_stores(url):
    remote = Remote(open_objects(url), "run")
    remote.open_run("")
    launches = Launches(remote, now_ns=lambda: time.time_ns() - 3600 * NS)
    assert abs(launches.now_ns("n0") - time.time_ns()) < 10 * NS
