"""Scrubbing finds damage, heals it from any node that has the bytes, and keeps others from what it cannot heal."""

from __future__ import annotations

import json

import pytest

from ckptsync.disk.scan import list_step
from ckptsync.errors import StoreError
from ckptsync.store import keys
from ckptsync.sync.collect_lists import render
from ckptsync.sync.history import mark_bad
from ckptsync.sync.pull import local_content
from ckptsync.sync.remote import Remote
from ckptsync.sync.restore import LocalContent
from ckptsync.sync.scrub import ScrubOptions, scrub
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore


@pytest.fixture
def pushed(bench):
    """Step 20 of node a is in the store."""
    verl_step(bench.out("a"), 20, world=2, n=140_000)
    return bench.push(bench.node("a"), 20)


def remote_of(bench, store=None):
    run_id = json.loads(bench.store.get("run/run.json", max_size=1000))["run_id"]
    return Remote(store or bench.store, "run", run_id)


def content_of(bench, name):
    """What a node's disk can give."""
    node, out = bench.node(name), bench.out(name)
    saves = [bench.save(node, 20)]
    listings = {save.part.name: list_step(str(out / save.part.name)) for save in saves}
    return local_content(saves, listings, str(out))


def damage(bench, how):
    key = bench.objects(kind="chunks")[1]
    if how == "missing":
        bench.store.delete(key)
    else:
        blob = bytearray(bench.store.get(key, max_size=10**7))
        blob[-1] ^= 1
        bench.store.put(key, bytes(blob[:-1] if how == "truncated" else blob))
    return key


def test_what_is_right_stays_as_it_is(bench, pushed):
    objects = bench.objects()
    found = scrub(remote_of(bench), LocalContent(), ScrubOptions("b"))
    assert (found.commits, found.chunks, found.bad, found.healed) == (1, len(bench.objects(kind="chunks")), [], [])
    assert bench.objects() == objects


@pytest.mark.parametrize("how", ["missing", "flipped", "truncated"])
def test_a_damaged_chunk_is_put_again_from_this_disk(bench, pushed, picture, how):
    key = damage(bench, how)
    found = scrub(remote_of(bench), content_of(bench, "a"), ScrubOptions("a"))
    assert (found.healed, found.bad) == ([key], [])
    bench.pull(bench.node("c"))
    assert picture(bench.out("c") / "global_step_20") == picture(bench.out("a") / "global_step_20")


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_what_cannot_be_healed_here_is_marked_and_healed_by_the_node_that_can(bench, pushed, how):
    damage(bench, how)
    digest = pushed.outcome.commit.digest
    found = scrub(remote_of(bench), LocalContent(), ScrubOptions("b"))
    assert [each[:2] for each in found.bad] == [(20, digest)]
    assert bench.store.head(keys.bad_key("run", digest)) is not None
    found = scrub(remote_of(bench), content_of(bench, "a"), ScrubOptions("a", sample=0.0))
    assert (len(found.healed), found.restored, found.bad) == (1, [(20, digest)], [])
    assert bench.store.head(keys.bad_key("run", digest)) is None


def test_a_role_that_may_not_delete_heals_and_says_that_the_mark_stays(bench, pushed):
    damage(bench, "flipped")
    scrub(remote_of(bench), LocalContent(), ScrubOptions("b"))
    refusing = FaultyStore(bench.store, [Fault("delete", "refused", "*/bad/*")])
    found = scrub(remote_of(bench, refusing), content_of(bench, "a"), ScrubOptions("a"))
    assert (len(found.healed), found.bad, found.restored) == (1, [], [])
    assert ["still marked as bad" in line for line in found.refused] == [True]


def test_the_mark_of_somebody_else_stays(bench, pushed):
    digest = pushed.outcome.commit.digest
    mark_bad(remote_of(bench), 20, digest, node="x", why="it crashed three times")
    found = scrub(remote_of(bench), content_of(bench, "a"), ScrubOptions("a"))
    assert found.restored == []
    assert bench.store.head(keys.bad_key("run", digest)) is not None


def test_what_is_collected_meanwhile_is_not_marked(bench, pushed):
    """A collection announces the commit and takes a chunk while the scrub reads."""
    (commit,) = bench.objects(kind="commits")

    class Collecting(FaultyStore):
        def get(self, key, **how):
            if "/chunks/" in key and not bench.objects(kind="gc"):
                bench.store.put(keys.list_key("run", 1), render("run", remote.run_id, [commit], []))
                damage(bench, "missing")
            return super().get(key, **how)

    remote = remote_of(bench, Collecting(bench.store))
    found = scrub(remote, LocalContent(), ScrubOptions("b"))
    assert (found.commits, found.bad, bench.objects(kind="bad")) == (1, [], [])


@pytest.mark.parametrize("kind", ["parts", "commits"])
def test_a_document_that_cannot_be_read_is_found(bench, pushed, kind):
    (key,) = bench.objects(kind=kind)
    bench.store.put(key, b"garbage")
    found = scrub(remote_of(bench), content_of(bench, "a"), ScrubOptions("a"))
    assert [each[:2] for each in found.bad] == [(20, pushed.outcome.commit.digest)]


def test_a_store_that_fails_says_nothing_about_a_chunk(bench, pushed):
    failing = FaultyStore(bench.store, [Fault("get", "before", "*/chunks/*")])
    with pytest.raises(StoreError):
        scrub(remote_of(bench, failing), LocalContent(), ScrubOptions("b"))
    assert bench.objects(kind="bad") == []


def test_a_sample_and_a_budget_read_less(bench, pushed):
    verl_step(bench.out("a"), 40, world=2, n=140_000, seed=4)
    bench.push(bench.node("a"), 40)
    whole = scrub(remote_of(bench), LocalContent(), ScrubOptions("b"))
    rolls = iter([0.0, 0.1, *[0.01, 0.99] * 1000])
    some = scrub(remote_of(bench), LocalContent(), ScrubOptions("b", sample=0.5, random=lambda: next(rolls)))
    assert 0 < some.chunks < whole.chunks
    one = scrub(remote_of(bench), LocalContent(), ScrubOptions("b", budget_bytes=1))
    assert (one.commits, whole.commits) == (1, 2)
