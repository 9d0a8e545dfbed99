"""What a collection takes, what it leaves, and what stops it; the histories are in test_collect_histories.py."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest

from ckptsync.actions.retain import retain
from ckptsync.daemon.collector import collect_by_policy
from ckptsync.errors import CorruptObject, StoreError, UsageError
from ckptsync.model.parse import parse_part_id
from ckptsync.store import keys
from ckptsync.store.base import Capabilities
from ckptsync.sync.collect import CollectOptions, collect
from ckptsync.sync.collect_lists import render
from ckptsync.sync.history import mark_bad
from ckptsync.sync.notes import Pin, put_pin, put_tag
from ckptsync.sync.push import commit_ready
from ckptsync.sync.remote import Remote
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore

HOUR = 3600
NOW = 10**9  # added to the clock in ns: the lists below were put "long ago"


class Run:
    """A run in a store, node a's steps in it, and a collector whose clock can be moved."""

    def __init__(self, bench):
        self.bench, self.later_ns = bench, 0
        self.commits = {}

    def push(self, step, node="a", **shape):
        verl_step(self.bench.out(node), step, world=2, n=140_000, **shape)
        pushed = self.bench.push(self.bench.node(node), step)
        self.commits[step] = pushed.outcome.commit.digest
        return pushed

    def remote(self, store=None):
        run_id = json.loads(self.bench.store.get("run/run.json", max_size=1000))["run_id"]
        return Remote(store or self.bench.store, "run", run_id)

    def gc(self, *steps, grace_s=0, store=None, **how):
        """Collect, where retention gives up these steps."""
        import time  # noqa: PLC0415 - only here is time read

        remote = self.remote(store)
        remote.clock_offset_ns = lambda *_: 0
        going = {self.commits.get(step, step) for step in steps}
        now_ns = time.time_ns() + self.later_ns
        options = CollectOptions("a", grace_s * 10**9, now_ns=lambda: now_ns, **{"force": True, **how})
        return collect(remote, lambda _: frozenset(going), options)

    def later(self, hours):
        self.later_ns += hours * HOUR * 10**9

    def restores(self, step, picture):
        self.bench.pull(self.bench.node("c"), step=step)
        return picture(self.bench.out("c") / f"global_step_{step}") == picture(
            self.bench.out("a") / f"global_step_{step}"
        )


@pytest.fixture
def run(bench):
    made = Run(bench)
    for step in (10, 20, 30):
        made.push(step, seed=step)
    return made


def below(run, step):
    return run.bench.objects(f"run/steps/{step:012d}")


def test_space_comes_back_and_the_other_steps_stay(run, picture):
    before = {meta.key: meta.size for meta in run.bench.store.list("run/chunks")}
    run.remote().put_wanted(10, next(iter(run.remote().index(10).parts)))
    done = run.gc(10)
    after = {meta.key for meta in run.bench.store.list("run/chunks")}
    assert done.announced.steps == (10,)
    assert below(run, 10) == []
    assert done.freed == sum(size for key, size in before.items() if key not in after) > 0
    assert done.announced.bytes == done.freed
    assert run.restores(20, picture)
    assert run.restores(30, picture)
    assert run.gc().deleted == 0


def test_nothing_is_deleted_before_the_grace_is_over(run):
    done = run.gc(10, grace_s=24 * HOUR)
    assert (done.deleted, [each.number for each in done.waiting]) == (0, [1])
    objects = run.bench.objects()
    run.later(23)
    assert run.gc(10, grace_s=24 * HOUR).deleted == 0
    assert run.bench.objects() == objects, "and nothing is announced twice"
    run.later(2)
    done = run.gc(10, grace_s=24 * HOUR)
    assert (list(done.swept), below(run, 10)) == ([1], [])


def test_a_dry_run_says_the_same_and_changes_nothing(run):
    objects = run.bench.objects()
    planned = run.gc(10, dry_run=True)
    assert run.bench.objects() == objects
    assert planned.announced == run.gc(10).announced


RETAIN = """
[retention.local]
keep_last = 2
keep_best = { metric = "acc", mode = "max", count = 1 }
[retention.remote]
keep_last = 2
keep_best = { metric = "loss", mode = "min", count = 1 }
"""


@pytest.mark.parametrize("command", ["gc", "retain"])
def test_each_prefix_is_listed_once(run, command):
    """By the real policy: it needs pins, tags, marks and decisions, and the collector pins and marks as well."""
    counting = FaultyStore(run.bench.store)
    node = run.bench.node("a", store=counting, extra=RETAIN)
    put_pin(node.remote(), Pin(run.commits[20], 20, 0, ""))
    mark_bad(node.remote(), 30, run.commits[30], node="a", why="it diverged")
    counting.calls.clear()
    if command == "gc":
        assert collect_by_policy(node, grace_s=0, dry_run=True).announced.steps == (30,)
    else:
        found = retain(node, dry_run=True, with_remote=True, say=print)
        assert [row.verdict.keep for row in found.remote] == [True, True, False]
    lists = [key for operation, key in counting.calls if operation in ("list", "children")]
    assert sorted(lists) == sorted(set(lists))
    assert {f"run/{below}" for below in ("chunks", "steps", "gc", "pins", "bad", "attempts", "tags")} == set(lists)


def test_one_step_always_stays(run, picture):
    run.gc(10, 20, 30)
    assert [step for step in (10, 20, 30) if below(run, step)] == [30]
    assert run.restores(30, picture)


def test_more_than_half_takes_force(run):
    with pytest.raises(UsageError, match="2 of 3"):
        run.gc(10, 20, force=False)
    assert run.gc(10, 20, force=False, strict=False).announced.steps == (10,), "the daemon begins with the oldest"


def test_a_pin_during_the_grace_brings_the_step_back(run, picture):
    run.gc(10, grace_s=24 * HOUR)
    run.bench.store.put(keys.pin_key("run", run.commits[10]), b"")
    run.gc(grace_s=24 * HOUR)
    assert run.restores(10, picture)
    run.later(25)
    run.gc(grace_s=24 * HOUR)
    assert run.restores(10, picture)


def uncommitted(run, step):
    """A part whose upload ended before its ready mark."""
    verl_step(run.bench.out("a"), step, world=2, n=140_000, seed=step)
    dying = FaultyStore(run.bench.store, [Fault("put_new", "refused", "*/ready/*")])
    with pytest.raises(StoreError):
        run.bench.push(run.bench.node("a", store=dying), step)


def test_an_upload_that_died_is_collected_once_it_is_old_and_superseded(run):
    uncommitted(run, 40)
    assert run.gc(grace_s=24 * HOUR).announced is None, "it is the newest"
    run.push(50, seed=50)
    assert run.gc(grace_s=24 * HOUR).announced is None, "it may still be in progress"
    run.later(25)
    done = run.gc(grace_s=24 * HOUR)
    assert (done.announced.commits, done.announced.parts, done.announced.chunks > 0) == (0, 1, True)
    run.later(25)
    run.gc(grace_s=24 * HOUR)
    assert below(run, 40) == []


def test_what_people_said_of_a_step_goes_with_it(run):
    for step in (10, 20):
        put_tag(run.remote(), run.commits[step], "acc", 0.5)
    run.gc(10)
    assert run.bench.objects(kind="tags") == [keys.tag_key("run", run.commits[20], "acc")]


def test_a_condemned_part_that_is_ready_takes_another_push(run):
    """An upload that lasted longer than the grace is not committed by halves: it is made again under another name."""
    node = run.bench.node("a")
    save = run.bench.save(node, 30)
    (part,) = [key for key in below(run, 30) if "/parts/" in key]
    run.bench.store.put("run/gc/000001/list", render("run", run.remote().run_id, [part], []))
    assert commit_ready(node.remote(), node.saves, save, node.layout, window_ns=10**13) is None
    pushed = run.bench.push(node, 30)
    assert pushed.outcome.commit is not None
    assert pushed.part != parse_part_id(keys.unquote_name(part.rpartition("/")[2].removesuffix(".json.zst")))


def test_chunks_that_no_part_names_are_collected_and_foreign_objects_are_not(run):
    foreign = ["run/chunks/notes", "run/steps/readme", "run/chunks/aa/x", "other/chunks/aa/" + "a" * 64, "top"]
    for key in foreign:
        run.bench.store.put(key, b"not ours")
    orphan = keys.chunk_key("run", "a" * 64)
    run.bench.store.put(orphan, b"of a push that died")
    done = run.gc()
    assert (done.deleted, done.freed) == (1, 19)
    assert run.bench.store.head(orphan) is None
    assert all(run.bench.store.head(key) is not None for key in foreign)


def test_while_nothing_can_be_restored_no_commit_goes_and_the_rest_does(run):
    """Commits that were announced were all spared again, and everything else with them, at every collection."""
    for step, digest in run.commits.items():
        mark_bad(run.remote(), step, digest, node="a", why="it diverged")
    stray = keys.chunk_key("run", "0" * 64)
    run.bench.store.put(stray, b"of no part")
    done = run.gc(10, 20)
    assert (done.announced.steps, done.problems) == ((), [])
    assert run.bench.store.head(stray) is None
    assert len(run.bench.objects(kind="commits")) == 3


def test_a_refused_delete_is_reported_and_the_rest_goes_on(run):
    locked = FaultyStore(run.bench.store, [Fault("delete", "refused", "*/commits/*", times=9)])
    done = run.gc(10, store=locked)
    (line,) = done.refused
    assert "/commits/" in line
    assert [key for key in below(run, 10) if "/commits/" not in key] == []
    assert done.freed > 0
    assert run.gc().deleted == 1, "tried again by the next"


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        *((kind, f"run/{area}") for kind in ("before", "after") for area in ("chunks", "steps", "gc", "pins", "bad")),
        ("cut list", "run/chunks"),
        ("cut list", "run/steps"),
    ],
)
def test_a_failing_list_stops_everything(run, kind, prefix):
    objects = run.bench.objects()
    failing = FaultyStore(run.bench.store, [Fault("list", kind, prefix)])
    with pytest.raises(StoreError):
        run.gc(10, store=failing)
    assert run.bench.objects() == objects


class Short(FaultyStore):
    """Leaves objects out of its lists, and says nothing."""

    hidden = "/commits/"
    once = False

    def list(self, prefix):
        found = list(super().list(prefix))
        return iter([meta for meta in found if self.hidden not in meta.key])


def test_a_list_that_is_silently_short_stops_everything(run, picture):
    """Whatever a collection saw and kept is there, or condemned: else the list of steps is short."""
    run.gc(10)
    run.push(40, seed=40)
    objects = run.bench.objects()
    with pytest.raises(StoreError, match="short"):
        run.gc(20, store=Short(run.bench.store), force=False)
    assert run.bench.objects() == objects
    assert run.restores(30, picture)


def test_a_second_look_that_is_silently_short_stops_the_sweep(run, picture):
    run.gc(10, grace_s=24 * HOUR)
    run.later(25)
    with pytest.raises(StoreError, match="short"):
        run.gc(store=Short(run.bench.store), force=False)
    assert run.restores(30, picture)


@pytest.mark.parametrize("name", ["list", "sweep"])
def test_an_unreadable_collection_stops_everything(run, name):
    run.gc(10, grace_s=24 * HOUR)
    run.bench.store.put(f"run/gc/000001/{name}", b"garbage")
    objects = run.bench.objects()
    with pytest.raises(CorruptObject, match=f"gc/000001/{name}"):
        run.gc(20)
    assert run.bench.objects() == objects


@pytest.mark.parametrize("key", ["run/run.json", "other/chunks/aa/" + "a" * 64, "run/pins/x", "../x", 7])
def test_a_collection_may_name_nothing_else(run, key):
    run.bench.store.put("run/gc/000001/list", render("run", run.remote().run_id, [], []))
    import zstandard  # noqa: PLC0415 - to forge a document

    document = {"keeps": [], "keys": [key], "kind": "collection", "format": [1, 0], "run": "run"}
    document["run_id"] = run.remote().run_id
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    run.bench.store.put("run/gc/000001/list", zstandard.compress(data))
    with pytest.raises(CorruptObject, match="not the key"):
        run.gc()


def test_an_unreadable_part_keeps_all_chunks(run, picture):
    part = next(key for key in below(run, 30) if "/parts/" in key)
    whole = run.bench.store.get(part, max_size=10**6)
    run.bench.store.put(part, b"garbage")
    done = run.gc(10)
    assert "cannot be read" in done.problems[0]
    assert done.freed == 0
    run.bench.store.put(part, whole)
    assert run.restores(30, picture)
    run.gc()
    assert run.gc().problems == []
    assert run.restores(30, picture)


def test_an_unreadable_commit_keeps_the_parts_of_its_step(run, picture):
    commit = next(key for key in below(run, 20) if "/commits/" in key)
    whole = run.bench.store.get(commit, max_size=10**6)
    run.bench.store.put(commit, b"garbage")
    run.later(100)
    run.gc()
    run.bench.store.put(commit, whole)
    assert run.restores(20, picture)


def test_void_parts_of_a_standing_step_stay_as_witnesses(run, picture):
    """They tell where its saves begin and end; their chunks and marks go."""
    shutil.rmtree(run.bench.out("a") / "global_step_20")
    first = run.commits[20]
    run.push(20, seed=21)
    run.gc(first)
    names = below(run, 20)
    assert [sum(f"/{kind}/" in key for key in names) for kind in ("commits", "parts", "ready")] == [1, 2, 1]
    assert run.restores(20, picture)
    run.gc(20, 10)
    run.gc()
    assert below(run, 20) == []


def test_a_store_without_atomic_creation_is_not_collected(run):
    class Loose(FaultyStore):
        capabilities = Capabilities(atomic_create=False)

    with pytest.raises(StoreError, match="one wins"):
        run.gc(10, store=Loose(run.bench.store))


@pytest.mark.parametrize("kind", ["before", "after", "refused"])
@pytest.mark.parametrize("key", ["*/list", "*/sweep", "*/chunks/*", "*/commits/*"])
def test_whatever_fails_the_next_collection_goes_on(run, picture, kind, key):
    failing = FaultyStore(run.bench.store, [Fault("*", kind, key, times=1)])
    with contextlib.suppress(StoreError):
        run.gc(10, store=failing)
    run.gc(10)
    run.gc(10)
    assert below(run, 10) == []
    assert {key.rpartition("/")[2] for key in run.bench.objects(kind="chunks")} == {
        ref.key for part in parts(run, 20, 30) for ref in part.chunks
    }
    assert run.restores(20, picture)
    assert run.restores(30, picture)


def parts(run, *steps):
    remote = run.remote()
    return [part for step in steps for part in remote.parts(step, remote.index(step).parts).values()]


def test_what_is_too_much_for_one_list_goes_with_several(run, picture, monkeypatch):
    monkeypatch.setattr("ckptsync.sync.collect._CHUNKS_MAX", 2)
    done = run.gc(10)
    assert done.announced.lists == len(done.swept) > 1
    assert done.freed == done.announced.bytes
    assert below(run, 10) == []
    assert run.restores(20, picture)
    assert run.gc().announced is None
