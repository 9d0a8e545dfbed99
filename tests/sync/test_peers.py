"""Several nodes restore one step at the same time, and the store gives each byte about once."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from waiting import until

from ckptsync.actions.pull import PullOptions, pull_step
from ckptsync.errors import StoreUnavailable
from ckptsync.peers.auth import Secret
from ckptsync.peers.exchange import Exchange
from ckptsync.peers.limits import Limits
from ckptsync.store.base import Store
from ckptsync.testing.checkpoints import layered_step, verl_step

SECRET = Secret(b"the secret of all the nodes of this run")
PATIENT = Limits(silence_s=60, chunk_s=120, slow_s=60, linger_s=120)


@dataclass
class Counting:
    """A store that counts the bytes of chunks that it gives, and can hold some back."""

    store: Store
    given: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key, *, max_size):
        data = self.store.get(key, max_size=max_size)
        if "/chunks/" in key:
            with self.lock:
                self.given += len(data)
        return data

    def __getattr__(self, name):
        return getattr(self.store, name)

    def stored(self):
        return sum(meta.size for meta in self.store.list("run/chunks"))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pull_all(bench, stack, tmp_path):
    """Pull on all nodes at once, and return their results: {name: PullResult}."""

    def pull(store, exchanges):
        barrier = threading.Barrier(len(exchanges))

        def one(name):
            node = bench.node(name, store=store)
            with pull_step(
                node,
                step=None,
                max_step=None,
                dest=None,
                keep_newer=False,
                say=print,
                options=PullOptions(exchange=exchanges[name]),
            ) as planned:
                barrier.wait()
                return planned.execute(lambda _: None)

        with ThreadPoolExecutor(len(exchanges)) as pool:
            return dict(zip(exchanges, pool.map(one, exchanges), strict=True))

    return pull


@pytest.fixture
def exchanges(stack):
    """Exchanges of nodes that know each other, by name."""

    def make(names, *, limits=PATIENT, secrets=None):
        found = {
            name: stack.enter_context(Exchange((secrets or {}).get(name, SECRET), "run", "127.0.0.1:0", limits=limits))
            for name in names
        }
        for exchange in found.values():
            exchange.join([other.address for other in found.values()])
        return found

    return make


@pytest.fixture
def step(bench):
    """A step in the store: its directory and its size. It has fifty chunks: by any odds each node has a turn."""
    made = verl_step(bench.out("a"), 20, world=24, n=250_000, hf=True)
    pushed = bench.push_command(bench.node("a"))
    return made, pushed.bytes_total


NAMES = ("b", "c", "d", "e")


def test_four_nodes_take_from_the_store_hardly_more_than_one(bench, picture, step, pull_all, exchanges):
    made, size = step
    store = Counting(bench.store)
    results = pull_all(store, exchanges(NAMES))
    for name in NAMES:
        assert picture(bench.out(name) / made.name) == picture(made)
        assert results[name].bytes_fetched + results[name].bytes_from_peers == size
        assert results[name].bytes_from_peers > size / 3
    assert store.given <= 1.2 * store.stored()


def test_without_peers_they_take_four_times_as_much(bench, step, pull_all):
    store = Counting(bench.store)
    pull_all(store, dict.fromkeys(NAMES))
    assert store.given >= 3.9 * store.stored()


def test_what_a_node_has_on_its_disk_is_given_once_and_the_store_gives_nothing(
    bench, picture, step, pull_all, exchanges
):
    made, size = step
    store, found = Counting(bench.store), exchanges(("a", *NAMES))
    results = pull_all(store, found)
    assert results["a"].bytes_from_peers == 0
    for name in NAMES:
        assert picture(bench.out(name) / made.name) == picture(made)
        assert results[name].bytes_from_peers == size
    assert store.given == 0
    assert found["a"].given <= 2.5 * size, "its own turn for a fifth of the chunks, once for all others"


def test_different_secrets_cost_bytes_and_one_line(bench, picture, step, pull_all, exchanges, caplog):
    made, size = step
    odd = {"b": Secret(b"the secret of another run, perhaps")}
    with caplog.at_level(logging.WARNING):
        results = pull_all(Counting(bench.store), exchanges(NAMES, secrets=odd))
    assert results["b"].bytes_fetched == size
    for name in NAMES:
        assert picture(bench.out(name) / made.name) == picture(made)
    lines = [r.getMessage() for r in caplog.records if "is not asked any more" in r.getMessage()]
    assert len(lines) == 4, lines  # each node's own
    assert all("secret_file the same on all nodes?" in line for line in lines)


def test_a_node_that_dies_in_the_middle_stops_nobody(bench, picture, step, pull_all, exchanges):
    made, _ = step
    found = exchanges(NAMES, limits=Limits(silence_s=60, chunk_s=120, slow_s=60))
    dying = found.pop("e")
    dying.holdings.expect([chunk.digest for chunk in bench.save(bench.node("a"), 20).part.chunks])

    dying.holdings.verified({})

    def die_when_asked():
        until(lambda: dying.holdings._waiting, "a node that asks")
        dying.close()

    killer = threading.Thread(target=die_when_asked)
    killer.start()
    store = Counting(bench.store)
    pull_all(store, found)
    killer.join()
    for name in found:
        assert picture(bench.out(name) / made.name) == picture(made)
    assert store.given <= 1.6 * store.stored(), "its share moved to one other node, but for what was on its way"


def test_files_that_are_left_out_tear_no_chunk(bench, picture, pull_all, exchanges):
    """A chunk of many small files, of which some are dropped, is not kept as a whole: the store gives it."""
    made = layered_step(bench.out("a"), 7)
    bench.push_command(bench.node("a"))
    pull_all(Counting(bench.store), exchanges(("b", "c")))
    whole = picture(made)
    for name in ("b", "c"):
        back = picture(bench.out(name) / made.name)
        assert whole.keys() - back.keys() == {"rollout/engine_state.json"}
        assert all(back[path] == whole[path] for path in back)


def test_a_store_that_fails_one_node_fails_that_node_alone(bench, picture, step, pull_all, exchanges):
    made, _ = step

    class Failing(Counting):
        def get(self, key, *, max_size):
            if "/chunks/" in key:
                raise StoreUnavailable("no answer", where=key)
            return super().get(key, max_size=max_size)

    found = exchanges(("b", "c"), limits=Limits(silence_s=60, chunk_s=2.0, linger_idle_s=0.5))
    errors = []

    def failing():
        node = bench.node("b", store=Failing(bench.store))
        try:
            with pull_step(
                node,
                step=None,
                max_step=None,
                dest=None,
                keep_newer=False,
                say=print,
                options=PullOptions(exchange=found["b"]),
            ) as planned:
                planned.execute(lambda _: None)
        except StoreUnavailable as error:
            errors.append(error)
        finally:
            found["b"].close()

    thread = threading.Thread(target=failing)
    thread.start()
    pull_all(Counting(bench.store), {"c": found["c"]})
    thread.join()
    assert len(errors) == 1
    assert not (bench.out("b") / made.name).exists()
    assert picture(bench.out("c") / made.name) == picture(made)


def test_a_restored_step_is_given_on_under_its_new_place(bench, step, exchanges):
    """Served by an open directory: the rename into place does not interrupt it; in-place writes are noticed."""
    made, _ = step
    found = exchanges(("b", "c"))
    found["c"].holdings.verified({})
    found["c"].serve()
    node = bench.node("b")
    with pull_step(
        node, step=None, max_step=None, dest=None, keep_newer=False, say=print, options=PullOptions(exchange=found["b"])
    ) as planned:
        chunks = planned.plan.target.chunks
        planned.execute(lambda _: None)
    for digest, ref in chunks.items():
        assert len(found["b"].holdings.read(digest)) == ref.size
    victim = bench.out("b") / made.name / "actor" / "model_world_size_24_rank_0.pt"
    victim.write_bytes(b"\0" * victim.stat().st_size)
    missing = [digest for digest in chunks if found["b"].holdings.read(digest) is None]
    assert missing
    for digest in missing:
        assert found["c"].get(chunks[digest]) is None
    assert not found["c"].alone
