"""Histories of pulls of many nodes over one store, request by request: lost replies, crashes, stalls, time-outs.

The code under test is the real one; the store, its clock, and the order of all requests belong to Hypothesis. Whoever
gets a decision in a round gets the same, and what is decided is whole, ready, and of one save.
"""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ckptsync.errors import StepChanged, StoreError
from ckptsync.layouts.verl import Verl
from ckptsync.model.agreement import Chosen, CommitFirst
from ckptsync.model.manifest import ChunkRef, Commit, DirEntry, Extent, FileEntry, Part, canonical
from ckptsync.model.parse import parse_part
from ckptsync.model.rounds import Limits
from ckptsync.model.selection import NEWEST, Strategy, parse_strategy
from ckptsync.model.step import Level
from ckptsync.store import keys
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync import agree as agree_module
from ckptsync.sync.agree import Agreement, Terms
from ckptsync.sync.attempt import Attempt
from ckptsync.sync.commit import check_commit, try_commit
from ckptsync.sync.history import History
from ckptsync.sync.remote import Remote
from ckptsync.testing.simulated import Actor, InlineExecutor, SimulatedStore

RUN_ID = "0" * 32
LAYOUTS = {"verl": Verl()}
WINDOW_NS = 3600 * 10**9
SECOND_NS = 10**9
TIMEOUT_S = 20.0
KINDS = ("extra_state", "model", "optim")


def part_of(node: str, number: int, nodes: int, step: int, end_ns: int, previous_ns: int, label: str) -> Part:
    """One node's part: a rank for each node, data.pt on the last one."""
    names = [f"actor/{kind}_world_size_{nodes}_rank_{number}.pt" for kind in KINDS]
    if number == 0:
        names += ["actor/fsdp_config.json", "actor/huggingface/config.json"]
    if number == nodes - 1:
        names.append("data.pt")
    digest = f"{step:016x}{number:016x}{label.encode().hex():0>32}"
    files = [
        FileEntry(name, 1, 0o644, end_ns - SECOND_NS * (name != "data.pt"), digest, (Extent(0, 0, 1),))
        for name in sorted(names)
    ]
    return Part(
        run="run",
        run_id=RUN_ID,
        step=step,
        name=f"global_step_{step}",
        below="",
        node=node,
        node_id=f"id-{node}",
        layout="verl",
        level=Level.FULL,
        saved_ns=end_ns if "data.pt" in names else end_ns - SECOND_NS,
        closed="data.pt" in names,
        previous_ns=previous_ns,
        offset_ns=0,
        files=tuple(files),
        dirs=(DirEntry("", 0o755, end_ns),),
        chunks=(ChunkRef(digest, 1),),
    )


class Run:
    """A run of some nodes: its store, what each node's disk holds, and who got which decision in which round."""

    def __init__(self, nodes: int, strategy: Strategy = NEWEST) -> None:
        self.strategy = strategy
        self.names = [f"n{number}" for number in range(nodes)]
        self.store = SimulatedStore()
        self.eye = Remote(self.store, "run", RUN_ID)
        self.held: dict[str, set] = {name: set() for name in self.names}
        self.lost: set = set()
        self.label: dict = {}
        self.values: dict = {}  # what the driver's node knows of its saves
        self.actors: dict[str, Actor] = {}
        self.got: dict[str, tuple] = {}
        self.decided: dict[int, set] = {}
        self.end_ns = 0
        self.clock: dict[str, float] = dict.fromkeys(self.names, 0.0)

    def save(self, step, fates, label):
        """A save of all nodes, ten minutes ago; `fates` says how far each node's part has come."""
        self.store.now_ns += 3600 * SECOND_NS
        end_ns, parts = self.store.now_ns - 600 * SECOND_NS, []
        for number, (node, fate) in enumerate(zip(self.names, fates, strict=True)):
            part = part_of(node, number, len(self.names), step, end_ns, self.end_ns, label)
            self.label[part.id] = (step, label)
            if part.closed:
                self.values[part.id] = float(len(self.values))
            if fate == "gone":
                continue
            key = keys.part_key("run", step, str(part.id))
            self.store.put(key, zstandard.compress(part.to_bytes()))
            parts.append(part)
            if fate in ("ready", "committed"):
                self.eye.put_ready(step, part.id)
            if fate in ("held", "torn"):
                self.held[node].add((step, part.id))
            if fate == "torn":
                self.lost.add(part.id)
        if set(fates) == {"committed"}:
            self.eye.put_commit(Commit("run", RUN_ID, step, tuple(sorted(part.id for part in parts))))
        self.end_ns = end_ns

    # -- nodes

    def start(self, node):
        self.actors[node] = Actor(node, self.store, lambda client: self.pull(node, client))

    def pull(self, node, client):
        store = RetryingStore(client, attempts=3, sleep=lambda _: None, random=lambda: 0.0)
        remote = Remote(store, "run", RUN_ID)
        attempt = Attempt(remote, "job", node, f"id-{node}")
        terms = Terms(
            len(self.names), Limits(select=self.strategy), "all", TIMEOUT_S, self.store.now_ns - time.time_ns()
        )

        def push(step, part, _):
            if part in self.lost:
                raise StepChanged("gone")
            remote.put_ready(step, part)
            try_commit(remote, step, LAYOUTS["verl"], window_ns=WINDOW_NS)

        def pause(seconds):
            self.clock[node] += seconds

        agreement = Agreement(
            attempt,
            History(remote, LAYOUTS, WINDOW_NS),
            terms,
            node,
            f"id-{node}",
            hold=lambda: frozenset(self.held[node]),
            push=push,
            tell=lambda _: None,
            pause=pause,
            clock=lambda: self.clock[node],
            values=lambda: frozenset((p, self.values[p]) for _, p in self.held[node] if p in self.values),
        )
        try:
            number = agreement.join().number
            decision = agreement.decide(number)
            self.decided.setdefault(number, set()).add(decision)
            if decision.outcome == "commit":
                union, why = agreement.stands(decision)
                assert union is not None, why
            if decision.outcome != "refused":
                attempt.done(number)
            self.got[node] = (number, decision)
        except StoreError:
            return

    # -- what must hold

    def check(self):
        assert all(len(found) == 1 for found in self.decided.values()), "two decisions in one round"
        for (decision,) in self.decided.values():
            if decision.outcome == "commit":
                self.check_commit(decision)
        ended = {(d.outcome, d.commit) for _, d in self.got.values() if d.outcome != "refused"}
        # not the same round: who is killed right after it was done comes to the same again, when time is up
        assert len(ended) <= 1, "nodes went on with different outcomes"

    def check_commit(self, decision):
        assert decision.select == self.strategy
        assert bool(decision.fallback) <= (self.strategy.kind in ("multiple-of", "best"))
        index = self.eye.index(decision.step)
        assert decision.commit in index.commits
        union, why = check_commit(self.eye, index, decision.commit, LAYOUTS, self.eye.condemned(), window_ns=WINDOW_NS)
        assert union is not None, why
        assert union.parts.keys() <= index.ready
        assert len({self.label[part] for part in union.parts}) == 1


FATES = st.sampled_from(["ready", "held", "held", "held", "gone", "torn"])
OUTCOMES = st.sampled_from(["done"] * 12 + ["lost request", "lost reply", "crash before", "crash after"])
MOVES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 15), OUTCOMES), max_size=40)


@pytest.fixture
def inline(monkeypatch):
    for module in ("documents", "remote", "committed"):
        monkeypatch.setattr(f"ckptsync.sync.{module}.ThreadPoolExecutor", InlineExecutor)


def play(run, moves, dead):
    """All nodes pull, in the order of `moves`; who crashed starts again at the end, but for the `dead` ones."""
    run.got.clear()
    for node in run.names:
        run.start(node)
    for which, count, outcome in moves:
        actor = run.actors[run.names[which % len(run.names)]]
        if actor.done:
            continue
        if outcome == "done":
            some(actor, count)
        else:
            actor.step(outcome)
    for node in dead:
        run.actors[node].crash()
    bring_to_an_end(run, [node for node in run.names if node not in dead])
    run.check()


def some(actor, count):
    """So many requests."""
    left = iter(range(count))
    actor.run(lambda: next(left, None) is None)


def bring_to_an_end(run, alive):
    """Nobody stalls any more; a pull that ended without an answer is repeated, at most twice."""
    again = Counter()
    while waiting := [node for node in alive if node not in run.got and again[node] < 3]:
        for node in waiting:
            if run.actors[node].done:
                again[node] += 1
                run.start(node)
            else:
                some(run.actors[node], 5)


def histories(counted, count, *, strategies=(NEWEST,), **more):
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), **more)
    @given(
        nodes=st.integers(2, 3),
        base=st.booleans(),
        fates=st.lists(st.lists(FATES, min_size=3, max_size=3), min_size=1, max_size=2),
        moves=st.lists(MOVES, min_size=2, max_size=2),
        dead=st.sets(st.integers(0, 2), max_size=1),
        strategy=st.sampled_from(strategies),
    )
    def histories_of(nodes, base, fates, moves, dead, strategy):
        run = Run(nodes, strategy)
        if base:
            run.save(10, ["committed"] * nodes, "first")
        for number, each in enumerate(fates):  # the same number again, or another one
            run.save(20, each[:nodes], f"save {number}")
        play(run, moves[0], {run.names[number] for number in dead if number < nodes})
        first = {decision.outcome for _, decision in run.got.values()}
        steps = {decision.step for _, decision in run.got.values() if decision.outcome == "commit"}
        counted.update([*first, *(f"step {step}" for step in steps)])
        counted["died"] += bool(dead)
        run.save(30, ["held"] * nodes, "last")
        play(run, moves[1], set())
        counted["all came to the newest save"] += {d.step for _, d in run.got.values()} == {30}
        counted["rounds"] += max(run.decided, default=0)
        made = [decision for found in run.decided.values() for decision in found if decision.outcome == "commit"]
        counted[strategy.kind] += bool(made)
        counted["fallback"] += any(decision.fallback for decision in made)
        if strategy.committed_only:
            assert {decision.step for decision in made} <= {10}, "the others were on disks only"

    histories_of()


@pytest.mark.usefixtures("inline")
def test_all_nodes_of_a_round_get_one_decision_and_it_can_be_done():
    counted = Counter()
    histories(counted, 120)
    assert all(counted[name] for name in ("commit", "refused", "step 10", "step 20", "died")), counted
    assert counted["all came to the newest save"] > 20, counted


STRATEGIES = tuple(map(parse_strategy, ("newest-committed", "multiple-of 20", "best loss", "best loss min")))


@pytest.mark.usefixtures("inline")
def test_by_whichever_strategy_all_nodes_of_a_round_get_one_decision():
    counted = Counter()
    histories(counted, 160, strategies=STRATEGIES)
    wanted = ("newest-committed", "multiple-of", "best", "fallback", "step 10", "step 20", "refused")
    assert all(counted[name] for name in wanted), counted


def anybody_decides(monkeypatch):
    """A decision that replaces the one that is there."""

    def decide(self, decision):
        number = decision.place.number
        self._remote.store.put(keys.decision_key("run", self.name, number), decision.to_bytes())
        return self.decision(number)

    monkeypatch.setattr(Attempt, "decide", decide)


def nothing_is_committed_first(monkeypatch):
    """What could be committed is decided for at once."""
    before = agree_module.pick

    def pick(*arguments, **options):
        verdict = before(*arguments, **options)
        return Chosen(verdict.candidate) if isinstance(verdict, CommitFirst) else verdict

    monkeypatch.setattr(agree_module, "pick", pick)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("broken", [anybody_decides, nothing_is_committed_first])
def test_a_protocol_without_its_safeguard_is_caught(monkeypatch, broken):
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        histories(Counter(), 500, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.deep
@pytest.mark.usefixtures("inline")
def test_all_nodes_of_a_round_get_one_decision_in_many_histories():
    histories(Counter(), 10_000)
    histories(Counter(), 10_000, strategies=STRATEGIES)


class NextMinor:
    """A client of the next minor version: its offers and decisions have fields that this version does not know."""

    def __init__(self, store):
        self._store, self.changed = store, Counter()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put_new(self, key, data):
        kind = next((kind for kind in ("offers", "decision") if f"/{kind}" in key), "")
        if kind:
            self.changed[kind] += 1
            data = canonical({**json.loads(data), "format": [1, 1], "later": {"x": [1]}})
        return self._store.put_new(key, data)


@pytest.mark.usefixtures("inline")
def test_fifteen_nodes_beside_one_of_the_next_minor_version():
    run = Run(16)
    run.save(10, ["committed"] * 16, "first")
    run.save(20, ["held"] * 16, "second")
    newer = run.names[-1]
    (old,) = run.held[newer]
    part = run.eye.part(*old)
    data = canonical({**json.loads(part.to_bytes()), "format": [1, 1], "later": 7})
    part = parse_part(data)
    run.store.delete(keys.part_key("run", 20, str(old[1])))
    run.store.put(keys.part_key("run", 20, str(part.id)), zstandard.compress(data))
    run.held[newer] = {(20, part.id)}
    run.label[part.id] = (20, "second")
    run.eye = Remote(run.store, "run", RUN_ID)
    clients = {}

    def pull(client):
        clients[newer] = NextMinor(client)
        run.pull(newer, clients[newer])

    for node in run.names[:-1]:
        run.start(node)
    run.actors[newer] = Actor(newer, run.store, pull)
    bring_to_an_end(run, run.names)
    run.check()
    assert {decision.step for _, decision in run.got.values()} == {20}
    assert len(run.got) == 16
    assert clients[newer].changed["offers"] == 1
