"""Which saves a set of parts holds: what belongs together is found, and two saves never mix."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_savers import CLOCKS, LAYOUT, WINDOW_NS, Writer, deals, labels_of, saves_in

from ckptsync.layouts.plain import Plain
from ckptsync.model.merge import saves_of, unite
from ckptsync.model.step import Expectation


@settings(max_examples=80)
@given(deals(), CLOCKS, st.booleans(), st.integers(0, 4), st.randoms(use_true_random=False))
def test_any_split_of_a_whole_save_in_any_order_gives_the_same_commit(make_part, deal, clocks, sft, driver, chooser):
    save = Writer(make_part, deal, sft=sft, driver=driver % len(deal), clocks=clocks)
    parts = save.parts()
    (union, *rest) = saves_in(parts)
    assert rest == []
    assert union.whole
    assert set(union.files) == save.paths
    assert set(union.commit.parts) == {part.id for part in parts}
    for _ in range(3):
        chooser.shuffle(parts)
        assert [other.commit for other in saves_in(parts)] == [union.commit]
        assert saves_in(parts)[0].files == union.files


@settings(max_examples=80)
@given(deals(), st.booleans(), st.data())
def test_a_save_that_lacks_one_required_file_is_never_whole(make_part, deal, sft, data):
    whole = Writer(make_part, deal, sft=sft)
    lost = data.draw(st.sampled_from(sorted(whole.paths)))
    if (sft and lost.startswith("data_")) or (whole.world == 1 and "_rank_" in lost):
        lost = ""  # names do not tell which ranks have dataloaders, nor a kind of shard that nobody wrote
    assert any(union.whole for union in saves_in(whole.parts()))
    assert any(union.whole for union in saves_in(replace(whole, skip=frozenset({lost})).parts())) == (lost == "")


@settings(max_examples=40)
@given(deals(2, 5), st.data())
def test_a_save_that_lacks_one_nodes_part_is_never_whole(make_part, deal, data):
    parts = Writer(make_part, deal).parts()
    if len(parts) > 1:
        parts.remove(data.draw(st.sampled_from(parts)))
        assert not any(union.whole for union in saves_in(parts))


@settings(max_examples=150)
@given(
    deals(2, 4),
    st.booleans(),
    st.sampled_from(["the previous save", "nothing"]),
    st.integers(30, 3000),
    CLOCKS,
    st.data(),
)
def test_two_saves_of_one_number_never_mix(make_part, deal, sft, knows, later, clocks, data):
    """Whatever of them has arrived, as long as one thing tells them apart: an end in between, or a node's two parts."""
    began = 20.0 + later
    previous = began - data.draw(st.integers(1, 9)) if knows == "the previous save" else None
    old = Writer(make_part, deal, "A", 0.0, sft=sft, clocks=clocks)
    new = Writer(make_part, deal, "B", began, previous, sft=sft, clocks=clocks)
    both = [*old.parts(), *new.parts()]
    parts = data.draw(st.lists(st.sampled_from(both), unique_by=lambda part: part.id))
    if knows == "nothing":
        parts += [part for part in both if part.node == _first_with_shards(deal) and part not in parts]
    unions = saves_in(parts)
    for union in unions:
        assert not union.whole or len(labels_of(union)) == 1
    whole = {label for union in unions if union.whole for label in labels_of(union)}
    arrived = {part.id for part in parts}
    assert whole == {save.label for save in (old, new) if arrived.issuperset(part.id for part in save.parts())}
    if whole == {"A", "B"}:
        assert labels_of(unions[0]) == {"B"}


def _first_with_shards(deal) -> str:
    return next(f"n{node}" for node, ranks in enumerate(deal) if ranks)


@pytest.mark.parametrize("sft", [False, True])
def test_without_anything_that_tells_them_apart_two_saves_would_mix(make_part, sft):
    """The control of the test above, and why parts carry the end of the save before."""
    deal = ((0,), (1,))
    old, new = Writer(make_part, deal, "A", sft=sft), Writer(make_part, deal, "B", 1800.0, sft=sft)
    (mixed, *_) = saves_in([new.part(0), old.part(1)])
    assert mixed.whole
    assert labels_of(mixed) == {"A", "B"}
    told = replace(new, previous=1000.0)
    assert not any(union.whole for union in saves_in([told.part(0), old.part(1)]))
    by_n0 = saves_in([old.part(0), new.part(0), old.part(1)])
    assert [labels_of(union) for union in by_n0 if union.whole] == [{"A"}]


def test_a_part_that_is_not_ready_yet_tells_that_the_ready_one_is_of_an_older_save(make_part):
    """Killed after n1 had verified its share, then saved again in place: n0 is faster than n1."""
    deal = ((0,), (1,))
    old, new = Writer(make_part, deal, "A", previous=-500.0), Writer(make_part, deal, "B", 1800.0, previous=-500.0)
    ready = [new.part(0), old.part(1)]
    assert labels_of(saves_in(ready)[0]) == {"A", "B"}
    assert not any(union.whole for union in saves_in(ready, witnesses=[new.part(1)]))
    complete = saves_in([*ready, new.part(1)])
    assert [labels_of(union) for union in complete if union.whole] == [{"B"}]
    assert saves_in(complete[0].parts.values(), witnesses=[old.part(1)])[0].commit == complete[0].commit


def test_a_witness_is_never_used_itself(make_part):
    save = Writer(make_part, ((0,), (1,)))
    assert not any(union.whole for union in saves_in([save.part(0)], witnesses=[save.part(1)]))


def test_a_role_that_lies_on_another_node_is_awaited_once_that_node_has_said_so(make_part):
    """Actor and critic on nodes of their own: the actor's names tell nothing of a critic."""
    save = Writer(make_part, ((0,),), previous=-500.0)
    critic = {f"critic/{kind}_world_size_1_rank_0.pt": ("c", 1.0) for kind in ("model", "optim")}
    other = make_part("n1", {**critic, "critic/fsdp_config.json": ("{}", 1.0)})
    (unaware,) = saves_in(save.parts())
    assert (unaware.whole, unaware.awaited) == (True, ())
    (union,) = saves_in(save.parts(), witnesses=[other])
    assert {problem.path for problem in union.awaited} == set(critic)
    assert union.commit == unaware.commit  # who has committed it before is not refused
    (complete,) = saves_in([*save.parts(), other])
    assert not complete.awaited
    elsewhere = [make_part("n1", critic, saved=60.0), make_part("n1", dict.fromkeys(critic, ("x", -900.0)))]
    for other_save in elsewhere:  # begun later, or before the end of the save before
        assert not saves_in(save.parts(), witnesses=[other_save])[0].awaited


@settings(max_examples=60)
@given(deals(), CLOCKS, st.integers(0, 3))
def test_clocks_ten_minutes_apart_change_nothing(make_part, deal, clocks, driver):
    save = Writer(make_part, deal, driver=driver % len(deal), previous=-100.0)
    skewed = replace(save, clocks=clocks)
    (plain,), (union,) = saves_in(save.parts()), saves_in(skewed.parts())
    assert union.whole
    assert union.end_ns == plain.end_ns
    assert {path: part.node for path, (part, _) in union.files.items()} == {
        path: part.node for path, (part, _) in plain.files.items()
    }


def test_clocks_ten_minutes_apart_would_tear_a_save_apart_without_their_offsets(make_part):
    save = Writer(make_part, ((0,), (1,)), clocks=(0.0, 600.0), previous=-100.0)
    parts = save.parts()
    assert saves_in(parts)[0].whole
    n1 = parts[1]
    unaware = replace(n1, offset_ns=0, saved_ns=n1.saved_ns - n1.offset_ns, previous_ns=n1.previous_ns - n1.offset_ns)
    assert not saves_in([parts[0], unaware])[0].whole


@settings(max_examples=60)
@given(deals(1, 3), deals(), st.booleans(), st.randoms())
def test_older_parts_change_nothing_about_the_newest_save(make_part, deal, elsewhere, sft, chooser):
    """Whoever wrote them, ranks dealt in whatever way: dead nodes, other world sizes."""
    save = Writer(make_part, deal, "C", 9000.0, previous=8000.0, sft=sft)
    older = Writer(make_part, elsewhere, "A", 100.0, previous=50.0, sft=sft)
    middle = Writer(make_part, deal, "B", 4000.0, previous=3000.0, sft=sft)
    (alone,) = saves_in(save.parts())
    parts = [*save.parts(), *chooser.sample([*older.parts(), *middle.parts()], chooser.randint(0, len(middle.parts())))]
    chooser.shuffle(parts)
    newest = saves_in(parts)[0]
    assert (newest.whole, newest.commit, newest.files) == (alone.whole, alone.commit, alone.files)


def test_a_dead_nodes_old_part_does_not_block_its_replacement(make_part):
    """n1 put its share of an old try and died; n2 has its ranks now."""
    old = Writer(make_part, ((0,), (1,)), "A").part(1)
    new = Writer(make_part, ((0,), (), (1,)), "B", 1200.0, previous=600.0)
    (union, *_) = saves_in([old, *new.parts()])
    assert union.whole
    assert not union.conflicts
    assert {part.node for part in union.parts.values()} == {"n0", "n2"}
    unaware = replace(new, previous=None)  # replaced shard by shard: still out, by "written last wins"
    assert saves_in([old, *unaware.parts()])[0].commit.parts == tuple(part.id for part in unaware.parts())


def test_a_part_with_only_stale_shards_is_left_out_with_all_its_files(make_part):
    new = Writer(make_part, ((0,),), "B", 1200.0, previous=600.0)
    old = make_part("n1", {"critic/model_world_size_1_rank_0.pt": ("A", 0.0), "critic/notes.txt": ("A", 1190.0)})
    (union,) = saves_in([old, *new.parts()])
    assert union.whole
    assert set(union.files) == new.paths
    unaware = replace(new, previous=None)
    assert "critic/notes.txt" in saves_in([old, *unaware.parts()])[0].files


def test_a_part_without_shards_must_be_from_the_time_of_the_save(make_part):
    """Nothing in it can be stale by itself: an engine's state of a node that is gone."""
    save = Writer(make_part, ((0,),), "B", 1200.0, previous=600.0)
    fresh = make_part("n1", {"rollout/engine_state.json": ("x", 1201.0)})
    assert "rollout/engine_state.json" in saves_in([fresh, *save.parts()])[0].files
    stale = make_part("n1", {"rollout/engine_state.json": ("x", 300.0)})
    assert set(saves_in([stale, *save.parts()])[0].files) == save.paths


# -- one node, several parts


def test_a_node_that_took_a_save_again_is_represented_by_the_newer_part(make_part):
    """First without the critic's optimizer, which came a little later; nothing was rewritten."""
    save = Writer(make_part, ((0,), (1,)))
    files = {path: (f"A {path}", seconds) for path, seconds in save.files(1).items()}
    first = make_part("n1", files)
    second = make_part("n1", {**files, "critic/model_world_size_1_rank_0.pt": ("late", 2.5)})
    (union,) = [union for union in saves_in([save.part(0), first, second]) if union.files]
    assert second.id in union.parts
    assert first.id not in union.parts


def test_a_clock_that_was_set_back_does_not_make_the_older_save_stand(make_part):
    """Between two saves ten minutes were taken off n0's clock: by its own times the older one is newer."""
    old = Writer(make_part, ((0,),), "A", 0.0, clocks=(600.0,))
    new = Writer(make_part, ((0,),), "B", 300.0, clocks=(0.0,))
    (newest, older) = saves_in([new.part(0), old.part(0)])
    assert (labels_of(newest), labels_of(older)) == ({"B"}, {"A"})


@pytest.mark.parametrize("sft", [False, True])
def test_how_long_after_the_closing_file_a_shard_may_come(make_part, sft):
    """A minute is another save where a barrier stands before the closing file, and a slow disk where none does."""
    save = Writer(make_part, ((0,), (1,)), sft=sft)
    slow = replace(save, began=60.0)
    assert saves_in([save.part(0), slow.part(1)])[-1].whole == sft
    assert saves_in(save.parts())[-1].whole


def test_of_two_parts_with_one_end_the_richer_one_stands_whatever_their_digests(make_part):
    """The closing file did not move; a report came after it. Measured offsets differ from put to put."""
    base = {"actor/model_world_size_1_rank_0.pt": ("m", 1.0), "data.pt": ("d", 2.0)}
    rich = {**base, "metric.json": ("{}", 2.0)}
    for jitter_ns in (-300_000_000, 0, 300_000_000):
        poor = make_part("n0", base, saved=2.0, closed=True)
        later = make_part("n0", rich, saved=2.0, closed=True)
        later = replace(later, offset_ns=later.offset_ns + jitter_ns, saved_ns=later.saved_ns + jitter_ns)
        for run_id in ("id", "id2", "id3"):  # moves the digests about
            pair = [replace(poor, run_id=run_id), replace(later, run_id=run_id)]
            assert "metric.json" in saves_in(pair)[0].files


def test_a_husk_taken_later_does_not_stand_for_the_save(make_part):
    save = Writer(make_part, ((0,), (1,)))
    husk = make_part("n0", {"data.pt": ("A data.pt", 3.0)}, closed=True)
    union = saves_in([*save.parts(), husk])[0]
    assert union.whole
    assert set(union.files) == save.paths


# -- saves without a closing file, and vouchers


def test_where_no_part_has_a_closing_file_each_end_anchors_a_save(make_part):
    rules = Plain()
    old = [make_part(f"n{i}", {f"rank_{i}.pt": ("A", float(i))}, name="step-20") for i in range(2)]
    new = [make_part(f"n{i}", {f"rank_{i}.pt": ("B", 9000.0 + i)}, name="step-20", previous=8000.0) for i in range(2)]
    unions = saves_in([*new, *old], rules)
    assert [set(union.commit.parts) for union in unions] == [{p.id for p in new}, {p.id for p in old}]
    assert unions[0].end_ns > unions[1].end_ns


def test_a_closing_file_anywhere_means_that_ends_of_other_parts_anchor_nothing(make_part):
    save = Writer(make_part, ((0,), (1,)))
    begun = Writer(make_part, ((0,), (1,)), "B", 5000.0, previous=4000.0, driver=1)
    unions = saves_in([*save.parts(), begun.part(0)])
    assert [labels_of(union) for union in unions] == [{"A"}]


def _dcp(make_part, node, rank, *, expects=(), began=0.0, text="x", **fields):
    files = {f"__{rank}_0.distcp": (text * 4, began)}
    if expects:
        files[".metadata"] = ("m", began + 5)
    vouched = tuple(Expectation(path, size, ".metadata") for path, size in expects)
    return make_part(node, files, closed=bool(expects), expects=vouched, name="step-20", layout="plain", **fields)


def test_what_metadata_names_must_be_there_on_whatever_node(make_part):
    """DCP: .metadata lies on the coordinator's node only."""
    rules = Plain()
    coordinator = _dcp(make_part, "n0", 0, expects=(("__0_0.distcp", 4), ("__1_0.distcp", 4)))
    other = _dcp(make_part, "n1", 1)
    assert saves_in([coordinator, other], rules)[0].whole
    (alone,) = saves_in([coordinator], rules)
    assert [(p.path, p.code) for p in alone.problems] == [("__1_0.distcp", "missing")]
    (without,) = saves_in([other], rules)
    assert [(p.path, p.code) for p in without.problems] == [(".metadata", "missing")]
    (short,) = saves_in([coordinator, _dcp(make_part, "n1", 1, text="")], rules)
    assert [(p.path, p.code) for p in short.problems] == [("__1_0.distcp", "size")]


def test_a_voucher_that_was_replaced_no_longer_counts(make_part):
    rules = Plain()
    old = _dcp(make_part, "n0", 0, expects=(("__0_0.distcp", 4), ("__1_0.distcp", 4), ("__2_0.distcp", 4)))
    note = make_part("n0", {"note.txt": ("n", 0.0)})
    old = replace(old, files=(*old.files, *note.files))
    new = _dcp(make_part, "n1", 0, expects=(("__0_0.distcp", 4),), began=9.0)
    union = saves_in([old, new], rules)[0]
    assert {part.node for part in union.parts.values()} == {"n0", "n1"}
    assert union.whole
    assert not unite([old], old.saved_ns, rules, window_ns=WINDOW_NS).whole


def test_no_parts_hold_no_saves():
    assert saves_in([]) == ()


def test_a_slow_save_is_torn_by_the_window_and_says_what_is_missing(make_part):
    """No previous end is known, and n1 finished 2 h before the driver."""
    early = Writer(make_part, ((0,), (1,)), began=-7200.0).part(1)
    save = Writer(make_part, ((0,), (1,)))
    (union,) = saves_in([save.part(0), early])
    assert any("rank 1 of 2" in problem.message for problem in union.problems)
    assert saves_of([save.part(0), early], LAYOUT, window_ns=3 * WINDOW_NS)[0].whole
    known = replace(save, previous=-9000.0)
    assert saves_in([known.part(0), early])[0].whole


def test_random_histories_of_three_saves_never_mix(make_part):
    """Restarts, other deals of the ranks, parts in any state of arrival: 200 histories of one seed."""
    chooser = random.Random(7)
    mixed = found = 0
    for _ in range(200):
        began, parts = 0.0, []
        for label in "ABC":
            world = chooser.randint(1, 4)
            owners = [chooser.randrange(3) for _ in range(world)]
            deal = tuple(tuple(r for r in range(world) if owners[r] == node) for node in range(3))
            save = Writer(make_part, deal, label, began, began - 5.0 if began else None, driver=chooser.randrange(3))
            parts += [part for part in save.parts() if chooser.random() < 0.8]
            began += chooser.choice([30.0, 400.0, 5000.0])
        for union in saves_in(parts):
            found += union.whole
            mixed += union.whole and len(labels_of(union)) > 1
    assert mixed == 0
    assert found > 50
