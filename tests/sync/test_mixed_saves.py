"""Saves of one number in one directory, on several nodes: no commit mixes them, and without the rules some would."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest
from blake3 import blake3

from ckptsync.actions.push import settle_local
from ckptsync.disk import assess
from ckptsync.errors import ConflictError
from ckptsync.model import merge
from ckptsync.model.saves import judge
from ckptsync.sync.commit import check_commit
from ckptsync.sync.local import LocalSteps
from ckptsync.testing.checkpoints import age, verl_step

STEP = 120
RANKS = {"a": [0, 1], "b": [2, 3]}
ROLES = ("actor", "critic")


class Cluster:
    """Two nodes of a run with four ranks; the driver is on b unless a scenario moves it."""

    def __init__(self, bench):
        self.bench, self.driver = bench, "b"
        self.label = {}

    def write(self, name, seed, at_s, *, closed=True, **how):
        """One node's share of a save, in place, so many seconds from now."""
        how = {"roles": ROLES, **how}
        before = {path: path.stat() for path in self.bench.out(name).rglob("*")}
        driver = closed and name == self.driver
        verl_step(self.bench.out(name), STEP, world=4, ranks=RANKS[name], seed=seed, driver=driver, **how)
        for path in self.bench.out(name).rglob("*"):
            stat = path.stat()
            if path not in before or stat.st_mtime_ns != before[path].st_mtime_ns:
                os.utime(path, ns=(0, stat.st_mtime_ns + at_s * 10**9))
        scratch = self.bench.root / f"seed-{seed}"  # what this seed's shards look like
        verl_step(scratch, STEP, world=4, seed=seed, roles=ROLES)
        for path in scratch.rglob("*_rank_*.pt"):
            self.label[blake3(path.read_bytes()).hexdigest()] = seed

    def save(self, seed, at_s, **how):
        """Both nodes' shares."""
        for name in RANKS:
            self.write(name, seed, at_s, **how)

    def look(self):
        """Each daemon has its pass, twice: the second one sees what the other one has put."""
        for _ in range(2):
            for name in RANKS:
                node = self.bench.node(name)
                views = settle_local(node.local) if node.local is not None else ()
                if any(view.step == STEP and view.save is not None and not view.save.commit for view in views):
                    with contextlib.suppress(ConflictError):  # reported, and not committed: that is what counts
                        self.bench.push(node, STEP)

    def restart(self, step):
        """What every start begins with."""
        for name in RANKS:
            self.bench.pull(self.bench.node(name), step=step)

    def commits(self):
        """The seeds that each commit's shards are of."""
        node = self.bench.node("c")
        remote = node.remote()
        index, condemned = remote.index(STEP), remote.condemned()
        found = []
        for digest in index.commits:
            union, why = check_commit(remote, index, digest, node.layout_of(), condemned, window_ns=node.window_ns)
            assert union is not None, why
            shards = [entry.digest for path, (_, entry) in union.files.items() if "_rank_" in path]
            found.append({self.label[digest] for digest in shards})
        return found


def restarted_in_between(cluster):
    """Save 1 reached node a, then everything died; after the restart, save 2 reached node b."""
    for name, ranks in RANKS.items():
        age(verl_step(cluster.bench.out(name), 100, world=4, ranks=ranks, driver=name == "b", roles=ROLES), 7200)
        cluster.bench.push(cluster.bench.node(name), 100)
    cluster.write("a", 1, -1200)
    cluster.look()
    cluster.restart(100)
    cluster.write("b", 2, 600)
    cluster.look()


def a_pull_and_then_the_number_again(cluster):
    """After a pull both nodes hold all ranks; then each writes its own again, and b dies in the middle."""
    cluster.save(1, -1200)
    cluster.look()
    cluster.restart(STEP)
    cluster.driver = "a"
    cluster.write("a", 2, 600)
    cluster.look()


def actor_new_critic_old(cluster):
    """The training died between the roles of save 2."""
    cluster.save(1, -1200)
    cluster.look()
    cluster.save(2, -600, roles=("actor",), closed=False)
    cluster.look()


def model_new_optimizer_old(cluster):
    """The training died between two kinds of shards, on one node before the other."""
    cluster.save(1, -1200)
    cluster.look()
    cluster.write("a", 2, -600, kinds=("model", "optim"), closed=False)
    cluster.write("b", 2, -600, kinds=("model",), closed=False)
    cluster.look()


SCENARIOS = [restarted_in_between, a_pull_and_then_the_number_again, actor_new_critic_old, model_new_optimizer_old]


@pytest.fixture
def cluster(bench):
    return Cluster(bench)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_commit_mixes_two_saves(cluster, scenario):
    scenario(cluster)
    assert all(len(seeds) == 1 for seeds in cluster.commits())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_save_that_follows_is_committed_by_itself(cluster, scenario):
    """The rules refuse what is mixed, and nothing else."""
    scenario(cluster)
    cluster.save(3, 1200)
    cluster.look()
    assert {3} in cluster.commits()
    assert all(len(seeds) == 1 for seeds in cluster.commits())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_the_rules_saves_would_mix(cluster, monkeypatch, scenario):
    """The control."""

    def lenient(files, **options):
        verdict = judge(files, **options)
        return replace(
            verdict, stale=frozenset(), late=frozenset(), start_ns=0, closed=verdict.closed or bool(verdict.late)
        )

    for module in (merge, assess):
        monkeypatch.setattr(module, "judge", lenient)
    monkeypatch.setattr(LocalSteps, "_demand_closing_again", lambda *arguments: arguments[2])
    monkeypatch.setattr(merge, "BARRIER_SLACK_NS", 86400 * 10**9)
    monkeypatch.setattr(merge, "_borders", lambda _: [])
    monkeypatch.setattr(merge, "_conflicts", lambda *_: ())
    scenario(cluster)
    assert any(len(seeds) > 1 for seeds in cluster.commits())
