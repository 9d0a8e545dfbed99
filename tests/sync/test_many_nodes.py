"""Several nodes, each with its own disk, one store: a step exists when the last part is there, and is the union."""

from __future__ import annotations

import pytest

from ckptsync.errors import ConflictError, NothingToResume
from ckptsync.testing.checkpoints import age, dcp_step, megatron_v2_step, verl_step


def split(bench, make, step, **options):
    """The step over two nodes: ranks 0 and 1 on a, 2 and 3 (and what the driver writes) on b."""
    make(bench.out("a"), step, world=4, ranks=(0, 1), **options)
    return make(bench.out("b"), step, world=4, ranks=(2, 3), **options)


def verl_split(bench, step, **options):
    verl_step(bench.out("a"), step, world=4, ranks=(0, 1), driver=False, **options)
    verl_step(bench.out("b"), step, world=4, ranks=(2, 3), driver=True, **options)


def files(tree):
    return {path: seen for path, seen in tree.items() if not path.endswith(".") and seen[2]}


@pytest.mark.parametrize("make", [verl_split, "megatron", "dcp"], ids=["verl", "megatron", "dcp"])
def test_the_commit_appears_with_the_second_part_and_pull_gives_the_union(bench, picture, make):
    if make == "megatron":
        megatron_v2_step(bench.out("a"), 20, world=4, ranks=(0, 1), driver=False)
        megatron_v2_step(bench.out("b"), 20, world=4, ranks=(2, 3), driver=True)
    elif make == "dcp":
        split(bench, dcp_step, 20)
    else:
        make(bench, 20)
    first, second = bench.node("a"), bench.node("b")
    alone = bench.push(first, 20).outcome
    assert (alone.commit, bench.objects(kind="commits")) == (None, [])
    assert alone.problems
    with pytest.raises(NothingToResume, match="not committed"):
        bench.pull(bench.node("c"))

    together = bench.push(second, 20).outcome
    assert [part.node for part in together.commit.parts] == ["a", "b"]
    assert bench.push(first, 20).outcome.commit == together.commit

    result = bench.pull(bench.node("c"))
    back = files(picture(result.path))
    name = result.path.rpartition("/")[2]
    mine, theirs = (files(picture(bench.out(node) / name)) for node in ("a", "b"))
    assert mine.keys() & theirs.keys() == set()
    assert back == {**mine, **theirs}


def test_two_contents_of_one_shard_in_one_save_are_a_conflict(bench):
    verl_step(bench.out("a"), 20, world=2, seed=1)
    verl_step(bench.out("b"), 20, world=2, ranks=(1,), seed=2, driver=False)
    bench.push(bench.node("b"), 20)
    with pytest.raises(ConflictError, match="hold different bytes of this shard in one save") as caught:
        bench.push(bench.node("a"), 20)
    assert caught.value.exit_code == 7
    assert bench.objects(kind="commits") == []


def test_equal_bytes_of_one_shard_on_two_nodes_are_none(bench):
    verl_step(bench.out("a"), 20, world=2)
    verl_step(bench.out("b"), 20, world=2, ranks=(1,), driver=False)
    bench.push(bench.node("b"), 20)
    assert bench.push(bench.node("a"), 20).outcome.commit is not None


def test_saves_of_one_number_never_mix(bench, picture):
    """A roll-back writes step 20 again; the first line's part of the other node does not complete it."""
    verl_split(bench, 20, seed=1)
    for name in ("a", "b"):
        age(bench.out(name) / "global_step_20", 1800)
    bench.push(bench.node("a"), 20)
    old = bench.push(bench.node("b"), 20).outcome.commit
    assert old is not None
    before = files(picture(bench.out("a") / "global_step_20"))

    verl_step(bench.out("b"), 20, world=4, ranks=(2, 3), seed=2)
    outcome = bench.push(bench.node("b"), 20).outcome
    assert outcome.commit in (None, old)
    assert len(bench.objects(kind="commits")) == 1
    result = bench.pull(bench.node("c"))
    assert {path: seen for path, seen in files(picture(result.path)).items() if path in before} == before

    verl_step(bench.out("a"), 20, world=4, ranks=(0, 1), driver=False, seed=2)
    (bench.out("b") / "global_step_20" / "data.pt").touch()
    bench.push(bench.node("a"), 20)
    new = bench.push(bench.node("b"), 20).outcome.commit
    assert new is not None
    assert new != old
    result = bench.pull(bench.node("d"))
    sources = (files(picture(bench.out(name) / "global_step_20")) for name in ("a", "b"))
    assert files(picture(result.path)) == {path: seen for tree in sources for path, seen in tree.items()}


def test_a_node_that_belongs_to_another_run_of_the_name_is_told(bench):
    verl_step(bench.out("a"), 20)
    bench.push(bench.node("a"), 20)
    for key in bench.objects():
        bench.store.delete(key)
    verl_step(bench.out("b"), 20)
    bench.push(bench.node("b"), 20)
    with pytest.raises(ConflictError, match="another run of this name") as caught:
        bench.push(bench.node("a"), 20)
    assert caught.value.remedy
