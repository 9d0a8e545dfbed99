"""Which ranks a node takes, and which world sizes a step is for."""

import json
import shutil

import pytest
from together import commit, content, ended, pull, save, start

from ckptsync.testing.checkpoints import dcp_step, verl_step


def test_a_step_of_another_world_size_is_refused_with_both_numbers(pair):
    save(pair, 20)
    commit(pair)
    results = ended(start(pair, "--world-size", "8"))
    assert [done.code for done in results] == [9, 9]
    assert all("world size of 8: its shards were written with 4" in done.line for done in results)
    assert not (pair[1].ckpt / "global_step_20/data.pt").exists(), "nothing was fetched"
    for each in pull(pair, "--world-size", "4"):
        assert (each["step"], each["round"]) == (20, 1)


def test_a_world_size_binds_only_where_ranks_load_their_own_shards(make_node):
    node = make_node("n0")
    dcp_step(node.ckpt, 20, world=4)
    node.once()
    assert node.pull("--world-size", "8")["step"] == 20


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        (("--ranks", "0-1"), 2, "scope 0-1 leaves out what the loader needs"),
        (("--scope", "own"), 2, "use --scope all"),
        (("--ranks", "3-1"), 2, "run backwards"),
        (("--scope", "some"), 2, "is no scope"),
        (("--ranks", "1", "--scope", "all"), 2, "exclude each other"),
        (("--dest", "elsewhere", "--nodes", "2"), 2, "--dest is for this node alone"),
        (("--timeout", "soon"), 2, "is not a duration"),
        (("--nodes", "2"), 2, "need one --attempt ID"),
    ],
)
def test_options_that_cannot_be(make_node, options, code, why):
    node = make_node("n0")
    dcp_step(node.ckpt, 20)
    node.once()
    done = node.run("pull", *options)
    assert (done.code, why in done.line) == (code, True), done.err


def test_ranks_that_there_are_not(node):
    verl_step(node.ckpt, 20, world=2)
    node.once()
    done = node.run("pull", "--ranks", "1-2")
    assert done.code == 9
    assert "there is no rank 2: step 20 was written by 2 ranks" in done.line


def test_a_node_that_wrote_nothing_gets_all_of_it(pair, make_node, tree_of):
    save(pair, 20)
    commit(pair)
    third = make_node("n7", store=pair[0].store)
    done = third.run("pull", "--nodes", "1", "--scope", "own", "--json")
    assert "this node wrote no shards of step 20" in done.err
    assert json.loads(done.out)["scope"] == "all"
    assert len(content(tree_of, third, 20)) > len(content(tree_of, pair[0], 20))


def test_only_some_ranks_come_where_loaders_read_only_their_own(pair, tree_of):
    save(pair, 20)
    commit(pair)
    whole = {**content(tree_of, pair[0], 20), **content(tree_of, pair[1], 20)}
    results = ended(start(pair[:1], "--ranks", "2-3", count=2) + start(pair[1:], "--scope", "own", count=2))
    assert [done.code for done in results] == [0, 0], "\n".join(done.err for done in results)
    for node, done in zip(pair, results, strict=True):
        assert json.loads(done.out)["scope"] == ("2-3" if node is pair[0] else "2,3")
        found = content(tree_of, node, 20)
        assert found == {p: e for p, e in whole.items() if b"_rank_0" not in p and b"_rank_1" not in p}
        assert node.tracker.read_text() == "20"
    shutil.rmtree(pair[0].store)
    done = pair[0].run("pull", "--nodes", "1")
    assert done.code == 6, "half a step is none, also when the store is gone"
