"""Histories of pushes, commits, pulls, retention and collections over one store, request by request.

At every moment what a reader takes for a committed step has all its bytes, and what was acknowledged and not condemned
is there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter

import pytest
from collection_world import World
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from toy_saves import SHARES, make_save

from ckptsync.store import keys
from ckptsync.sync import collect as collect_module
from ckptsync.sync import push as push_module
from ckptsync.sync.collect_plan import Cut
from ckptsync.testing.simulated import InlineExecutor

POOLS = ("sync.documents", "sync.remote", "sync.committed", "chunks.pool")
SOON = 7
"""A seed with which both controls are caught early; with most others it takes up to a few hundred histories."""


@pytest.fixture(scope="module")
def shares():
    root = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    yield [make_save(root, *share) for share in SHARES]
    shutil.rmtree(root)


@pytest.fixture
def world(shares, monkeypatch):
    """The machine, with every request of an actor in its own thread."""
    for module in POOLS:
        monkeypatch.setattr(f"ckptsync.{module}.ThreadPoolExecutor", InlineExecutor)
    monkeypatch.setattr(collect_module, "_CHUNKS_MAX", 2)  # several lists for what one would hold
    monkeypatch.setattr(push_module, "secrets", push_module.secrets)  # put back afterwards
    return type("World", (World,), {"shares": shares, "histories": Counter()})


def histories(count, **more):
    return settings(
        max_examples=count, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), **more
    )


def test_every_kept_step_is_restorable_at_every_moment(world):
    run_state_machine_as_test(world, settings=histories(500))
    assert world.histories["all"] >= 500
    happened = ("swept a commit", "swept a chunk", "fresh key", "acknowledged", "pulled")
    assert all(world.histories[name] > 10 for name in happened), world.histories


@pytest.mark.deep
def test_every_kept_step_is_restorable_in_many_histories(world):
    run_state_machine_as_test(world, settings=histories(20_000))
    assert all(world.histories[name] > 10 for name in ("spared", "fresh key")), world.histories
    assert world.histories["a collector failed"], "one in 400 to 1,700 histories"


# -- controls: the machine must notice what the protocol is for


def no_second_look(monkeypatch):
    """The sweep is the list."""

    def cut(collection, tree, others):
        commits, parts = (frozenset(k for k in collection.keys if f"/{kind}/" in k) for kind in ("commits", "parts"))
        return Cut(commits, parts, frozenset())

    monkeypatch.setattr(collect_module, "cut_sweep", cut)


def existence_is_relied_on(monkeypatch):
    """A push asks the store which chunks it has, and takes those for safe."""

    def present(remote, saves):
        names = (meta.key.rpartition("/")[2] for meta in remote.store.list(keys.chunks_prefix(remote.run)))
        return {name.partition(".")[0]: name for name in names}

    monkeypatch.setattr(push_module, "_known_keys", present)
    monkeypatch.setattr(push_module, "_names", lambda *_: set())
    monkeypatch.setattr(push_module, "_choose_keys", lambda _, part, *__: part)


@pytest.mark.parametrize("control", [no_second_look, existence_is_relied_on])
def test_a_protocol_without_its_safeguard_is_caught(world, monkeypatch, control):
    control(monkeypatch)
    with pytest.raises(AssertionError, match=r"lacks|is gone|vanished|given up"):
        run_state_machine_as_test(seed(SOON)(world), settings=histories(2000, phases=[Phase.generate], database=None))
