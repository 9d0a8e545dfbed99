"""Which saves a set of parts holds. A few numbers tell a save here: who wrote which ranks when, by whose clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.layouts.plain import Plain
from ckptsync.layouts.verl import Verl
from ckptsync.model.manifest import DirEntry, LinkEntry, digest_of
from ckptsync.model.merge import saves_of, unite
from ckptsync.model.step import Expectation

WINDOW_NS = 3600 * 10**9
LAYOUT = Verl()


@dataclass(frozen=True)
class Writer:
    """Builds the parts of one save of step 20: `world` ranks, dealt to nodes as (ranks of n0, ranks of n1, ...)."""

    make_part: object
    deal: tuple[tuple[int, ...], ...]
    label: str = "A"
    began: float = 0.0
    previous: float | None = None
    clocks: tuple[float, ...] = ()
    sft: bool = False
    driver: int = 0
    skip: frozenset[str] = frozenset()

    @property
    def world(self) -> int:
        return sum(len(ranks) for ranks in self.deal)

    def files(self, node: int) -> dict[str, float]:
        """path -> when it was written, in true time: a rank every second, then rank 0's files, then the dataloader."""
        role = "" if self.sft else "actor/"
        found = {
            f"{role}{kind}_world_size_{self.world}_rank_{rank}.pt": self.began + rank + 0.25 * index
            for rank in self.deal[node]
            for index, kind in enumerate(("model", "optim"))
        }
        if 0 in self.deal[node]:
            found |= {f"{role}fsdp_config.json": self.began + 1, f"{role}huggingface/config.json": self.began + 1}
        if self.sft:
            found |= {f"data_{rank}.pt": self.began + rank + 0.5 for rank in self.deal[node]}
        elif node == self.driver:
            found["data.pt"] = self.began + self.world + 1
        return {path: seconds for path, seconds in found.items() if path not in self.skip}

    def part(self, node: int, **fields):
        clock = self.clocks[node] if self.clocks else 0.0
        files = self.files(node)
        closing = [path for path in files if path.startswith("data")]
        content = {
            path: (f"{self.label} {path}" if path.endswith(".pt") else path, seconds + clock)
            for path, seconds in files.items()
        }
        ends = [seconds for path, seconds in files.items() if path in closing or not closing]
        return self.make_part(
            f"n{node}",
            content,
            saved=max(ends, default=self.began) + clock,
            closed=bool(closing),
            previous=None if self.previous is None else self.previous + clock,
            clock=clock,
            **fields,
        )

    def parts(self):
        return [self.part(node) for node in range(len(self.deal)) if self.files(node)]

    @property
    def paths(self) -> set[str]:
        return {path for node in range(len(self.deal)) for path in self.files(node)}


def _saves(parts, rules=LAYOUT, **options):
    return saves_of(parts, rules, window_ns=WINDOW_NS, **options)


def _labels(union) -> set[str]:
    """Which saves the shards and closing files of a union come from, by what is written in them."""
    found = set()
    for _, entry in union.files.values():
        for label in "ABCD":
            text = f"{label} {entry.path}".encode()
            found |= {label} if entry.digest == digest_of(text) else set()
    return found


@st.composite
def deals(draw, fewest=1, most=5):
    """Up to 6 ranks over up to 5 nodes; a node may have none."""
    count, world = draw(st.integers(fewest, most)), draw(st.integers(1, 6))
    owners = [draw(st.integers(0, count - 1)) for _ in range(world)]
    return tuple(tuple(rank for rank in range(world) if owners[rank] == node) for node in range(count))


CLOCKS = st.lists(st.integers(-600, 600), min_size=5, max_size=5).map(tuple)


@settings(max_examples=80)
@given(deals(), CLOCKS, st.booleans(), st.integers(0, 4), st.randoms(use_true_random=False))
def test_any_split_of_a_whole_save_in_any_order_gives_the_same_commit(make_part, deal, clocks, sft, driver, chooser):
    save = Writer(make_part, deal, sft=sft, driver=driver % len(deal), clocks=clocks)
    parts = save.parts()
    (union, *rest) = _saves(parts)
    assert rest == []
    assert union.whole
    assert set(union.files) == save.paths
    assert set(union.commit.parts) == {part.id for part in parts}
    for _ in range(3):
        chooser.shuffle(parts)
        assert [other.commit for other in _saves(parts)] == [union.commit]
        assert _saves(parts)[0].files == union.files


@settings(max_examples=80)
@given(deals(), st.booleans(), st.data())
def test_a_save_that_lacks_one_required_file_is_never_whole(make_part, deal, sft, data):
    whole = Writer(make_part, deal, sft=sft)
    lost = data.draw(st.sampled_from(sorted(whole.paths)))
    if (sft and lost.startswith("data_")) or (whole.world == 1 and "_rank_" in lost):
        lost = ""  # names do not tell which ranks have dataloaders, nor a kind of shard that nobody wrote
    assert any(union.whole for union in _saves(whole.parts()))
    assert any(union.whole for union in _saves(replace(whole, skip=frozenset({lost})).parts())) == (lost == "")


@settings(max_examples=40)
@given(deals(2, 5), st.data())
def test_a_save_that_lacks_one_nodes_part_is_never_whole(make_part, deal, data):
    parts = Writer(make_part, deal).parts()
    if len(parts) > 1:
        parts.remove(data.draw(st.sampled_from(parts)))
        assert not any(union.whole for union in _saves(parts))


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
    unions = _saves(parts)
    for union in unions:
        assert not union.whole or len(_labels(union)) == 1
    whole = {label for union in unions if union.whole for label in _labels(union)}
    arrived = {part.id for part in parts}
    assert whole == {save.label for save in (old, new) if arrived.issuperset(part.id for part in save.parts())}
    if whole == {"A", "B"}:
        assert _labels(unions[0]) == {"B"}


def _first_with_shards(deal) -> str:
    return next(f"n{node}" for node, ranks in enumerate(deal) if ranks)


@pytest.mark.parametrize("sft", [False, True])
def test_without_anything_that_tells_them_apart_two_saves_would_mix(make_part, sft):
    """The control of the test above, and why parts carry the end of the save before."""
    deal = ((0,), (1,))
    old, new = Writer(make_part, deal, "A", sft=sft), Writer(make_part, deal, "B", 1800.0, sft=sft)
    (mixed, *_) = _saves([new.part(0), old.part(1)])
    assert mixed.whole
    assert _labels(mixed) == {"A", "B"}
    told = replace(new, previous=1000.0)
    assert not any(union.whole for union in _saves([told.part(0), old.part(1)]))
    by_n0 = _saves([old.part(0), new.part(0), old.part(1)])
    assert [_labels(union) for union in by_n0 if union.whole] == [{"A"}]


def test_a_part_that_is_not_ready_yet_tells_that_the_ready_one_is_of_an_older_save(make_part):
    """Killed after n1 had verified its share, then saved again in place: n0 is faster than n1."""
    deal = ((0,), (1,))
    old, new = Writer(make_part, deal, "A", previous=-500.0), Writer(make_part, deal, "B", 1800.0, previous=-500.0)
    ready = [new.part(0), old.part(1)]
    assert _labels(_saves(ready)[0]) == {"A", "B"}
    assert not any(union.whole for union in _saves(ready, witnesses=[new.part(1)]))
    complete = _saves([*ready, new.part(1)])
    assert [_labels(union) for union in complete if union.whole] == [{"B"}]
    assert _saves(complete[0].parts.values(), witnesses=[old.part(1)])[0].commit == complete[0].commit


def test_a_witness_is_never_used_itself(make_part):
    save = Writer(make_part, ((0,), (1,)))
    assert not any(union.whole for union in _saves([save.part(0)], witnesses=[save.part(1)]))


def test_a_role_that_lies_on_another_node_is_awaited_once_that_node_has_said_so(make_part):
    """Actor and critic on nodes of their own: the actor's names tell nothing of a critic."""
    save = Writer(make_part, ((0,),), previous=-500.0)
    critic = {f"critic/{kind}_world_size_1_rank_0.pt": ("c", 1.0) for kind in ("model", "optim")}
    other = make_part("n1", {**critic, "critic/fsdp_config.json": ("{}", 1.0)})
    (unaware,) = _saves(save.parts())
    assert (unaware.whole, unaware.awaited) == (True, ())
    (union,) = _saves(save.parts(), witnesses=[other])
    assert {problem.path for problem in union.awaited} == set(critic)
    assert union.commit == unaware.commit  # who has committed it before is not refused
    (complete,) = _saves([*save.parts(), other])
    assert not complete.awaited
    elsewhere = [make_part("n1", critic, saved=60.0), make_part("n1", dict.fromkeys(critic, ("x", -900.0)))]
    for other_save in elsewhere:  # begun later, or before the end of the save before
        assert not _saves(save.parts(), witnesses=[other_save])[0].awaited


@settings(max_examples=60)
@given(deals(), CLOCKS, st.integers(0, 3))
def test_clocks_ten_minutes_apart_change_nothing(make_part, deal, clocks, driver):
    save = Writer(make_part, deal, driver=driver % len(deal), previous=-100.0)
    skewed = replace(save, clocks=clocks)
    (plain,), (union,) = _saves(save.parts()), _saves(skewed.parts())
    assert union.whole
    assert union.end_ns == plain.end_ns
    assert {path: part.node for path, (part, _) in union.files.items()} == {
        path: part.node for path, (part, _) in plain.files.items()
    }


def test_clocks_ten_minutes_apart_would_tear_a_save_apart_without_their_offsets(make_part):
    save = Writer(make_part, ((0,), (1,)), clocks=(0.0, 600.0), previous=-100.0)
    parts = save.parts()
    assert _saves(parts)[0].whole
    n1 = parts[1]
    unaware = replace(n1, offset_ns=0, saved_ns=n1.saved_ns - n1.offset_ns, previous_ns=n1.previous_ns - n1.offset_ns)
    assert not _saves([parts[0], unaware])[0].whole


@settings(max_examples=60)
@given(deals(1, 3), deals(), st.booleans(), st.randoms())
def test_older_parts_change_nothing_about_the_newest_save(make_part, deal, elsewhere, sft, chooser):
    """Whoever wrote them, ranks dealt in whatever way: dead nodes, other world sizes."""
    save = Writer(make_part, deal, "C", 9000.0, previous=8000.0, sft=sft)
    older = Writer(make_part, elsewhere, "A", 100.0, previous=50.0, sft=sft)
    middle = Writer(make_part, deal, "B", 4000.0, previous=3000.0, sft=sft)
    (alone,) = _saves(save.parts())
    parts = [*save.parts(), *chooser.sample([*older.parts(), *middle.parts()], chooser.randint(0, len(middle.parts())))]
    chooser.shuffle(parts)
    newest = _saves(parts)[0]
    assert (newest.whole, newest.commit, newest.files) == (alone.whole, alone.commit, alone.files)


def test_a_dead_nodes_old_part_does_not_block_its_replacement(make_part):
    """n1 put its share of an old try and died; n2 has its ranks now."""
    old = Writer(make_part, ((0,), (1,)), "A").part(1)
    new = Writer(make_part, ((0,), (), (1,)), "B", 1200.0, previous=600.0)
    (union, *_) = _saves([old, *new.parts()])
    assert union.whole
    assert not union.conflicts
    assert {part.node for part in union.parts.values()} == {"n0", "n2"}
    unaware = replace(new, previous=None)  # replaced shard by shard: still out, by "written last wins"
    assert _saves([old, *unaware.parts()])[0].commit.parts == tuple(part.id for part in unaware.parts())


def test_a_part_with_only_stale_shards_is_left_out_with_all_its_files(make_part):
    new = Writer(make_part, ((0,),), "B", 1200.0, previous=600.0)
    old = make_part("n1", {"critic/model_world_size_1_rank_0.pt": ("A", 0.0), "critic/notes.txt": ("A", 1190.0)})
    (union,) = _saves([old, *new.parts()])
    assert union.whole
    assert set(union.files) == new.paths
    unaware = replace(new, previous=None)
    assert "critic/notes.txt" in _saves([old, *unaware.parts()])[0].files


def test_a_part_without_shards_must_be_from_the_time_of_the_save(make_part):
    """Nothing in it can be stale by itself: an engine's state of a node that is gone."""
    save = Writer(make_part, ((0,),), "B", 1200.0, previous=600.0)
    fresh = make_part("n1", {"rollout/engine_state.json": ("x", 1201.0)})
    assert "rollout/engine_state.json" in _saves([fresh, *save.parts()])[0].files
    stale = make_part("n1", {"rollout/engine_state.json": ("x", 300.0)})
    assert set(_saves([stale, *save.parts()])[0].files) == save.paths


def test_different_bytes_of_one_shard_within_a_save_are_a_conflict(make_part):
    save = Writer(make_part, ((0, 1), (2,)))
    twin = {"actor/model_world_size_3_rank_1.pt": ("other", 1.0), "actor/model_world_size_3_rank_2.pt": ("Z", 2.5)}
    (union,) = _saves([save.part(0), save.part(1), make_part("n2", twin)])
    assert {conflict.path for conflict in union.conflicts} == set(twin)
    assert "n0 and n2" in union.conflicts[0].message
    assert not union.whole
    same = {"actor/model_world_size_3_rank_1.pt": ("A actor/model_world_size_3_rank_1.pt", 1.0)}
    assert _saves([save.part(0), save.part(1), make_part("n2", same)])[0].whole


def test_conflicts_are_only_within_a_save(make_part):
    old = Writer(make_part, ((0,), (1,)), "A")
    new = Writer(make_part, ((1,), (0,)), "B", 1200.0, previous=600.0)
    unions = _saves([*old.parts(), *new.parts()])
    assert [_labels(union) for union in unions if union.whole] == [{"B"}, {"A"}]
    assert not any(union.conflicts for union in unions)


def test_a_stale_copy_of_another_nodes_shard_is_no_conflict(make_part):
    """After a pull n1 has rank 0's old shard, too; that it is old is known from n0 alone."""
    save = Writer(make_part, ((0,), (1,)), "B", 1200.0, previous=600.0)
    first, second = save.parts()
    leftover = make_part("n1", {"actor/model_world_size_2_rank_0.pt": ("A", 100.0)})
    files = tuple(sorted((*second.files, *leftover.files), key=lambda file: file.path))
    (union, *_) = _saves([first, replace(second, files=files, previous_ns=0)])
    assert union.whole
    assert _saves([replace(first, previous_ns=0), replace(second, files=files, previous_ns=0)])[0].conflicts


def test_a_rewritten_note_does_not_divide_a_save(make_part):
    """n1 is taken twice; between its two roles somebody edits a file that is no shard."""
    save = Writer(make_part, ((0,), (1,)))
    files = {path: (f"A {path}", seconds) for path, seconds in save.files(1).items()}
    first = make_part("n1", {**files, "note.txt": ("1", 0.5)})
    second = make_part("n1", {**files, "note.txt": ("2", 1.5), "critic/model_world_size_1_rank_0.pt": ("c", 2.0)})
    critic = {"critic/fsdp_config.json": ("{}", 2.0), "critic/huggingface/config.json": ("{}", 2.0)}
    (union,) = _saves([save.part(0), first, second, make_part("n2", critic)])
    assert union.whole
    assert save.paths < set(union.files)


def test_other_files_may_differ_and_the_one_written_last_wins(make_part):
    save = Writer(make_part, ((0,), (1,)))
    first, second = save.parts()

    def with_readme(part, text, seconds):
        extra = make_part(part.node, {"actor/README.md": (text, seconds)})
        return replace(part, files=tuple(sorted((*part.files, *extra.files), key=lambda file: file.path)))

    for at_first, at_second, winner in ((1.0, 1.5, "n1"), (1.5, 1.0, "n0"), (1.0, 1.0, "n0")):
        parts = [with_readme(first, "one", at_first), with_readme(second, "two", at_second)]
        for order in (parts, parts[::-1]):
            union = _saves(order)[0]
            assert union.files["actor/README.md"][0].node == winner
            assert union.whole


# -- one node, several parts


def test_a_node_that_took_a_save_again_is_represented_by_the_newer_part(make_part):
    """First without the critic's optimizer, which came a little later; nothing was rewritten."""
    save = Writer(make_part, ((0,), (1,)))
    files = {path: (f"A {path}", seconds) for path, seconds in save.files(1).items()}
    first = make_part("n1", files)
    second = make_part("n1", {**files, "critic/model_world_size_1_rank_0.pt": ("late", 2.5)})
    (union,) = [union for union in _saves([save.part(0), first, second]) if union.files]
    assert second.id in union.parts
    assert first.id not in union.parts


def test_a_clock_that_was_set_back_does_not_make_the_older_save_stand(make_part):
    """Between two saves ten minutes were taken off n0's clock: by its own times the older one is newer."""
    old = Writer(make_part, ((0,),), "A", 0.0, clocks=(600.0,))
    new = Writer(make_part, ((0,),), "B", 300.0, clocks=(0.0,))
    (newest, older) = _saves([new.part(0), old.part(0)])
    assert (_labels(newest), _labels(older)) == ({"B"}, {"A"})


@pytest.mark.parametrize("sft", [False, True])
def test_how_long_after_the_closing_file_a_shard_may_come(make_part, sft):
    """A minute is another save where a barrier stands before the closing file, and a slow disk where none does."""
    save = Writer(make_part, ((0,), (1,)), sft=sft)
    slow = replace(save, began=60.0)
    assert _saves([save.part(0), slow.part(1)])[-1].whole == sft
    assert _saves(save.parts())[-1].whole


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
            assert "metric.json" in _saves(pair)[0].files


def test_a_husk_taken_later_does_not_stand_for_the_save(make_part):
    save = Writer(make_part, ((0,), (1,)))
    husk = make_part("n0", {"data.pt": ("A data.pt", 3.0)}, closed=True)
    union = _saves([*save.parts(), husk])[0]
    assert union.whole
    assert set(union.files) == save.paths


# -- saves without a closing file, and vouchers


def test_where_no_part_has_a_closing_file_each_end_anchors_a_save(make_part):
    rules = Plain()
    old = [make_part(f"n{i}", {f"rank_{i}.pt": ("A", float(i))}, name="step-20") for i in range(2)]
    new = [make_part(f"n{i}", {f"rank_{i}.pt": ("B", 9000.0 + i)}, name="step-20", previous=8000.0) for i in range(2)]
    unions = _saves([*new, *old], rules)
    assert [set(union.commit.parts) for union in unions] == [{p.id for p in new}, {p.id for p in old}]
    assert unions[0].end_ns > unions[1].end_ns


def test_a_closing_file_anywhere_means_that_ends_of_other_parts_anchor_nothing(make_part):
    save = Writer(make_part, ((0,), (1,)))
    begun = Writer(make_part, ((0,), (1,)), "B", 5000.0, previous=4000.0, driver=1)
    unions = _saves([*save.parts(), begun.part(0)])
    assert [_labels(union) for union in unions] == [{"A"}]


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
    assert _saves([coordinator, other], rules)[0].whole
    (alone,) = _saves([coordinator], rules)
    assert [(p.path, p.code) for p in alone.problems] == [("__1_0.distcp", "missing")]
    (without,) = _saves([other], rules)
    assert [(p.path, p.code) for p in without.problems] == [(".metadata", "missing")]
    (short,) = _saves([coordinator, _dcp(make_part, "n1", 1, text="")], rules)
    assert [(p.path, p.code) for p in short.problems] == [("__1_0.distcp", "size")]


def test_a_voucher_that_was_replaced_no_longer_counts(make_part):
    rules = Plain()
    old = _dcp(make_part, "n0", 0, expects=(("__0_0.distcp", 4), ("__1_0.distcp", 4), ("__2_0.distcp", 4)))
    note = make_part("n0", {"note.txt": ("n", 0.0)})
    old = replace(old, files=(*old.files, *note.files))
    new = _dcp(make_part, "n1", 0, expects=(("__0_0.distcp", 4),), began=9.0)
    union = _saves([old, new], rules)[0]
    assert {part.node for part in union.parts.values()} == {"n0", "n1"}
    assert union.whole
    assert not unite([old], old.saved_ns, rules, window_ns=WINDOW_NS).whole


# -- what must never be restored


@pytest.mark.parametrize("entry", ["file", "link", "dir"])
def test_paths_that_form_no_tree_together_are_a_conflict(make_part, entry):
    """n1's link actor/extra leads elsewhere; n0's file would be written through it."""
    save = Writer(make_part, ((0,), (1,)))
    first, second = save.parts()
    assert _saves([first, second])[0].whole
    deep = make_part("n0", {"actor/extra/x.json": ("x", 1.0)})
    first = {
        "file": replace(first, files=tuple(sorted((*first.files, *deep.files), key=lambda file: file.path))),
        "link": replace(first, links=(LinkEntry("actor/extra/x", "../../../outside"),)),
        "dir": replace(first, dirs=(DirEntry("actor/extra", 0o755, 0),)),
    }[entry]
    assert _saves([first, second])[0].whole
    (union,) = _saves([first, replace(second, links=(LinkEntry("actor/extra", "huggingface"),))])
    assert [conflict.code for conflict in union.conflicts] == ["conflict"]
    assert not union.whole


def test_the_step_must_have_a_name_that_stands_for_it(make_part):
    save = Writer(make_part, ((0,),))
    assert _saves([save.part(0)])[0].whole
    for name in ("latest", "global_step_21", "global_step_020"):
        (union,) = _saves([save.part(0, name=name)])
        assert [problem.code for problem in union.problems] == ["name"]


@pytest.mark.parametrize("fields", [{"name": "step-20"}, {"layout": "plain"}])
def test_nodes_must_agree_about_name_and_layout(make_part, fields):
    save = Writer(make_part, ((0,), (1,)))
    (union,) = _saves([save.part(0), save.part(1, **fields)])
    assert [problem.code for problem in union.problems] == ["name"]


def test_directories_are_as_the_node_had_them_that_changed_them_last(make_part, at):
    first, second = Writer(make_part, ((0,), (1,))).parts()

    def dirs(part, seconds, mode):
        return replace(part, dirs=(DirEntry("", mode, at(seconds)),))

    assert _saves([dirs(first, 1.0, 0o700), dirs(second, 2.0, 0o755)])[0].dirs[""].mode == 0o755
    assert _saves([dirs(first, 2.0, 0o700), dirs(second, 1.0, 0o755)])[0].dirs[""].mode == 0o700


def test_no_parts_hold_no_saves():
    assert _saves([]) == ()


def test_a_slow_save_is_torn_by_the_window_and_says_what_is_missing(make_part):
    """No previous end is known, and n1 finished 2 h before the driver."""
    early = Writer(make_part, ((0,), (1,)), began=-7200.0).part(1)
    save = Writer(make_part, ((0,), (1,)))
    (union,) = _saves([save.part(0), early])
    assert any("rank 1 of 2" in problem.message for problem in union.problems)
    assert saves_of([save.part(0), early], LAYOUT, window_ns=3 * WINDOW_NS)[0].whole
    known = replace(save, previous=-9000.0)
    assert _saves([known.part(0), early])[0].whole


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
        for union in _saves(parts):
            found += union.whole
            mixed += union.whole and len(_labels(union)) > 1
    assert mixed == 0
    assert found > 50
