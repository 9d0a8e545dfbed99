"""Which files a node restores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.config_values import rank_scope
from ckptsync.layouts.plain import Plain
from ckptsync.layouts.verl import Verl
from ckptsync.model.scope import Ranks, parse_ranks, ranks_of, within, worlds

FSDP = [f"actor/{kind}_world_size_4_rank_{rank}.pt" for kind in ("model", "optim") for rank in range(4)]
OTHER = ["data.pt", "actor/fsdp_config.json", "actor/huggingface/config.json"]
MEGATRON = ["actor/dist_ckpt/__0_0.distcp", "actor/dist_ckpt/.metadata", "actor/dist_ckpt/common.pt"]
VERL = Verl()


@pytest.mark.parametrize(
    ("text", "ranks", "last"), [("3", {3}, 3), ("8-10", {8, 9, 10}, 10), ("0,4-5", {0, 4, 5}, 5), ("1,0", {0, 1}, 1)]
)
def test_ranks_as_people_write_them(text, ranks, last):
    found = parse_ranks(rank_scope(text))
    assert {rank for rank in range(20) if rank in found} == ranks
    assert (found.last, str(found)) == (last, text)
    assert "0" not in found


def test_files_that_are_no_shards_come_to_every_node():
    wanted = within(parse_ranks("2-3"), VERL)
    assert [path for path in FSDP + OTHER if wanted(path)] == [p for p in FSDP if p[-4] in "23"] + OTHER
    assert all(within(None, VERL)(path) for path in FSDP + OTHER)


def test_shards_that_hold_pieces_of_everything_come_to_every_node():
    wanted = within(parse_ranks("7"), VERL)
    assert all(wanted(path) for path in MEGATRON)
    assert all(within(parse_ranks("7"), Plain())(path) for path in ("__0_0.distcp", ".metadata"))


def test_the_world_size_that_names_bind_a_step_to():
    assert worlds(FSDP + OTHER, VERL) == {4}
    assert worlds(MEGATRON + OTHER, VERL) == frozenset()
    assert worlds(["actor/model_world_size_2_rank_0.pt", *FSDP], VERL) == {2, 4}


def test_a_nodes_own_ranks_are_those_that_it_wrote(make_part):
    parts = {
        node: make_part(node, {path: (path, 0.0) for path in FSDP if path[-4] in ranks})
        for node, ranks in (("a", "03"), ("b", "12"))
    }
    files = {entry.path: (part, entry) for part in parts.values() for entry in part.files}
    assert str(ranks_of("a", files, VERL)) == "0,3"
    assert str(ranks_of("b", files, VERL)) == "1,2"
    assert ranks_of("c", files, VERL) is None


@given(st.sets(st.integers(0, 63), min_size=1))
def test_every_rank_gets_its_shards_from_some_node_however_they_are_dealt(mine):
    """What some ranks' node leaves out, the node with the others takes."""
    rest = set(range(64)) - mine
    paths = [f"actor/model_world_size_64_rank_{rank}.pt" for rank in range(64)]
    sides = [within(Ranks(tuple((rank, rank) for rank in sorted(ranks))), VERL) for ranks in (mine, rest)]
    assert all(sides[0](path) != sides[1](path) for path in paths)
