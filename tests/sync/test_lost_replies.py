"""Lost replies, conflicts and races: exactly one commit, and nobody is told of a failure that was none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptsync.store.objects import open_objects
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync.commit import try_commit
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import FaultyStore

WORLD = 8
NODES = ("a", "b", "c", "d")
COMMITTERS = 8


def unreliable(url, seed):
    """A store that loses every fifth reply, and more."""
    faulty = FaultyStore(open_objects(url), rates={"after": 0.2, "before": 0.05, "conflict": 0.4}, seed=seed)
    return faulty, RetryingStore(faulty, attempts=60, sleep=lambda _: None)


@pytest.mark.parametrize("seed", [1, 2])
def test_one_commit_whoever_writes_it_and_whatever_is_lost(bench, picture, url, seed):
    bench.url = url
    for rank, name in enumerate(NODES):
        mine = range(2 * rank, 2 * rank + 2)
        verl_step(bench.out(name), 20, world=WORLD, ranks=mine, driver=name == "a", n=140_000, tracker=False)
    (bench.out("a") / "global_step_20" / "data.pt").touch()
    stores = [unreliable(url, 100 * seed + number) for number in range(COMMITTERS)]
    nodes = [bench.node(NODES[n % len(NODES)], store=store) for n, (_, store) in enumerate(stores)]
    for node in nodes[: len(NODES)]:
        bench.save(node, 20)
    for node in nodes[len(NODES) :]:
        node.local.refresh()
    gate = threading.Barrier(COMMITTERS)

    def commit(number):
        node = nodes[number]
        gate.wait()
        if number < len(NODES):
            return bench.push(node, 20).outcome
        while True:  # without the others' parts there is nothing to commit yet
            outcome = try_commit(node.remote(), 20, node.layout, window_ns=node.window_ns)
            if outcome.commit is not None:
                return outcome

    with ThreadPoolExecutor(COMMITTERS) as pool:
        outcomes = list(pool.map(commit, range(COMMITTERS)))
    assert {kind for faulty, _ in stores for kind, _, _ in faulty.hits} == {"after", "before", "conflict"}

    commits = {key.rpartition("/")[2].removesuffix(".json") for key in bench.objects(kind="commits")}
    assert len(commits) == 1
    assert {outcome.commit.digest for outcome in outcomes if outcome.commit} == commits
    final = try_commit(bench.node("z").remote(), 20, nodes[0].layout, window_ns=nodes[0].window_ns)
    assert {final.commit.digest} == commits
    assert sorted(part.node for part in final.commit.parts) == list(NODES)

    bench.pull(bench.node("z"))
    back = picture(bench.out("z") / "global_step_20")
    for name in NODES:
        for path, seen in picture(bench.out(name) / "global_step_20").items():
            assert path in back
            assert back[path] == seen or not seen[2]  # of directories, one node's times can be right


@pytest.mark.parametrize("seed", range(2))
def test_a_push_through_an_unreliable_store_is_a_push(bench, picture, seed):
    verl_step(bench.out("a"), 20, world=2, n=140_000)
    faulty, store = unreliable(bench.url, seed)
    done = bench.push(bench.node("a", store=store), 20, workers=4)
    assert "after" in {kind for kind, _, _ in faulty.hits}
    assert done.outcome.commit is not None
    assert len(bench.objects(kind="commits")) == len(bench.objects(kind="parts")) == 1
    _, reading = unreliable(bench.url, 50 + seed)
    bench.pull(bench.node("b", store=reading))
    assert picture(bench.out("b") / "global_step_20") == picture(bench.out("a") / "global_step_20")
