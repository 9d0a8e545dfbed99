"""Paths in a container and on its host are turned into each other, and no path outside is."""

from __future__ import annotations

import pytest

from ckptsync.model.paths import rebased


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/data/out", "/workspace/ckpt"),
        ("/data/out/global_step_20", "/workspace/ckpt/global_step_20"),
        ("/data/out/./a/../b", "/workspace/ckpt/b"),
        ("/data/out/..x", "/workspace/ckpt/..x"),
        ("/data/outer/x", "/data/outer/x"),
        ("/data/out/../x", "/data/x"),
        ("/data", "/data"),
        ("/", "/"),
    ],
)
def test_a_path_below_one_directory_becomes_the_same_below_another(path, seen):
    assert rebased(path, "/data/out", "/workspace/ckpt") == seen


def test_the_same_directory_changes_nothing():
    for path in ("/data/out/x", "/data", "/"):
        assert rebased(path, "/", "/") == rebased(path, "/data", "/data") == path
