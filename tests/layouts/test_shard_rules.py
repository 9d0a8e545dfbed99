from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.layouts.shards import missing_locally, missing_ranks, ranks_text
from ckptsync.model.step import Shard

KINDS = ("model", "optim", "extra_state")


def shards(world, ranks, kinds=KINDS, role="actor"):
    return [Shard(role, kind, rank, world) for rank in ranks for kind in kinds]


@pytest.mark.parametrize(
    ("ranges", "world", "text"),
    [
        ([(3, 3)], 4, "rank 3 of 4"),
        ([(8, 15)], 16, "ranks 8-15 of 16"),
        ([(0, 1), (5, 5)], 8, "ranks 0-1, 5 of 8"),
        ([(rank, rank) for rank in range(0, 40, 2)], 40, "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... of 40"),
    ],
)
def test_ranks_are_said_in_few_words(ranges, world, text):
    assert ranks_text(ranges, world) == text


def test_every_kind_that_one_rank_wrote_is_needed_of_all():
    half = [*shards(4, [0, 1, 2, 3], ("model",)), *shards(4, [0], ("optim",))]
    assert [str(p) for p in missing_ranks(half)] == ["actor: the optim shards of ranks 1-3 of 4 are missing"]


def test_a_kind_that_nobody_wrote_is_not_needed():
    assert missing_ranks(shards(4, range(4), ("model",))) == ()


def test_roles_have_their_own_world_size():
    assert missing_ranks([*shards(4, range(4)), *shards(2, range(2), role="critic")]) == ()


def test_two_world_sizes_in_one_role_are_two_saves():
    (problem,) = missing_ranks([*shards(8, range(8)), *shards(16, range(3))])
    assert (problem.path, problem.code) == ("actor", "world-size")
    assert "8 and 16" in problem.message


def test_shards_without_a_world_size_prove_nothing():
    assert missing_ranks([Shard("", "distcp", 7)]) == ()


def test_an_absurd_world_size_costs_nothing():
    (problem,) = missing_ranks([Shard("actor", "model", 5, 999_999_999)])
    assert "ranks 0-4, 6-999999998 of 999999999" in problem.message


@given(world=st.integers(1, 12), gone=st.sets(st.tuples(st.integers(0, 11), st.sampled_from(KINDS))))
def test_whole_means_that_nothing_is_gone(world, gone):
    left = [s for s in shards(world, range(world)) if (s.rank, s.kind) not in gone]
    kinds = {s.kind for s in left}
    lacking = {(rank, kind) for rank, kind in gone if rank < world and kind in kinds}
    said = {problem.message.split()[1] for problem in missing_ranks(left)}
    assert said == {kind for _, kind in lacking}


def test_on_a_node_the_ranks_of_others_are_not_missed():
    assert missing_locally(shards(16, range(8, 16)), {}) == ()


def test_on_a_node_each_kind_is_needed_of_each_of_its_ranks():
    growing = [*shards(4, [2, 3], ("model", "optim")), *shards(4, [2], ("extra_state",))]
    (problem,) = missing_locally(growing, {})
    assert problem.message.startswith("the extra_state shards of rank 3 of 4 are missing")


@pytest.mark.parametrize(
    ("here", "problem"),
    [
        (shards(4, [2, 3]), "critic: 0 of the 2 model shards"),
        ([*shards(4, [2, 3]), *shards(4, [2], ("model",), "critic")], "critic: 1 of the 2 model shards"),
    ],
)
def test_what_the_node_wrote_before_is_awaited_again(here, problem):
    seen = {("actor", "model"): 2, ("critic", "model"): 2}
    (found,) = missing_locally(here, seen)
    assert str(found).startswith(problem)


@given(st.sets(st.integers(0, 7), min_size=1), st.sets(st.sampled_from(KINDS), min_size=1))
def test_the_same_share_as_before_lacks_nothing(ranks, kinds):
    mine = shards(8, ranks, sorted(kinds))
    assert missing_locally(mine, Counter((s.role, s.kind) for s in mine)) == ()
