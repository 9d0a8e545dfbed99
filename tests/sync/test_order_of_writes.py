"""Part, chunks, ready, commit: in that order, and stopped anywhere in between nobody sees a step that is not there."""

from __future__ import annotations

import pytest

from ckptsync.errors import CkptsyncError, StoreRefused
from ckptsync.store import keys
from ckptsync.sync.commit import check_commit
from ckptsync.sync.remote import Remote
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore

FOREVER = 10**6
KINDS = ("parts", "chunks", "ready", "commits")


def puts(store):
    """The keys that were asked to be written, in order, without the probe of the clock."""
    return [key for operation, key in store.calls if operation in ("put", "put_new") and "/probes/" not in key]


def kind(key):
    return next((part for part in key.split("/") if part in KINDS), key)


def promised(store):
    """What readers are told: every valid commit, after checking that it keeps its word."""
    remote = Remote(store, "run")
    commits = 0
    for step, index in remote.index_all().items():
        for digest in index.commits:
            union, why = check_commit(remote, remote.index(step), digest, LAYOUTS, remote.condemned(), window_ns=10**13)
            assert union is not None, why
            for part_id, part in union.parts.items():
                assert part_id in index.ready
                assert [ref for ref in part.chunks if store.head(keys.chunk_key("run", ref.key)) is None] == []
            commits += 1
    return commits


LAYOUTS: dict = {}


@pytest.fixture
def node_a(bench):
    verl_step(bench.out("a"), 20, world=2, n=140_000)
    node = bench.node("a")
    LAYOUTS.update(node.layout_of())
    return node


def test_a_push_writes_part_chunks_ready_commit(bench, node_a):
    recording = FaultyStore(bench.store)
    bench.push(bench.node("a", store=recording), 20, workers=4)
    order = [kind(key) for key in puts(recording)]
    assert order[:2] == ["run/run.json", "parts"]
    assert order[-2:] == ["ready", "commits"]
    assert set(order[2:-2]) == {"chunks"}
    assert len(order) >= 8


def stopped_pushes():
    """Every index of a put, and on both sides of it: not done, or done and never heard of."""
    return [(fault, nth) for nth in range(1, 10) for fault in ("refused", "after")]


@pytest.mark.parametrize(("fault", "nth"), stopped_pushes())
def test_stopped_at_any_put_nothing_half_is_seen_and_the_next_push_completes(bench, node_a, picture, fault, nth):
    dying = FaultyStore(
        bench.store,
        [
            Fault("put_new", fault, "run/[!r]*", nth=nth),  # all but run.json, which is there or not
            Fault("put_new", "refused", "run/[!r]*", nth=nth + 1, times=FOREVER),
        ],
    )
    node = bench.node("a", store=dying)
    try:
        bench.push(node, 20, workers=1)
    except CkptsyncError:
        stopped = True
    else:
        stopped = False
    acknowledged = [key for key in puts(dying)[1:] if kind(key) == "chunks"][: max(nth - 2, 0)]
    assert stopped == (nth <= len(puts(dying)) - 1)
    assert promised(bench.store) == (
        0 if stopped and kind(puts(dying)[nth]) != "commits" else len(bench.objects(kind="commits"))
    )

    recording = FaultyStore(bench.store)
    done = bench.push(bench.node("a", store=recording), 20)
    assert done.outcome.commit is not None
    assert promised(bench.store) == 1
    assert set(puts(recording)) & set(acknowledged) == set()
    bench.pull(bench.node("b"))
    assert picture(bench.out("b") / "global_step_20") == picture(bench.out("a") / "global_step_20")


def test_readers_are_never_ahead_of_the_writer(bench, node_a):
    """Looked at before every single put, the store promises nothing; only the last one changes that."""

    class Watched(FaultyStore):
        def put_new(self, key, data):
            assert promised(bench.store) == 0
            return super().put_new(key, data)

    bench.push(bench.node("a", store=Watched(bench.store)), 20, workers=1)
    assert promised(bench.store) == 1


def test_a_refused_commit_is_an_error_not_a_success(bench, node_a):
    refusing = FaultyStore(bench.store, [Fault("put_new", "refused", "*/commits/*")])
    with pytest.raises(StoreRefused):
        bench.push(bench.node("a", store=refusing), 20)
    refusing.assert_all_hit()
    assert bench.objects(kind="commits") == []


def test_unreadable_condemn_lists_stop_a_push(bench, node_a):
    """Who cannot know what is condemned must not rely on anything."""
    bench.store.put("run/gc/000001/list", b"{}")
    with pytest.raises(CkptsyncError, match=r"gc/000001/list"):
        bench.push(bench.node("a"), 20)
    assert bench.objects(kind="ready") == []
