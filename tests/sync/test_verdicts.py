"""Preflights of several nodes over one store: all act on what all found, or none does."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from ckptsync.errors import ConflictError, CorruptObject, StoreError
from ckptsync.model.rounds import Place
from ckptsync.model.verdicts import Joint, Verdict, parse_joint, parse_verdict
from ckptsync.store import keys, preflight_keys
from ckptsync.store.base import Capabilities
from ckptsync.sync.attempt import Attempt
from ckptsync.sync.history import History
from ckptsync.sync.remote import Remote
from ckptsync.sync.verdicts import Verdicts


@pytest.fixture
def remote(bench):
    remote = Remote(bench.store, "run")
    remote.open_run("")
    return remote


class Hand:
    """A clock that moves when somebody waits, and lets others act meanwhile."""

    def __init__(self):
        self.now, self.acts = 0.0, []

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += max(seconds, 0.01)
        if self.acts:
            self.acts.pop(0)()


def verdicts(remote, node, *, nodes=2, hand=None, node_id="", timeout_s=30.0, tell=lambda _: None):
    hand = hand or Hand()
    return Verdicts(remote, "a-1", node, node_id or f"id-{node}", nodes, timeout_s, tell, pause=hand.pause, clock=hand)


def refused(party):
    with pytest.raises(ConflictError) as raised:
        party.share(())
    return str(raised.value)


def together(remote, found, **options):
    """All nodes of `found` (node -> failed checks) at once, in threads; node -> what it got, or its error."""
    results = {}

    def run(node, failed):
        party = Verdicts(remote, "a-1", node, f"id-{node}", options.get("nodes", len(found)), 30.0)
        try:
            results[node] = party.share(failed)
        except ConflictError as error:
            results[node] = error

    threads = [threading.Thread(target=run, args=each) for each in found.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_every_node_learns_what_every_node_found(remote):
    found = {"n0": (), "n1": ("tracker", "gpu"), "n2": ()}
    assert together(remote, found) == dict.fromkeys(found, found)


def test_a_node_name_that_looks_like_our_own_objects_does_no_harm(remote, bench):
    found = {"outcome": (), "decision": (), "n/2@x": ("disk",)}
    assert together(remote, found) == dict.fromkeys(found, found)
    assert History(remote, {}, 1).refresh().decisions == {}


def test_the_next_start_opens_the_next_set(remote):
    together(remote, {"n0": ("disk",), "n1": ()})
    assert together(remote, {"n0": (), "n1": ()}) == {"n0": {"n0": (), "n1": ()}, "n1": {"n0": (), "n1": ()}}
    assert remote.store.children(preflight_keys.preflight_prefix("run", "a-1")) == ("000001", "000002")


def test_a_node_that_runs_again_before_the_others_came_replaces_what_it_said(remote):
    hand = Hand()
    hand.acts = [lambda: (_ for _ in ()).throw(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        verdicts(remote, "n0", hand=hand).share(("disk",))
    assert together(remote, {"n0": (), "n1": ()})["n1"] == {"n0": (), "n1": ()}


def test_a_killed_node_does_not_count_once_its_signs_of_life_are_old(remote, bench):
    place = Place("run", remote.run_id, "a-1", 1)
    remote.store.put(preflight_keys.verdict_key("run", "a-1", 1, "n1"), Verdict(place, "n1", "id-n1", 2).to_bytes())
    old = Aged(remote.store, "n1.json", 60)
    told, hand = [], Hand()
    with pytest.raises(ConflictError, match="1 of 2 nodes are here, 1 absent") as raised:
        verdicts(replace(remote, store=old), "n0", hand=hand, tell=told.append).share(())
    assert raised.value.exit_code == 7
    assert told[0].left_s == pytest.approx(30, abs=1)
    assert [meta.key for meta in remote.store.list("run/attempts")] == [
        preflight_keys.verdict_key("run", "a-1", 1, "n1")
    ]


class Aged:
    """A store in which one object looks older than it is (seconds)."""

    def __init__(self, inner, end, seconds):
        self._inner, self._end, self._seconds = inner, end, seconds

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def list(self, prefix):
        for meta in self._inner.list(prefix):
            old = meta.key.endswith(self._end)
            yield replace(meta, modified_ns=meta.modified_ns - self._seconds * 10**9) if old else meta


def test_who_is_absent_is_named(remote):
    for node in ("n0", "n1", "n7"):
        remote.store.put(keys.probe_key("run", node), b"clock")
    with pytest.raises(ConflictError, match=r"1 absent \(n1, n7\?\).*failed on n0: gpu"):
        verdicts(remote, "n0", timeout_s=1.0).share(("gpu",))


def test_different_numbers_of_nodes_are_a_conflict_on_both(remote):
    results = {}
    hand = Hand()
    hand.acts = [lambda: results.update(second=refused(verdicts(remote, "n1", nodes=3)))]
    with pytest.raises(ConflictError, match=r"n1: 3, n0: 2|not all nodes"):
        verdicts(remote, "n0", hand=hand).share(())
    assert "different numbers" in results["second"]


def test_another_machine_of_the_same_name_is_refused(remote):
    raised, hand = [], Hand()
    other = verdicts(remote, "n0", node_id="another")
    hand.acts = [lambda: raised.append(refused(other))]
    with pytest.raises(ConflictError, match="not all nodes"):
        verdicts(remote, "n0", hand=hand, timeout_s=1.0).share(())
    assert "another machine called n0" in raised[0]


def test_a_set_that_closed_over_an_older_verdict_of_ours_is_not_taken(remote):
    """It ran again, and failed, while the others already acted on what it had said before."""
    place = Place("run", remote.run_id, "a-1", 1)
    hand = Hand()

    def close():
        document = Joint(place, 2, {"n0": (), "n1": ()}).to_bytes()
        remote.store.put_new(preflight_keys.outcome_key("run", "a-1", 1), document)

    hand.acts = [close]
    with pytest.raises(ConflictError, match=r"preflight 2.*failed on n0: disk"):
        verdicts(remote, "n0", hand=hand).share(("disk",))


def test_a_node_that_was_killed_before_it_saw_the_outcome_takes_it_if_it_is_fresh(remote):
    """The others went on with it; to wait for them would be in vain."""
    together(remote, {"n0": (), "n1": ()})
    remote.store.delete(preflight_keys.seen_key("run", "a-1", 1, "n0"))
    assert verdicts(remote, "n0").share(()) == {"n0": (), "n1": ()}
    remote.store.delete(preflight_keys.seen_key("run", "a-1", 1, "n0"))
    with pytest.raises(ConflictError, match="preflight 2"):
        verdicts(remote, "n0", timeout_s=1.0).share(("gpu",))
    remote.store.delete(preflight_keys.seen_key("run", "a-1", 1, "n0"))
    with pytest.raises(ConflictError, match="preflight 2"):
        verdicts(replace(remote, store=Aged(remote.store, "outcome", 60)), "n0", timeout_s=1.0).share(())


def test_a_node_that_is_held_up_acts_on_what_the_others_went_on_with(remote):
    """They counted it, and started: that its next sign of life comes a minute later makes their outcome no older."""
    place, hand, slow = Place("run", remote.run_id, "a-1", 1), Hand(), Slow(remote.store, "n0.json", 60)

    def close():
        hand.now += 60
        document = Joint(place, 2, {"n0": (), "n1": ("gpu",)}).to_bytes()
        remote.store.put_new(preflight_keys.outcome_key("run", "a-1", 1), document)

    hand.acts = [close]
    party = verdicts(replace(remote, store=slow), "n0", hand=hand, timeout_s=600.0)
    assert party.share(()) == {"n0": (), "n1": ("gpu",)}
    assert slow.puts == 2


class Slow:
    """A store in which the second put of one object comes late (seconds)."""

    def __init__(self, inner, end, seconds):
        self._inner, self._end, self._seconds, self.puts = inner, end, seconds, 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def put(self, key, data):
        self.puts += key.endswith(self._end)
        self._inner.put(key, data)

    def list(self, prefix):
        for meta in self._inner.list(prefix):
            late = self.puts > 1 and meta.key.endswith(self._end)
            yield replace(meta, modified_ns=meta.modified_ns + self._seconds * 10**9) if late else meta


def test_rounds_of_the_attempt_do_not_see_preflights(remote):
    together(remote, {"n0": (), "n1": ()})
    assert Attempt(remote, "a-1", "n0", "id").newest() is None


def test_a_store_without_one_winner_is_refused(remote):
    class Weak(Aged):
        capabilities = Capabilities(atomic_create=False)

    with pytest.raises(StoreError, match="cannot agree"):
        verdicts(replace(remote, store=Weak(remote.store, "", 0)), "n0").share(())


@pytest.mark.parametrize("data", [b"", b"[]", b'{"kind":"verdict"}', b"x" * 100])
def test_junk_in_the_place_of_a_verdict_is_an_error(remote, data):
    remote.store.put(preflight_keys.verdict_key("run", "a-1", 1, "n1"), data)
    with pytest.raises(CorruptObject, match="verdict"):
        verdicts(remote, "n0").share(())


def test_documents_come_back_and_belong_to_their_place():
    place = Place("run", "id", "a-1", 3)
    verdict = Verdict(place, "n0", "x", 2, ("gpu", "disk"))
    joint = Joint(place, 2, {"n0": ("gpu",), "n1": ()})
    assert parse_verdict(verdict.to_bytes(), place, "n0") == verdict
    assert parse_joint(joint.to_bytes(), place) == joint
    for call in (
        lambda: parse_verdict(verdict.to_bytes(), replace(place, number=4), "n0"),
        lambda: parse_verdict(verdict.to_bytes(), place, "n1"),
        lambda: parse_verdict(joint.to_bytes(), place, "n0"),
        lambda: parse_joint(replace(joint, nodes=3).to_bytes(), place),
        lambda: parse_joint(Joint(place, 1, {"n\n": ()}).to_bytes(), place),
        lambda: parse_verdict(replace(verdict, nodes=0).to_bytes(), place, "n0"),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
