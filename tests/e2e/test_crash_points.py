"""Every labelled crash point: killed there, started again, everything converges."""

import os

import pytest

from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.crash import labels

SAVE = (  # passed by `run --once` while it verifies, promotes and uploads
    "fsync-tree.files-done",
    "make-dirs.created",
    "move-dir.before-dir-fsync",
    "promote.after-link",
    "promote.before-check",
    "promote.before-fsync",
    "promote.before-link",
    "publish-new.after-link",
    "publish-new.before-link",
    "publish.after-rename",
    "publish.before-rename",
    "push.before-chunks",
    "push.before-commit",
    "push.before-part",
    "push.before-ready",
    "remove-tree.unlinked",
    "remove.after-unlink",
    "replace-link.before-dir-fsync",
    "replace-link.before-rename",
    "stage.before-rename",
    "stage.linked-one",
    "write.before-fsync",
)
PULL = (  # passed by a `pull` that moves steps aside
    "fsync-tree.files-done",
    "move-dir.before-dir-fsync",
    "publish.after-rename",
    "publish.before-rename",
    "pull.after-place",
    "pull.before-aside",
    "pull.before-latest",
    "pull.before-place",
    "pull.before-tracker",
    "remove.after-unlink",
    "replace-link.before-dir-fsync",
    "replace-link.before-rename",
    "write.before-fsync",
)
TOGETHER = (  # test_pull_together.py
    "pull.after-decision",
    "pull.before-decision",
    "pull.before-done",
    "pull.before-offer",
)
RETAIN = ("trash.after-rename", "trash.before-delete", "trash.before-rename")  # test_retain.py
COLLECT = (  # passed by `gc --grace 0s`
    "collect.after-list",
    "collect.after-sweep",
    "collect.before-list",
    "collect.before-sweep",
    "collect.deleted",
)
OFTEN = ("make-dirs.created", "publish.after-rename", "publish.before-rename", "write.before-fsync")


def test_every_crash_point_has_a_test_here():
    assert set(labels()) == {*SAVE, *PULL, *TOGETHER, *RETAIN, *COLLECT}


@pytest.mark.parametrize(("label", "nth"), [*((label, 1) for label in SAVE), *((label, 6) for label in OFTEN)])
def test_a_save_survives_a_kill_at(node, make_node, tree_of, label, nth):
    first, second = (verl_step(node.ckpt, step, tracker=False) for step in (20, 40))
    second.joinpath("actor").chmod(0o750)
    before = {step.name: tree_of(step) for step in (first, second)}
    killed = node.run("run", "--once", crash=label, nth=nth)
    assert killed.code == -9, f"was not killed: {killed.err}"
    assert node.named() in (None, first.name, second.name)
    node.once()
    assert node.named() == second.name
    assert node.leftovers() == []
    assert os.listdir(node.staging / "linked") == []
    assert {step.name: tree_of(step) for step in (first, second)} == before
    assert sorted(os.listdir(node.ckpt)) == sorted([first.name, second.name, "latest"])
    assert [len(node.commits(step)) for step in (20, 40)] == [1, 1]
    other = make_node("n1", store=node.store)
    other.pull()
    assert tree_of(other.ckpt / second.name) == before[second.name]


@pytest.mark.parametrize("label", PULL)
def test_a_pull_survives_a_kill_at(node, tree_of, label):
    """A torn re-save of step 20 and a half written step 40 are in the way."""
    step = verl_step(node.ckpt, 20, world=2)
    wanted = tree_of(step)
    node.once()
    (step / "actor/optim_world_size_2_rank_1.pt").write_bytes(b"PK")
    (verl_step(node.ckpt, 40, world=2) / "actor/model_world_size_2_rank_0.pt").unlink()
    local = {tree_key(tree_of(node.ckpt / name)) for name in ("global_step_20", "global_step_40")}
    killed = node.run("pull", crash=label)
    assert killed.code == -9, f"was not killed: {killed.out} {killed.err}"
    for name in os.listdir(node.ckpt):
        if name.startswith("global_step_"):
            assert tree_key(tree_of(node.ckpt / name)) in {*local, tree_key(wanted)}
    assert node.named() is None or (node.ckpt / node.named()).is_dir()
    node.pull()
    assert tree_of(step) == wanted
    assert node.named() == "global_step_20"
    assert node.tracker.read_text() == "20"
    assert sorted(os.listdir(node.ckpt)) == sorted(["global_step_20", "latest", node.tracker.name])
    assert node.leftovers() == []
    aside = {tree_key(tree_of(path)) for path in (node.staging / "superseded").iterdir()}
    assert aside == local


@pytest.mark.parametrize("label", COLLECT)
def test_a_collection_survives_a_kill_at(node, tree_of, label):
    """The steps that stay can be restored before and after another collection has gone on, and space comes back."""
    node.settings = "[retention.remote]\nkeep_last = 1\n"
    node.write_config()
    for step in (20, 40):
        verl_step(node.ckpt, step, world=2, seed=step)
        node.once()
    wanted, before = tree_of(node.ckpt / "global_step_40"), len(node.chunks())
    killed = node.run("gc", "--grace", "0s", crash=label)
    assert killed.code == -9, f"was not killed: {killed.out} {killed.err}"
    for name in ("first", "second"):
        assert node.run("pull", "--step", "40", "--dest", node.ckpt.parent / name).code == 0
        assert tree_of(node.ckpt.parent / name / "global_step_40") == wanted
        assert node.run("gc", "--grace", "0s").code == 0
    assert node.commits(20) == []
    assert 0 < len(node.chunks()) < before


def tree_key(tree):
    return tuple(sorted(tree.items()))
