"""One store, two trainers' nodes, two collectors and a node that pulls, request by request (test_collect_histories.py).

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

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from toy_saves import BEGIN_NS, HOUR_NS, RUN_ID, SHARES, SKEW_NS, TOY, MemorySaves

from ckptsync.chunks.transfer import get_chunk
from ckptsync.errors import CorruptObject, KeyMissing, NothingToResume, StoreError
from ckptsync.model.manifest import canonical
from ckptsync.model.rounds import Limits
from ckptsync.store import keys
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync import push as push_module
from ckptsync.sync.choose import Stock, choose
from ckptsync.sync.collect import CollectOptions, collect
from ckptsync.sync.collect_plan import standing, swept
from ckptsync.sync.collect_survey import survey
from ckptsync.sync.commit import check_commit
from ckptsync.sync.push import PushOptions, adopt_commit, commit_ready, push
from ckptsync.sync.remote import Remote
from ckptsync.sync.restore import LocalContent, Target, Transfer, restore
from ckptsync.testing.simulated import Actor, SimulatedStore

GRACE_NS = 24 * HOUR_NS
WINDOW_NS = HOUR_NS
TRIES = 3

ACTIONS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, len(SHARES) - 1)),
    st.tuples(st.just("collect"), st.sampled_from(["C1", "C2"]), st.sampled_from([0, GRACE_NS]), st.booleans()),
    st.sampled_from([("push", 4), ("pull",)]),  # the first uses chunks of an older step again
)
MOMENTS = st.sampled_from([None, "list", "sweep", "delete", "parts", "ready", "commits", "chunks"])


class SimRemote(Remote):
    """A run whose clock is simulated, too."""

    def clock_offset_ns(self, node, now_ns=None):
        return super().clock_offset_ns(node, now_ns or self.local_ns)


class World(RuleBasedStateMachine):
    """One store, two trainers' nodes, two collectors, a node that pulls."""

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
        self.store.on_delete = lambda _: self.look()
        self.eye = Remote(self.store, "run", RUN_ID)
        self.actors, self.acked, self.condemned, self.voided = {}, set(), set(), set()
        self.saves = {}
        for node in "AB":
            self.forget(node)
        self.seen, self.right = 0, set()

    # -- what must hold

    def look(self):
        """Judge the store as a reader does; every commit it takes has its bytes, and none is gone that must stay."""
        self.seen = self.store.changed
        condemned, valid = self.eye.condemned(), set()
        for index in self.eye.index_all().values():
            for digest in index.commits:
                union, _ = check_commit(self.eye, index, digest, {"toy": TOY}, condemned, window_ns=WINDOW_NS)
                if union is not None:
                    valid.add(digest)
                    self.need_bytes(union)
        for digest in self.acked - self.condemned - valid:
            open_lists = [each for each in self.eye.collections() if each.sweep is None]
            names = set().union(*(each.keys for each in open_lists))
            assert names & self.names_of(digest), f"commit {digest} is gone"
            self.voided.add(digest)
        return valid

    def need_bytes(self, union):
        for part in union.parts.values():
            for ref in part.chunks:
                key = keys.chunk_key("run", ref.key)
                assert key in self.store.objects, f"a commit of step {union.step} lacks {key}"
                version = (key, self.store.objects[key])
                if version not in self.right:
                    get_chunk(self.store, key, ref)
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

    def pulls(self):
        sure = self.acked - self.condemned

        def body(client):
            choice = None
            try:
                remote = self.remote(client, "D")
                choice = choose(Stock(remote, {"toy": TOY}, WINDOW_NS), Limits())
                self.restores(choice.union, remote)
            except NothingToResume:
                assert sure <= self.condemned | self.voided, "there was something to resume from"
            except (KeyMissing, CorruptObject):
                assert choice is not None
                assert choice.commit in self.condemned | self.voided, "a step vanished under a pull"
            except StoreError:
                pass

        return body

    def restores(self, union, remote):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(self.shares[0][1])) as root:
            restore(Target.of(union, lambda _: False), root, remote, LocalContent(), Transfer(workers=1), None)
            found = {path.name: path.read_bytes() for path in Path(root).iterdir()}
        hours = round((union.end_ns - BEGIN_NS) / HOUR_NS)
        expected = {}
        for (_, step, *_, end), (_, _, files) in zip(SHARES, self.shares, strict=True):
            if (step, end) == (union.step, hours):
                expected |= files
        assert found == expected
        self.histories["pulled"] += 1

    # -- what happens

    @initialize(first=st.sampled_from([0, 2, 4, 4, 4, 5]), given_up=st.booleans())
    def begin(self, first, given_up):
        """Some saves are in the store already."""
        for share in range(first):
            self.pushes(share)(self.store)
        if given_up:
            self.retain(0)
        self.look()

    def begins(self, what):
        """Start an actor, unless one of its role is busy; its role."""
        kind, *how = what
        role = {"push": lambda: f"push {SHARES[how[0]][0]}", "collect": lambda: how[0], "pull": lambda: "pull"}[kind]()
        if role not in self.actors:
            body = {"push": self.pushes, "collect": self.collects, "pull": self.pulls}[kind](*how)
            self.actors[role] = Actor(role, self.store, body)
        return role

    def runs(self, role, moment):
        """Up to a moment at which it matters; None = to the end."""
        actor = self.actors[role]
        if not actor.done:
            actor.run(lambda: moment is not None and actor.is_before(moment))

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
        share=st.integers(0, len(SHARES) - 1),
        node=st.sampled_from(["C1", "C2"]),
        moments=st.tuples(st.sampled_from(["list", "sweep", "delete"]), MOMENTS),
        push_first=st.booleans(),
    )
    def overtake(self, which, share, node, moments, push_first):
        """A commit is given up, and one of collector and pusher passes the other at a moment at which it matters."""
        self.retain(which)
        roles = [lambda: self.begins(("collect", node, 0, True)), lambda: self.begins(("push", share))]
        for begin, moment in list(zip(roles, moments, strict=True))[:: -1 if push_first else 1]:
            self.runs(begin(), moment)
        for role in (node, f"push {SHARES[share][0]}"):
            self.runs(role, None)
        self.retire()

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
        self.pick(which).step(outcome)
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
            for actor in list(self.actors.values()):  # they wake up when all is over
                actor.run()
            self.retire()
            self.collect_all()
            valid = self.look()
            assert self.acked - self.condemned <= valid
            assert bool(valid) >= bool(self.acked), "the last step was given up"
            self.need_space()
            if valid:
                self.pulls()(self.store)
            self.count()
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

    def need_space(self):
        """Nothing is left that no part needs, and no part that no commit can ever need."""
        seen = survey(self.eye, young_ns=None)
        gone = swept(seen.collections)
        needed, steps = set(), {commit.split("/")[2] for commit in standing(seen.tree, gone)}
        for part, needs in seen.needs(seen.tree.parts.keys() - gone):
            needed |= needs.chunks
            assert part not in gone
        assert seen.chunks.keys() <= needed
        assert {part.split("/")[2] for part in seen.tree.parts.keys() & gone} <= steps
        names = {key.replace("/parts/", "/ready/").removesuffix(".json.zst") for key in seen.tree.parts.keys() - gone}
        assert seen.tree.ready <= names
        assert not seen.tree.commits.keys() & gone
        assert all(each.sweep is not None for each in seen.collections)

    def count(self):
        """What the histories were made of: a machine in which nothing happens proves nothing."""
        collections = self.eye.collections()
        self.histories["swept a commit"] += any("/commits/" in key for each in collections for key in each.sweep)
        self.histories["swept a chunk"] += any("/chunks/" in key for each in collections for key in each.sweep)
        self.histories["spared"] += any(each.sweep != each.keys for each in collections)
        self.histories["fresh key"] += any("." in key for key in self.store.objects if "/chunks/" in key)
        self.histories["acknowledged"] += bool(self.acked)
        self.histories["voided"] += bool(self.voided)
