"""The arms on a real server: what is measured is what was meant to be done."""

from __future__ import annotations

import os
import subprocess

import pytest

from benchmarks.arms import (
    CPU_BEYOND,
    OURS,
    OURS_PULL,
    STORED,
    VERIFY_TOO,
    WALL,
    check,
    peers_pulling,
    peers_pushing,
    pulling,
    pushing,
)
from benchmarks.data import series
from benchmarks.link import serving_behind_link, why_no_link
from benchmarks.measure import CommandFailed
from benchmarks.rounds import Bench, interleave
from benchmarks.scale import QUICK
from ckptsync.testing.checkpoints import verl_step

PEERS = ("boto3", "s3fs")


@pytest.fixture
def bench(tmp_path):
    verl_step(tmp_path / "data" / "run", 10, n=300_000)
    return Bench(QUICK, tmp_path / "data", tmp_path / "work", rounds=2)


@pytest.fixture
def step(bench):
    return series(bench.data, "run")[0]


def test_each_arm_pushes_the_whole_step_in_each_round(bench, step):
    arms = {arm.name: arm for arm in interleave(bench, [pushing(step), *peers_pushing(step, PEERS)])}
    assert list(arms) == [OURS, VERIFY_TOO, *PEERS]
    assert all(len(values) == bench.rounds for arm in arms.values() for values in arm.figures.values())
    assert arms["boto3"].figures[STORED] == [1.0, 1.0] == arms["s3fs"].figures[STORED]
    assert all(0.9 < share < 1.1 for share in arms[OURS].figures[STORED])  # random bytes, and the documents
    assert arms[VERIFY_TOO].spread(WALL).low > arms[OURS].spread(WALL).low
    assert CPU_BEYOND in arms[OURS].figures
    assert not list(bench.work.iterdir())


def test_each_arm_pulls_the_whole_step(bench, step):
    arms = interleave(bench, [pulling([step]), *peers_pulling(step, PEERS)], rounds=1)
    assert [arm.name for arm in arms] == [OURS_PULL, *PEERS]


def test_a_pull_that_brings_back_less_is_no_measurement(bench, step):
    with pytest.raises(CommandFailed, match="bytes were pulled"):
        check(bench.data / "nothing", step)


@pytest.mark.skipif(bool(why_no_link()), reason=why_no_link())
def test_the_server_behind_the_link_serves_and_leaves_no_namespace():
    name = f"ckptns{os.getpid()}"
    with serving_behind_link() as server:
        assert "127.0.0.1" not in server.endpoint
        assert server.stored("nothing") == (0, 0)
        assert name in namespaces()
    assert name not in namespaces()


def namespaces():
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
