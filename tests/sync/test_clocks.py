"""A node whose clock is wrong by an hour neither loses its newest step nor takes an old one for new."""

import os
import shutil
import time
from pathlib import Path

import pytest

from ckptsync.testing.checkpoints import verl_step

HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("offset_ns", [HOUR_NS, -HOUR_NS])
def test_a_newer_local_step_wins_over_an_older_commit_whatever_the_clock(bench, monkeypatch, offset_ns):
    """Step 20 is committed, then step 40 is saved here: by its own clock an hour before, or after, the store's."""
    monkeypatch.setattr("ckptsync.sync.remote.Remote.clock_offset_ns", lambda *_: offset_ns)
    verl_step(bench.out("n"), 20)
    bench.push(bench.node("n"), 20)
    verl_step(bench.out("n"), 40)
    result = bench.pull(bench.node("n"))
    assert result.step == 40
    assert result.aside == ()
    assert Path(result.path).name == "global_step_40"


def test_a_restored_step_does_not_outrank_what_is_saved_after_it(bench, monkeypatch):
    monkeypatch.setattr("ckptsync.sync.remote.Remote.clock_offset_ns", lambda *_: HOUR_NS)
    verl_step(bench.out("n"), 20)
    bench.push(bench.node("n"), 20)
    shutil.rmtree(bench.out("n"))
    assert bench.pull(bench.node("n")).step == 20
    (restored,) = (save for save in bench.node("n").local.known if save.commit)
    assert restored.part.saved_ns <= time.time_ns()
    verl_step(bench.out("n"), 40)
    assert bench.save(bench.node("n"), 40).part.saved_ns > restored.part.saved_ns
    assert os.path.isdir(bench.out("n") / "global_step_20")
