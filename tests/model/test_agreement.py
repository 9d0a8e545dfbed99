"""Whatever is in the store and on the disks, the nodes that decide pick the same step, and only a whole one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ckptsync.layouts.verl import Verl
from ckptsync.model.agreement import (
    Candidate,
    Chosen,
    CommitFirst,
    Nothing,
    Refused,
    Waiting,
    candidate_of,
    gather,
    pick,
    uncommitted,
)
from ckptsync.model.manifest import ManifestError, PartId
from ckptsync.model.rounds import Decision, Limits, Offer, Place, parse_decision, parse_offer

LAYOUT = Verl()
WINDOW_NS = 3600 * 10**9
PLACE = Place("r", "id", "job-1", 1)
KINDS = ("model", "optim")


def offer(node, *, nodes=2, **fields):
    return Offer(PLACE, node, f"id-{node}", nodes, **fields)


def candidate(step, *, committed=True, end=None, lacking=(), layout="verl"):
    parts = frozenset(PartId(node, "0" * 64) for node in lacking)
    return Candidate(step, step if end is None else end, 3, f"{step:064x}", layout, committed, parts)


# -- may anything be decided


def test_absent_nodes_are_waited_for_until_time_is_up():
    offers = [offer("a")]
    assert gather(offers, 2, timed_out=False) == Waiting(1)
    assert gather(offers, 2, timed_out=True) is None
    assert gather([*offers, offer("b")], 2, timed_out=False) is None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (offer("b", limits=Limits(step=80)), "disagree about the limits: a: no limits; b: --step 80"),
        (offer("b", limits=Limits(max_step=80)), "--max-step 80"),
        (offer("b", limits=Limits(layout="verl")), "layout verl"),
        (offer("b", nodes=3), "disagree about the number of nodes: a: --nodes 2; b: --nodes 3"),
    ],
)
def test_limits_that_differ_are_refused_once_all_can_hear_it(other, why):
    offers = [offer("a"), other]
    verdict = gather(offers, 2, timed_out=False)
    assert isinstance(verdict, Refused)
    assert why in verdict.why
    early = gather(offers, 3, timed_out=False)
    assert isinstance(early, Waiting)
    assert why in early.why


def test_more_nodes_than_the_round_has_are_refused():
    verdict = gather([offer("a"), offer("b"), offer("c")], 2, timed_out=False)
    assert isinstance(verdict, Refused)
    assert "3 nodes came" in verdict.why


def test_time_does_not_decide_without_nodes_that_have_restored_already():
    verdict = gather([offer("a")], 2, timed_out=True, gone={"a", "b"})
    assert verdict == Refused("b restored what was decided before, and must pull again")
    assert gather([offer("a"), offer("b")], 2, timed_out=False, gone={"a", "b"}) is None


# -- for what


BOTH = [offer("a"), offer("b")]


def test_the_newest_is_picked_not_the_highest_number():
    old, new = candidate(120, end=5), candidate(80, end=9)
    assert pick([old, new], BOTH, 2, timed_out=False) == Chosen(new)


def test_an_uncommitted_save_is_committed_first_but_not_when_time_is_up():
    old, new = candidate(80), candidate(90, committed=False, lacking=["b"])
    assert pick([old, new], BOTH, 2, timed_out=False) == CommitFirst(new)
    assert pick([old, new], BOTH, 2, timed_out=True) == Chosen(old)


def test_limits_bound_what_is_picked():
    found = [candidate(step) for step in (80, 90, 100)]

    def picked(**limits):
        return pick(found, [offer(node, limits=Limits(**limits)) for node in "ab"], 2, timed_out=False)

    assert picked(step=90) == Chosen(found[1])
    assert picked(max_step=95) == Chosen(found[1])
    assert picked(step=70) == Nothing()
    assert picked(layout="plain") == Nothing()


def test_nothing_is_agreed_to_only_by_all():
    assert pick([], BOTH, 2, timed_out=False) == Nothing()
    verdict = pick([], BOTH[:1], 2, timed_out=True)
    assert isinstance(verdict, Refused)
    assert "1 of 2 nodes did not come" in verdict.why
    stuck = pick([candidate(90, committed=False, lacking=["b"])], BOTH, 2, timed_out=True)
    assert isinstance(stuck, Refused)
    assert "step 90 waits for b" in stuck.why


# -- any state of the world


@dataclass
class World:
    """A run's parts, and which of them are where."""

    parts: dict = field(default_factory=dict)  # step -> {id: part}
    ready: set = field(default_factory=set)
    offers: dict = field(default_factory=dict)  # node -> ids
    commits: set = field(default_factory=set)  # digests
    label: dict = field(default_factory=dict)  # part id -> which save it is of

    def candidates(self):
        found = {}
        for parts in self.parts.values():
            offered = set().union(*self.offers.values())
            for union in uncommitted(parts, self.ready, offered, LAYOUT, window_ns=WINDOW_NS):
                committed = union.commit.digest in self.commits
                found[union.commit.digest] = candidate_of(union, committed=committed, ready=self.ready), union
        return found

    def round(self, nodes):
        return [
            offer(node, nodes=nodes, parts=frozenset((20, each) for each in ids)) for node, ids in self.offers.items()
        ]


def save_parts(make_part, label, nodes, began, previous, deal):
    """The parts of one save of step 20: each rank's shards on the node that has it, data.pt on the last one."""
    world = len(deal)
    for index, node in enumerate(nodes):
        files = {}
        for rank, holder in enumerate(deal):
            if holder == index:
                files |= {
                    f"actor/{kind}_world_size_{world}_rank_{rank}.pt": (f"{label} {kind} {rank}", began + rank)
                    for kind in KINDS
                }
                if rank == 0:
                    files |= {
                        f"actor/{name}": (name, began) for name in ("fsdp_config.json", "huggingface/config.json")
                    }
        if index == len(nodes) - 1:
            files["data.pt"] = (f"{label} data", began + world)
        if files:
            closed = "data.pt" in files
            yield make_part(node, files, saved=max(at for _, at in files.values()), closed=closed, previous=previous)


@st.composite
def worlds(draw, make_part):
    """Up to three saves of one number, a minute or more apart, and any subset of everything."""
    nodes = ["n0", "n1", "n2"][: draw(st.integers(1, 3))]
    world, began, previous = World(), 0.0, None
    for label in range(draw(st.integers(1, 3))):
        deal = draw(st.lists(st.integers(0, len(nodes) - 1), min_size=2, max_size=4))
        parts = list(save_parts(make_part, f"save {label}", nodes, began, previous, deal))
        for part in parts:
            if draw(st.integers(0, 4)):  # most parts are in the store
                world.parts.setdefault(20, {})[part.id] = part
                world.label[part.id] = label
                if draw(st.booleans()):
                    world.ready.add(part.id)
                elif draw(st.booleans()):
                    world.offers.setdefault(part.node, set()).add(part.id)
        previous = began + len(deal)
        began += draw(st.integers(60, 4000))
    for node in nodes:
        if draw(st.integers(0, 3)):
            world.offers.setdefault(node, set())
    for found, _ in world.candidates().values():
        if not found.lacking and draw(st.booleans()):
            world.commits.add(found.commit)
    return world, len(nodes)


def assert_one_whole_save(world, union):
    assert union.whole
    labels = {world.label[part] for part in union.parts}
    assert len(labels) == 1, "two saves in one commit"
    sizes = {path: entry.size for path, (_, entry) in union.files.items()}
    assert LAYOUT.missing(sizes) == ()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_node_that_decides_picks_the_same_whole_step(make_part, data):
    world, nodes = data.draw(worlds(make_part))
    shuffle = random.Random(data.draw(st.integers(0, 99)))
    for _ in range(10):  # holders push until there is a decision
        offers, found = world.round(nodes), world.candidates()
        timed_out = data.draw(st.booleans()) or len(offers) < nodes
        verdicts = []
        for _ in range(3):  # the order in which a node reads things says nothing
            shown = [candidate for candidate, _ in found.values()]
            shuffle.shuffle(shown)
            shuffle.shuffle(offers)
            verdicts.append(
                gather(offers, nodes, timed_out=timed_out) or pick(shown, offers, nodes, timed_out=timed_out)
            )
        assert all(verdict == verdicts[0] for verdict in verdicts)
        verdict = verdicts[0]
        if not isinstance(verdict, CommitFirst):
            break
        union = found[verdict.candidate.commit][1]
        assert_one_whole_save(world, union)
        assert all(part in world.offers[part.node] for part in verdict.candidate.lacking)
        world.ready |= verdict.candidate.lacking
        world.commits.add(verdict.candidate.commit)
    event(type(verdict).__name__)
    assert not isinstance(verdict, CommitFirst)
    if isinstance(verdict, Chosen):
        union = found[verdict.candidate.commit][1]
        assert verdict.candidate.commit in world.commits
        assert_one_whole_save(world, union)
        assert union.parts.keys() <= world.ready
        assert not [c for c, _ in found.values() if c.committed and c.rank > verdict.candidate.rank]


# -- documents


def test_documents_come_back_as_they_were():
    part = PartId("n@1", "a" * 64)
    said = offer("n@1", limits=Limits(80, None, "verl"), scope="8-15", parts=frozenset({(80, part)}))
    assert parse_offer(said.to_bytes(), PLACE, "n@1") == said
    decided = Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6, "newest")
    assert parse_decision(decided.to_bytes(), PLACE) == decided
    refused = Decision(PLACE, "a", 2, "refused", why="x" * 5000)
    assert parse_decision(refused.to_bytes(), PLACE).outcome == "refused"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"round":1', b'"round":2'),
        (b'"run_id":"id"', b'"run_id":"jd"'),
        (b'"outcome":"commit"', b'"outcome":"nothing"'),
        (b'"outcome":"commit"', b'"outcome":"perhaps"'),
        (b'"step":80', b'"step":-2'),
        (b'"nodes":2', b'"nodes":true'),
        (b'"format":[1,0]', b'"format":[2,0]'),
        (b',"why":""', b""),
        (b'"why":""', b'"why":3'),
    ],
)
def test_a_decision_that_is_none_is_told(old, new):
    data = Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6).to_bytes()
    assert old in data
    with pytest.raises(ManifestError):
        parse_decision(data.replace(old, new), PLACE)


def test_documents_of_a_later_minor_version_are_read():
    decided = Decision(PLACE, "a", 2, "commit", 80, "b" * 64, 5, 6)
    said, chosen = (
        document.to_bytes().replace(b'"format":[1,0]', b'"extra":7,"format":[1,1]')
        for document in (offer("a"), decided)
    )
    assert parse_offer(said, PLACE, "a") == offer("a")
    assert parse_decision(chosen, PLACE) == decided


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"parts":[]', b'"parts":[[80]]'),
        (b'"parts":[]', b'"parts":[[80,"no digest"]]'),
        (b'"parts":[]', b'"parts":7'),
        (b'"step":-1', b'"step":"80"'),
        (b'"node":"a"', b'"node":"b"'),
        (b'"limits":{"layout":"","max_step":-1,"step":-1}', b'"limits":[]'),
    ],
)
def test_an_offer_that_is_none_is_told(old, new):
    data = offer("a").to_bytes()
    assert old in data
    with pytest.raises(ManifestError):
        parse_offer(data.replace(old, new), PLACE, "a")
