"""Histories of pushes, commits, pulls, retention, collections and scrubs over one store, request by request.

At every moment what a reader takes for a committed step has all its bytes, but for those that were damaged, and what
was acknowledged and not condemned is there. No pull takes what is marked, or ends with bytes that are not the
trainer's; nothing is marked that was never damaged; and once all nodes have scrubbed, what any of them has the bytes
for is whole, and all else that is damaged is marked.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections import Counter

import pytest
from collection_world import World
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from toy_saves import SHARES, make_save

from ckptsync.chunks.header import ROOM, frame
from ckptsync.disk.pieces import read_pieces
from ckptsync.model.parse import parse_part
from ckptsync.store import keys
from ckptsync.sync import collect as collect_module
from ckptsync.sync import push as push_module
from ckptsync.sync import scrub as scrub_module
from ckptsync.sync.collect_plan import Cut
from ckptsync.sync.history import mark_bad
from ckptsync.testing.simulated import InlineExecutor

POOLS = ("sync.documents", "sync.remote", "sync.committed", "chunks.pool")


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
    monkeypatch.setattr("ckptsync.sync.remote.parse_part", functools.lru_cache(512)(parse_part))  # pure, asked often
    monkeypatch.setattr(collect_module, "_CHUNKS_MAX", 2)  # several lists for what one would hold
    monkeypatch.setattr(push_module, "secrets", push_module.secrets)  # put back afterwards
    monkeypatch.setattr("ckptsync.chunks.transfer._log.disabled", True)  # it warns of every damaged chunk
    return type("World", (World,), {"shares": shares, "histories": Counter()})


def histories(count, **more):
    return settings(
        max_examples=count, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), **more
    )


def test_every_kept_step_is_restorable_at_every_moment(world):
    run_state_machine_as_test(world, settings=histories(500))
    assert world.histories["all"] >= 500
    happened = (
        "swept a commit",
        "swept a chunk",
        "fresh key",
        "acknowledged",
        "pulled",
        "healed",
        "marked",
        "mark taken back",
    )
    assert all(world.histories[name] > 10 for name in happened), world.histories


@pytest.mark.deep
def test_every_kept_step_is_restorable_in_many_histories(world):
    run_state_machine_as_test(world, settings=histories(20_000))
    assert all(world.histories[name] > 10 for name in ("spared", "fresh key")), world.histories
    assert world.histories["a collector failed"], "one in 70 histories"


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


def heals_from_what_it_did_not_compare(monkeypatch):
    """A scrub takes what lies on the disk for what was verified there."""

    def heal(self, key, ref):
        raw = read_pieces("/", self._local.chunks.get(ref.digest, ()))
        if raw:
            self._remote.store.put(key, frame(memoryview(bytearray(ROOM) + raw)))
        return bool(raw)

    monkeypatch.setattr(scrub_module._Scrubber, "_heal", heal)


def marks_what_is_collected(monkeypatch):
    """A scrub does not look again whether a collection took what it misses."""

    def mark(self, _, step, digest, why, __):
        mark_bad(self._remote, step, digest, node="x", why=f"{scrub_module.BY_SCRUB}{why}")

    monkeypatch.setattr(scrub_module._Scrubber, "_mark", mark)


def takes_marks_back_by_a_sample(monkeypatch):
    """A scrub that found nothing wrong in the few chunks that it read takes the mark for a mistake."""

    def check(self, commit, marked):
        faults = list(self._faults(commit, self._options.sample))
        if faults:
            self._mark(commit, commit.step, commit.digest, faults[0], marked)
        elif commit.digest in marked:
            self._unmark(commit)

    monkeypatch.setattr(scrub_module._Scrubber, "_check", check)


def picks_what_is_marked(monkeypatch):
    """A pull does not ask for marks."""
    monkeypatch.setattr("ckptsync.sync.history.History.against", lambda *_, **__: "")


CONTROLS = [  # with a seed for each with which it is caught early; with others it takes up to a few hundred histories
    (no_second_look, 1, "lacks|is gone|vanished|given up"),
    (existence_is_relied_on, 2, "lacks|is gone|vanished|given up"),
    (heals_from_what_it_did_not_compare, 4, "nobody has damaged it"),
    (marks_what_is_collected, 3, "was never damaged"),
    (takes_marks_back_by_a_sample, 2, "damaged .* marks"),
    (picks_what_is_marked, 2, "marked as bad was picked"),
]


@pytest.mark.parametrize(("control", "soon", "seen"), CONTROLS, ids=[control.__name__ for control, *_ in CONTROLS])
def test_a_protocol_without_its_safeguard_is_caught(world, monkeypatch, control, soon, seen):
    control(monkeypatch)
    with pytest.raises(AssertionError, match=seen):
        run_state_machine_as_test(seed(soon)(world), settings=histories(2000, phases=[Phase.generate], database=None))
