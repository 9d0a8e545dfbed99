"""One store, two trainers' nodes, two collectors, scrubs, and a node that pulls, request by request.

Its histories are in test_collect_histories.py.

The code under test is the real one; the store, its clock and the order of the requests belong to Hypothesis.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

from collection_damage import SCRUBBERS, Damage
from collection_events import ACTIONS, COLLECTS, HARMS, MOMENTS, PUSHES, SCRUBS, SEEN
from collection_space import SimRemote, happened, need_space
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from toy_saves import HOUR_NS, RUN_ID, SHARES, SKEW_NS, TOY, MemorySaves, files_of

from ckptsync.chunks.transfer import get_chunk
from ckptsync.errors import CorruptObject, KeyMissing, NothingToResume, StoreError
from ckptsync.model.manifest import canonical
from ckptsync.model.rounds import Limits
from ckptsync.store import keys
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync import push as push_module
from ckptsync.sync.choose import Stock, choose
from ckptsync.sync.collect import CollectOptions, collect
from ckptsync.sync.commit import check_commit
from ckptsync.sync.push import PushOptions, adopt_commit, commit_ready, push
from ckptsync.sync.remote import Remote
from ckptsync.sync.restore import LocalContent, Target, Transfer, restore
from ckptsync.testing.simulated import Actor, SimulatedStore

WINDOW_NS = HOUR_NS
TRIES = 3


class World(RuleBasedStateMachine):
    """One store, two trainers' nodes, two collectors, scrubs, a node that pulls."""

    shares: ClassVar = ()
    histories: ClassVar = Counter()

    def __init__(self):
        super().__init__()
        type(self).histories["all"] += 1
        numbers = itertools.count(1)
        push_module.secrets = type("Secrets", (), {"token_hex": staticmethod(lambda _: f"{next(numbers):016x}")})
        self.store = SimulatedStore()
        document = {"kind": "run", "format": [1, 0], "run": "run", "run_id": RUN_ID}
        self.store.put(keys.run_key("run"), canonical(document))
        self.store.on_delete = self.deleted
        self.damage = Damage(self.store, self.shares)
        self.eye = Remote(self.store, "run", RUN_ID)
        self.actors, self.acked, self.condemned, self.voided = {}, set(), set(), set()
        self.saves = {}
        for node in "AB":
            self.forget(node)
        self.seen, self.right, self.judged, self.harmed = 0, set(), {}, False

    # -- what must hold

    def deleted(self, key):
        if key.startswith(keys.bad_prefix("run")):
            self.damage.taken_back.add(key.rpartition("/")[2])
        self.look()

    def look(self):
        """Judge the store as a reader does; every commit it takes has its bytes, and none is gone that must stay."""
        self.seen = self.store.changed
        condemned, valid = self.eye.condemned(), set()
        for index in self.eye.index_all().values():
            for digest in index.commits:
                union = self.judge(index, digest, condemned)
                if union is not None:
                    valid.add(digest)
                    self.damage.saw(union)
                    self.need_bytes(union)
        self.damage.need_reasons()
        for digest in self.acked - self.condemned - valid:
            open_lists = [each for each in self.eye.collections() if each.sweep is None]
            names = set().union(*(each.keys for each in open_lists))
            assert names & self.names_of(digest), f"commit {digest} is gone"
            self.voided.add(digest)
        return valid

    def judge(self, index, digest, condemned):
        """A commit as a reader takes it; equal questions have equal answers."""
        asked = digest, index.parts, condemned.void
        if asked not in self.judged:
            rules = {"toy": TOY}
            self.judged[asked], _ = check_commit(self.eye, index, digest, rules, condemned, window_ns=WINDOW_NS)
        return self.judged[asked]

    def need_bytes(self, union):
        for part in union.parts.values():
            for ref in part.chunks:
                key = keys.chunk_key("run", ref.key)
                if self.damage.stands(key):
                    continue
                assert key in self.store.objects, f"a commit of step {union.step} lacks {key}"
                self.need_right(key, ref)

    def need_right(self, key, ref):
        version = (key, self.store.objects[key])
        if version in self.right:
            return
        try:
            get_chunk(self.store, key, ref)
        except CorruptObject as error:
            msg = f"nobody has damaged it, but {error}"
            raise AssertionError(msg) from error
        self.right.add(version)

    def names_of(self, digest):
        key = next((key for key in self.store.objects if key.endswith(f"/commits/{digest}.json")), None)
        assert key is not None, f"commit {digest} is gone"
        commit = self.eye.commit(int(key.split("/")[2]), digest)
        return {key, *(keys.part_key("run", commit.step, str(part)) for part in commit.parts)}

    # -- actors

    def retire(self):
        self.actors = {role: actor for role, actor in self.actors.items() if not actor.done}
        if self.store.changed != self.seen:
            self.look()

    def remote(self, client, node):
        store = RetryingStore(client, attempts=3, sleep=lambda _: None, random=lambda: 0.0)
        remote = SimRemote(store, "run", RUN_ID)
        remote.local_ns = lambda: self.store.now_ns + SKEW_NS[node]
        return remote

    def pushes(self, share):
        """As the daemon does it, a few times."""
        save, root, _ = self.shares[share]
        node = save.part.node

        def body(client):
            remote, saves = self.remote(client, node), self.saves[node]
            for _ in range(TRIES):
                with contextlib.suppress(StoreError):
                    done = commit_ready(remote, saves, save, TOY, window_ns=WINDOW_NS)
                    if done is None:
                        found = adopt_commit(remote, saves, save, {"toy": TOY}, window_ns=WINDOW_NS)
                        if found:
                            self.acked.add(found)
                            return
                        done = push(save, root, remote, saves, TOY, PushOptions(workers=1, compression="none"))
                    if done.outcome.commit is not None:
                        self.acked.add(done.outcome.commit.digest)
                        return

        return body

    def collects(self, node, grace_ns, force):
        def body(client):
            remote = self.remote(client, node)
            options = CollectOptions(node, grace_ns, force=force, strict=False, now_ns=remote.local_ns)
            try:
                collect(remote, lambda _: frozenset(self.condemned), options)
            except StoreError:
                self.histories["a collector failed"] += 1

        return body

    def scrubs(self, node, sample):
        def body(client):
            found = self.damage.scrub(self.remote(client, node), node, sample)
            if found is not None:
                self.histories["healed"] += bool(found.healed)
                self.histories["marked"] += bool(found.bad)
                self.histories["mark taken back"] += bool(found.restored)

        return body

    def pulls(self):
        self.look()
        sure, marked = self.acked - self.condemned, self.damage.marks()

        def body(client):
            choice = None
            try:
                remote = self.remote(client, "D")
                choice = choose(Stock(remote, {"toy": TOY}, WINDOW_NS), Limits())
                self.damage.saw(choice.union)
                assert choice.commit not in marked - self.damage.taken_back, "what is marked as bad was picked"
                self.restores(choice.union, remote)
            except NothingToResume:
                assert sure <= self.condemned | self.voided | self.damage.hurt(), "there was something to resume from"
            except (KeyMissing, CorruptObject):
                assert choice is not None
                assert choice.commit in self.condemned | self.voided | self.damage.hurt(), (
                    "a step vanished under a pull"
                )
            except StoreError:
                pass

        return body

    def restores(self, union, remote):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(self.shares[0][1])) as root:
            restore(Target.of(union, lambda _: False), root, remote, LocalContent(), Transfer(workers=1), None)
            found = {path.name: path.read_bytes() for path in Path(root).iterdir()}
        assert found == files_of(self.shares, union)
        self.histories["pulled"] += 1

    # -- what happens

    @initialize(first=st.sampled_from([0, 2, 4, 4, 4, 5]), given_up=st.booleans(), harmed=st.booleans())
    def begin(self, first, given_up, harmed):
        """Some saves are in the store already; in half of the histories its chunks can be damaged."""
        self.harmed = harmed
        for share in range(first):
            self.pushes(share)(self.store)
        if given_up:
            self.retain(0)
        self.look()

    def begins(self, what):
        """Start an actor, unless one of its role is busy; its role."""
        kind, *how = what
        begin, role = {
            "push": (self.pushes, lambda share: f"push {SHARES[share][0]}"),
            "collect": (self.collects, lambda node, *_: node),
            "scrub": (self.scrubs, lambda node, _: f"scrub {node}"),
            "pull": (self.pulls, lambda: "pull"),
        }[kind]
        if role(*how) not in self.actors:
            self.actors[role(*how)] = Actor(role(*how), self.store, begin(*how))
        return role(*how)

    def runs(self, role, moment):
        """Up to a moment at which it matters: a kind of change, or a request as in SEEN; None = to the end."""
        actor = self.actors[role]

        def stop():
            return moment is not None and (moment in actor.waits_for if " " in moment else actor.is_before(moment))

        if not actor.done:
            actor.run(stop)

    @rule(what=ACTIONS, moment=MOMENTS)
    def act(self, what, moment):
        self.runs(self.begins(what), moment)
        self.retire()

    @rule(one=ACTIONS, other=ACTIONS, first=MOMENTS, second=MOMENTS)
    def race(self, one, other, first, second):
        """One is overtaken by the other."""
        slow = self.begins(one)
        self.runs(slow, first)
        quick = self.begins(other)
        self.runs(quick, second)
        self.runs(slow, None)
        self.runs(quick, None)
        self.retire()

    @rule(
        which=st.integers(0, 20),
        what=PUSHES,
        node=st.sampled_from(["C1", "C2"]),
        moments=st.tuples(COLLECTS, MOMENTS),
        push_first=st.booleans(),
    )
    def overtake(self, which, what, node, moments, push_first):
        """A commit is given up, and one of collector and pusher passes the other at a moment at which it matters."""
        self.pass_by(which, ("collect", node, 0, True), what, moments, push_first)

    @precondition(lambda self: self.harmed)
    @rule(which=st.integers(0, 20), what=SCRUBS, moments=st.tuples(COLLECTS, SEEN), scrub_first=st.booleans())
    def overtake_scrub(self, which, what, moments, scrub_first):
        """The same with a scrub, which may miss what the collector has just deleted."""
        self.pass_by(which, ("collect", "C1", 0, True), what, moments, scrub_first)

    def pass_by(self, which, collection, other, moments, other_first):
        self.retain(which)
        pairs = list(zip((collection, other), moments, strict=True))
        for what, moment in pairs[:: -1 if other_first else 1]:
            self.runs(self.begins(what), moment)
        for what, _ in pairs:
            self.runs(self.begins(what), None)
        self.retire()

    @precondition(lambda self: self.harmed and len(self.damage.ever) < 2)
    @rule(
        which=st.integers(0, 30),
        kind=HARMS,
        scrub=SCRUBS,
        seen=SEEN,
        other=st.one_of(ACTIONS, SCRUBS),
        moment=MOMENTS,
    )
    def harm(self, which, kind, scrub, seen, other, moment):
        """A chunk is damaged, and a scrub that may have seen it is overtaken."""
        self.damage.hit(which, kind)
        slow = self.begins(scrub)
        self.runs(slow, seen)
        self.runs(self.begins(other), moment)
        self.runs(slow, None)
        self.retire()

    @precondition(lambda self: self.harmed)
    @rule(share=st.integers(0, len(SHARES) - 1))
    def alter(self, share):
        """The trainer writes into a step directory that a scrub may heal from."""
        self.damage.alter(share)

    @rule(which=st.integers(0, 20))
    def retain(self, which):
        """Policy gives up a commit, for good."""
        commits = sorted(keys.parse_commit(k.rpartition("/")[2]) for k in self.store.objects if "/commits/" in k)
        if commits:
            self.condemned.add(commits[which % len(commits)])

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 3), count=st.integers(1, 25))
    def run(self, which, count):
        left = iter(range(count))
        self.pick(which).run(lambda: next(left, None) is None)
        self.retire()

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 3), moment=MOMENTS)
    def go_on(self, which, moment):
        self.runs(self.pick(which).name, moment)
        self.retire()

    @precondition(lambda self: self.actors)
    @rule(
        which=st.integers(0, 3),
        outcome=st.sampled_from(["lost request", "lost reply", "refused", "crash before", "crash after"]),
    )
    def fail(self, which, outcome):
        actor = self.pick(which)
        for _ in range(TRIES if outcome == "lost request" else 1):  # a store that is away, for all of its attempts
            if not actor.done:
                actor.step(outcome)
        self.retire()

    @rule(hours=st.sampled_from([1, 25, 200]))
    def wait(self, hours):
        """However long anybody stands still."""
        self.store.now_ns += hours * HOUR_NS

    @rule(node=st.sampled_from("AB"))
    def forget(self, node):
        """The state directory is lost; a push in flight is killed with its process."""
        if f"push {node}" in self.actors:
            self.actors.pop(f"push {node}").crash()
        self.saves[node] = MemorySaves(save for save, *_ in self.shares if save.part.node == node)

    def pick(self, which):
        return self.actors[sorted(self.actors)[which % len(self.actors)]]

    # -- the end

    def teardown(self):
        try:
            self.collect_all()
            for role in list(self.actors):
                self.runs(role, None)  # they wake up when all is over
            self.retire()
            self.collect_all()
            valid = self.look()
            assert self.acked - self.condemned <= valid
            assert bool(valid) >= bool(self.acked), "the last step was given up"
            need_space(self.eye)
            self.scrub_all(valid)
            if self.damage.pickable(valid):
                before = self.histories["pulled"]
                self.pulls()(self.store)
                assert self.histories["pulled"] > before, "a whole step was not picked"
            self.histories.update(happened(self.eye))
            self.histories.update(acknowledged=bool(self.acked), voided=bool(self.voided))
        finally:
            for actor in self.actors.values():
                if not actor.done:
                    actor.crash()

    def collect_all(self):
        for _ in range(3):  # one that is disturbed by another's list needs a second and a third look
            before = self.store.changed
            self.store.now_ns += 30 * HOUR_NS
            self.collects("C1", 0, True)(self.store)
            self.look()
            if self.store.changed == before + 1:  # nothing but the question for the time
                break

    def scrub_all(self, valid):
        """Every node scrubs; the last one reads of what is not marked nothing."""
        for node in SCRUBBERS:
            self.scrubs(node, 0.0 if node == SCRUBBERS[-1] else 1.0)(self.store)
        self.damage.need_found(valid & self.look())
