"""A restart that would silently begin at step 0, or at an older step, is said before it happens."""

import os
import shutil
from dataclasses import replace

import pytest

from ckptsync.actions.push import settle_local
from ckptsync.disk.tracker import TrackerState, read_tracker
from ckptsync.layouts.verl import Verl
from ckptsync.sync.restart import tracker_problem
from ckptsync.testing.checkpoints import verl_step

LATER = {"now_ns": 2**62, "settle_s": 10.0}
"""Long after everything here was written."""
NAME = "latest_checkpointed_iteration.txt"


def look(bench):
    local = bench.node("n").local
    settle_local(local)
    return local, local.look(0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is missing"),
        ("", "cannot be read"),
        ("forty\n", "cannot be read"),
        ("60", "names step 60, which is not here"),
        ("20", "but step 40 is newer"),
        ("50", "which is broken"),
        ("40", ""),
        (" 40\n", ""),
    ],
)
def test_the_tracker_is_compared_with_the_newest_good_step(bench, text, said):
    root = bench.out("n")
    verl_step(root, 20)
    if text == "20":
        shutil.copy2(f"{root}/{NAME}", f"{root}/kept")
    verl_step(root, 40)
    cut = verl_step(root, 50, tracker=False) / "actor" / "model_world_size_1_rank_0.pt"
    os.truncate(cut, 100)
    if text == "20":
        shutil.move(f"{root}/kept", f"{root}/{NAME}")
    elif text is None:
        os.remove(f"{root}/{NAME}")
    else:
        with open(f"{root}/{NAME}", "w") as file:
            file.write(text)
    local, views = look(bench)
    problem = tracker_problem(Verl(), local.tracker, views, **LATER)
    assert said in problem
    assert bool(said) == bool(problem)


def test_a_node_without_the_closing_file_does_not_expect_a_tracker(bench):
    verl_step(bench.out("n"), 20, world=4, ranks=[2, 3], driver=False, tracker=False)
    local, views = look(bench)
    assert local.tracker is None
    assert tracker_problem(Verl(), None, views, **LATER) == ""


def test_a_tracker_is_read_with_its_time(tmp_path):
    assert read_tracker(str(tmp_path), Verl()) is None
    (tmp_path / NAME).write_text("7\n")
    assert read_tracker(str(tmp_path), Verl()) == TrackerState(7, (tmp_path / NAME).stat().st_mtime_ns)


def test_a_step_that_has_just_been_saved_is_no_problem(bench):
    verl_step(bench.out("n"), 20)
    local = bench.node("n").local
    settle_local(local)
    verl_step(bench.out("n"), 40)
    local.setup = replace(local.setup, settle_s=60.0)
    views = local.look(0.0)
    assert [view.state.value for view in views] == ["verified", "settling"]
    assert tracker_problem(Verl(), local.tracker, views, **LATER) == ""


def test_a_tracker_that_is_just_being_written_is_no_problem_until_it_stays_so(bench):
    root = bench.out("n")
    verl_step(root, 20)
    with open(f"{root}/{NAME}", "w"):
        pass
    local, views = look(bench)
    mtime_ns = local.tracker.mtime_ns

    def problem(after_s):
        return tracker_problem(Verl(), local.tracker, views, now_ns=mtime_ns + int(after_s * 10**9), settle_s=10.0)

    assert problem(0) == problem(9.9) == ""
    assert "cannot be read" in problem(10)
    assert "cannot be read" in problem(-1), "a clock that was set back must not hide it"
