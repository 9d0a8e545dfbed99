"""Which launch wrote a save: never a wrong one, and in an orderly run always the right one."""

from __future__ import annotations

import random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ckptsync.model.launch import GRACE_NS, Span, Start, is_local, local_attempt, wrote

NS = 10**9
T0 = 1_800_000_000 * NS


def at(seconds):
    return T0 + int(seconds * NS)


def span(start, *, end=None, seen=None, node="n0", attempt="a"):
    seen = start if seen is None else seen
    return Span(at(start), node, attempt, at(seen), None if end is None else at(end))


def test_a_save_within_a_launch_is_its_own():
    one, two = span(0, end=1000), span(2000, seen=5000, attempt="b")
    assert wrote(at(500), "n0", [one, two]) == one
    assert wrote(at(1000), "n0", [one, two]) == one
    assert wrote(at(3000), "n0", [two, one]) == two
    assert wrote(at(5089), "n0", [one, two]) == two


def test_outside_of_launches_nobody_knows():
    spans = [span(0, end=1000), span(2000, seen=5000)]
    assert wrote(at(-1), "n0", spans) is None
    assert wrote(at(1500), "n0", spans) is None
    assert wrote(at(5000) + GRACE_NS + 1, "n0", spans) is None
    assert wrote(at(500), "n0", []) is None


def test_the_end_that_was_said_counts_and_not_the_grace():
    assert wrote(at(1060), "n0", [span(0, seen=990, end=1000)]) is None
    assert wrote(at(1060), "n0", [span(0, seen=1000)]) is not None


def test_a_later_launch_takes_the_place_of_one_that_never_said_its_end():
    killed, next_one = span(0, seen=1000), span(1030, seen=1030, attempt="b")
    assert wrote(at(1029), "n0", [killed, next_one]) == killed
    assert wrote(at(1031), "n0", [killed, next_one]) == next_one


def test_two_side_by_side_leave_it_open():
    old = span(0, seen=3000)
    assert wrote(at(2500), "n0", [old, span(2000, seen=2500)]) is None
    assert wrote(at(2500), "n0", [old, span(2000, end=2100)]) is None
    assert wrote(at(1999), "n0", [old, span(2000, seen=2500)]) == old
    assert wrote(at(5), "n0", [span(0, seen=9, attempt="a"), span(0, seen=9, attempt="b")]) is None


def test_one_that_ended_within_the_next_one_did_not_write_what_came_after_its_end():
    old, new = span(0, end=2010), span(2000, seen=4000)
    assert wrote(at(2005), "n0", [old, new]) is None
    assert wrote(at(2500), "n0", [old, new]) == new


def test_a_decision_of_another_attempt_ends_what_is_known():
    launch = span(0, seen=5000)
    assert wrote(at(3000), "n0", [launch], [Start("b", at(2000))]) is None
    assert wrote(at(1999), "n0", [launch], [Start("b", at(2000))]) == launch
    assert wrote(at(3000), "n0", [launch], [Start("b", at(-5))]) == launch


def test_a_later_round_of_its_own_attempt_does_too_but_not_the_one_it_came_from():
    launch = span(0, seen=5000)
    assert wrote(at(3000), "n0", [launch], [Start("a", at(2000))]) is None
    assert wrote(at(3000), "n0", [launch], [Start("a", at(1))]) == launch  # clocks of two nodes
    assert wrote(at(3000), "n0", [launch], [Start("a", at(-10))]) == launch


def test_a_node_that_was_not_launched_is_spoken_for_by_those_of_one_attempt():
    head, other = span(0, seen=5000, node="head"), span(1, seen=5000, node="w1")
    assert wrote(at(3000), "w2", [head, other]) == head
    assert wrote(at(3000), "w2", [head, span(1, seen=5000, node="w1", attempt="b")]) is None
    assert wrote(at(3000), "w2", [head], [Start("b", at(100))]) is None
    mine = span(-500, end=-400, node="w2", attempt="old")
    assert wrote(at(3000), "w2", [head, mine]) == head


def test_launches_alone_say_nothing_of_other_nodes():
    alone = span(0, seen=5000, node="head", attempt=local_attempt(T0))
    assert is_local(alone.attempt)
    assert wrote(at(3000), "head", [alone]) == alone
    assert wrote(at(3000), "w2", [alone]) is None
    assert wrote(at(3000), "w2", [alone, span(0, seen=5000, node="w1")]) is None


def test_what_ran_here_unclearly_is_not_explained_by_others():
    here = [span(0, seen=3000, node="w2"), span(2000, seen=2500, node="w2")]
    assert wrote(at(2400), "w2", [*here, span(1, seen=5000, node="head")]) is None


def test_what_ran_elsewhere_unclearly_leaves_it_open_too():
    """The old trainer lived on beside a new one that was short: either may have had ranks here."""
    head, old = span(0, seen=5000, node="head", attempt="b"), span(-500, seen=5000, node="w1", attempt="a")
    for new in (span(10, seen=5000, node="w1", attempt="b"), span(10, end=20, node="w1", attempt="b")):
        assert wrote(at(3000), "w2", [head, old, new]) is None
        assert wrote(at(3000), "head", [head, old, new]) == head
    gone = span(-500, end=-400, node="w1", attempt="a")
    assert wrote(at(3000), "w2", [head, gone, span(10, seen=5000, node="w1", attempt="b")]) == head


# -- a world of nodes, launches, crashes and saves


class World:
    """One training after the other, each over some nodes; what really wrote each save is known."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.spans, self.starts = [], []
        self.saves = []  # (time, node, writer or None)
        self.now = 0.0
        self.last = False  # whether the training before was launched by `exec`
        for number in range(self.random.randint(1, 7)):
            self.training(f"job-{number}")

    def training(self, attempt):
        pick = self.random
        nodes = pick.sample(["n0", "n1", "n2"], pick.randint(1, 3))
        by_exec = pick.random() < 0.7
        decided = len(nodes) > 1 and pick.random() < 0.8
        length = pick.uniform(10, 4000)
        if decided:
            self.starts.append(Start(attempt, at(self.now)))
            self.now += pick.uniform(6, 60)
        if self.last and pick.random() < 0.3 and (decided or (by_exec and self.spans[-1].node == nodes[0])):
            self.hang(self.now + pick.uniform(0, length))
        begin, end = self.now, self.now + length
        launched = {}
        for node in nodes if by_exec and pick.random() < 0.5 else nodes[:1] * by_exec:
            began = begin + pick.uniform(0, 1)
            launched[node] = self.life(attempt, node, began, end + pick.uniform(0, 1))
        for _ in range(pick.randint(0, 4)):
            saved = pick.uniform(begin + min(5, length / 2), end)
            for node in nodes:
                self.saves.append((at(saved), node, attempt if launched else None))
        # a trainer that is started without `exec` needs longer than the grace before it has saved for the first time
        self.now = end + pick.uniform(100, 5000)
        self.last = bool(launched)

    def hang(self, until):
        """The last launch lives on, though its training is over."""
        last = self.spans.pop()
        self.spans.append(Span(last.started_ns, last.node, last.attempt, max(last.seen_ns, at(until))))

    def life(self, attempt, node, began, end):
        pick = self.random
        beats = int((end - began) // 60)
        seen = began + 60 * beats
        if pick.random() < 0.2:
            seen = began + 60 * pick.randint(0, beats)  # the store was away
        ended = pick.random() < 0.5
        self.spans.append(Span(at(began), node, attempt, at(seen), at(end) if ended else None))
        return self.spans[-1]


@settings(max_examples=400)
@given(st.integers(0, 2**32))
def test_the_writer_is_named_or_nobody(seed):
    world = World(seed)
    for saved_ns, node, attempt in world.saves:
        found = wrote(saved_ns, node, world.spans, world.starts)
        if found is None:
            event("nobody")
            continue
        event("named")
        assert found.attempt == attempt, (saved_ns, node, attempt, found)


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_in_an_orderly_run_the_writer_is_always_named(seed):
    pick = random.Random(seed)
    spans, saves, now = [], [], 0.0
    for number in range(pick.randint(1, 6)):
        length = pick.uniform(1, 3000)
        crashed = pick.random() < 0.5
        seen = now + 60 * (length // 60)
        spans.append(span(now, seen=seen, end=None if crashed else now + length, attempt=f"job-{number}"))
        saves += [(now + pick.uniform(0, length), spans[-1]) for _ in range(3)]
        now += length + pick.uniform(0.5, 500)
    pick.shuffle(spans)
    for saved, writer in saves:
        assert wrote(at(saved), "n0", spans) == writer


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_launches_does_not_matter(seed):
    world = World(seed)
    shuffled = random.Random(seed).sample(world.spans, len(world.spans))
    for saved_ns, node, _ in world.saves:
        assert wrote(saved_ns, node, world.spans, world.starts) == wrote(saved_ns, node, shuffled, world.starts)
