"""What parts of one save say against each other: a conflict, or none because one of them is of another time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rank_savers import Writer, labels_of, saves_in

from ckptsync.model.manifest import DirEntry, LinkEntry


def test_different_bytes_of_one_shard_within_a_save_are_a_conflict(make_part):
    save = Writer(make_part, ((0, 1), (2,)))
    twin = {"actor/model_world_size_3_rank_1.pt": ("other", 1.0), "actor/model_world_size_3_rank_2.pt": ("Z", 2.5)}
    (union,) = saves_in([save.part(0), save.part(1), make_part("n2", twin)])
    assert {conflict.path for conflict in union.conflicts} == set(twin)
    assert "n0 and n2" in union.conflicts[0].message
    assert not union.whole
    same = {"actor/model_world_size_3_rank_1.pt": ("A actor/model_world_size_3_rank_1.pt", 1.0)}
    assert saves_in([save.part(0), save.part(1), make_part("n2", same)])[0].whole


def test_conflicts_are_only_within_a_save(make_part):
    old = Writer(make_part, ((0,), (1,)), "A")
    new = Writer(make_part, ((1,), (0,)), "B", 1200.0, previous=600.0)
    unions = saves_in([*old.parts(), *new.parts()])
    assert [labels_of(union) for union in unions if union.whole] == [{"B"}, {"A"}]
    assert not any(union.conflicts for union in unions)


def test_a_stale_copy_of_another_nodes_shard_is_no_conflict(make_part):
    """After a pull n1 has rank 0's old shard, too; that it is old is known from n0 alone."""
    save = Writer(make_part, ((0,), (1,)), "B", 1200.0, previous=600.0)
    first, second = save.parts()
    leftover = make_part("n1", {"actor/model_world_size_2_rank_0.pt": ("A", 100.0)})
    files = tuple(sorted((*second.files, *leftover.files), key=lambda file: file.path))
    (union, *_) = saves_in([first, replace(second, files=files, previous_ns=0)])
    assert union.whole
    assert saves_in([replace(first, previous_ns=0), replace(second, files=files, previous_ns=0)])[0].conflicts


def test_a_rewritten_note_does_not_divide_a_save(make_part):
    """n1 is taken twice; between its two roles somebody edits a file that is no shard."""
    save = Writer(make_part, ((0,), (1,)))
    files = {path: (f"A {path}", seconds) for path, seconds in save.files(1).items()}
    first = make_part("n1", {**files, "note.txt": ("1", 0.5)})
    second = make_part("n1", {**files, "note.txt": ("2", 1.5), "critic/model_world_size_1_rank_0.pt": ("c", 2.0)})
    critic = {"critic/fsdp_config.json": ("{}", 2.0), "critic/huggingface/config.json": ("{}", 2.0)}
    (union,) = saves_in([save.part(0), first, second, make_part("n2", critic)])
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
            union = saves_in(order)[0]
            assert union.files["actor/README.md"][0].node == winner
            assert union.whole


# -- what must never be restored


@pytest.mark.parametrize("entry", ["file", "link", "dir"])
def test_paths_that_form_no_tree_together_are_a_conflict(make_part, entry):
    """n1's link actor/extra leads elsewhere; n0's file would be written through it."""
    save = Writer(make_part, ((0,), (1,)))
    first, second = save.parts()
    assert saves_in([first, second])[0].whole
    deep = make_part("n0", {"actor/extra/x.json": ("x", 1.0)})
    first = {
        "file": replace(first, files=tuple(sorted((*first.files, *deep.files), key=lambda file: file.path))),
        "link": replace(first, links=(LinkEntry("actor/extra/x", "../../../outside"),)),
        "dir": replace(first, dirs=(DirEntry("actor/extra", 0o755, 0),)),
    }[entry]
    assert saves_in([first, second])[0].whole
    (union,) = saves_in([first, replace(second, links=(LinkEntry("actor/extra", "huggingface"),))])
    assert [conflict.code for conflict in union.conflicts] == ["conflict"]
    assert not union.whole


def test_the_step_must_have_a_name_that_stands_for_it(make_part):
    save = Writer(make_part, ((0,),))
    assert saves_in([save.part(0)])[0].whole
    for name in ("latest", "global_step_21", "global_step_020"):
        (union,) = saves_in([save.part(0, name=name)])
        assert [problem.code for problem in union.problems] == ["name"]


@pytest.mark.parametrize("fields", [{"name": "step-20"}, {"layout": "plain"}])
def test_nodes_must_agree_about_name_and_layout(make_part, fields):
    save = Writer(make_part, ((0,), (1,)))
    (union,) = saves_in([save.part(0), save.part(1, **fields)])
    assert [problem.code for problem in union.problems] == ["name"]


def test_directories_are_as_the_node_had_them_that_changed_them_last(make_part, at):
    first, second = Writer(make_part, ((0,), (1,))).parts()

    def dirs(part, seconds, mode):
        return replace(part, dirs=(DirEntry("", mode, at(seconds)),))

    assert saves_in([dirs(first, 1.0, 0o700), dirs(second, 2.0, 0o755)])[0].dirs[""].mode == 0o755
    assert saves_in([dirs(first, 2.0, 0o700), dirs(second, 1.0, 0o755)])[0].dirs[""].mode == 0o700
