"""What a pull gives back, what it moves aside, and what it says when there is nothing to give."""

import json
import os
import shutil

import pytest

from ckptsync.testing.checkpoints import (
    age,
    dcp_step,
    hf_step,
    layered_step,
    megatron_v1_step,
    megatron_v2_step,
    verl_sft_step,
    verl_step,
)

WRITERS = {
    "verl": lambda root, step: verl_step(root, step, world=2, roles=("actor", "critic"), hf=True),
    "verl_sft": lambda root, step: verl_sft_step(root, step, world=2),
    "megatron_v1": megatron_v1_step,
    "megatron_v2": megatron_v2_step,
    "layered": lambda root, step: layered_step(root, step, rollout=False),
    "hf": lambda root, step: hf_step(root, step, shards=2),
    "dcp": dcp_step,
}


def unusual(step):
    """Modes, times, names, links and empty places that a copy easily loses."""
    odd = step / "extra" / os.fsdecode(b"not utf-8 \xff") / "it's 100%"
    odd.mkdir(parents=True)
    (step / "extra" / "empty dir").mkdir(mode=0o711)
    (odd / "empty file").touch()
    (odd / "script.sh").write_text("#!/bin/sh\n")
    (odd / "script.sh").chmod(0o755)
    (odd / "secret.json").write_text("{}")
    (odd / "secret.json").chmod(0o600)
    (step / "extra" / "file link").symlink_to(os.path.relpath(odd / "script.sh", step / "extra"))
    (step / "extra" / "dir link").symlink_to("empty dir")
    os.link(odd / "script.sh", odd / "second name")
    for number, path in enumerate(sorted(step.rglob("*"))):
        if not path.is_symlink() and path.is_file() and "extra" in path.parts:
            os.utime(path, ns=(1, path.stat().st_mtime_ns - number * 1_000_003))
    odd.chmod(0o2750 & 0o777)
    os.utime(odd, ns=(1, 1_700_000_000_123_456_789))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_pull_gives_identical_bytes_modes_and_times(node, make_node, tree_of, kind):
    step = WRITERS[kind](node.ckpt, 20)
    before = tree_of(step)
    node.once()
    other = make_node("n1", store=node.store)
    other.pull()
    assert tree_of(other.ckpt / step.name) == before
    age(step, 5)
    assert tree_of(step) != before, "the comparison sees times"


def test_the_state_of_an_engine_is_kept_in_the_store_but_not_restored(node, make_node, tree_of):
    step = layered_step(node.ckpt, 20)
    before = tree_of(step)
    node.once()
    other = make_node("n1", store=node.store)
    other.pull()
    del before[b"rollout/engine_state.json"]
    assert tree_of(other.ckpt / step.name) == before
    other.settings = "[pull]\ndrop = []\n"
    other.write_config()
    other.pull()
    assert tree_of(other.ckpt / step.name) == tree_of(step)


def test_odd_names_modes_links_and_empty_places_come_back(node, make_node, tree_of):
    step = verl_step(node.ckpt, 20, world=2)
    unusual(step)
    (step / "extra").chmod(0o750)
    before = tree_of(step)
    node.once()
    other = make_node("n1", store=node.store)
    other.pull()
    # links have no times of their own in a manifest
    assert tree_of(other.ckpt / step.name) == before


def test_what_this_disk_holds_is_not_fetched_and_not_shared(node, tree_of):
    step = verl_step(node.ckpt, 20, world=2)
    before = tree_of(step)
    node.once()
    dest = node.root / "elsewhere"
    dest.mkdir()
    done = node.pull("--dest", str(dest))
    assert (done["bytes_fetched"], done["bytes_reused"]) == (0, sum(p.stat().st_size for p in files(step)))
    assert tree_of(dest / step.name) == before
    for path in files(step):
        assert path.stat().st_ino != (dest / step.name / path.relative_to(step)).stat().st_ino


def files(root):
    return [path for path in root.rglob("*") if path.is_file()]


def test_a_pull_elsewhere_leaves_home_alone(node, tree_of):
    verl_step(node.ckpt, 20)
    verl_step(node.ckpt, 40)
    node.once()
    before = tree_of(node.ckpt)
    dest = node.root / "elsewhere"
    done = node.pull("--step", "20", "--dest", str(dest))
    assert done["path"] == str(dest / "global_step_20")
    assert tree_of(node.ckpt) == before
    assert sorted(os.listdir(dest)) == ["global_step_20", "latest", node.tracker.name]


def test_newer_steps_move_aside_and_stay_whole(node, tree_of):
    for step in (20, 40, 60):
        verl_step(node.ckpt, step)
    node.once()
    before = {name: tree_of(node.ckpt / name) for name in ("global_step_40", "global_step_60")}
    done = node.pull("--step", "20")
    assert sorted(done["moved_aside"]) == sorted(before)
    assert sorted(os.listdir(node.ckpt)) == ["global_step_20", "latest", node.tracker.name]
    assert node.named() == "global_step_20"
    assert node.tracker.read_text() == "20"
    aside = {path.name.partition(".")[0]: tree_of(path) for path in (node.staging / "superseded").iterdir()}
    assert aside == before
    node.once()
    assert len(node.commits(20)) == 1, "what was pulled is not saved a second time"
    assert node.named() == "global_step_20"


def test_keep_newer_refuses_and_changes_nothing(node, tree_of):
    for step in (20, 40):
        verl_step(node.ckpt, step)
    node.once()
    before = tree_of(node.ckpt)
    done = node.run("pull", "--step", "20", "--keep-newer")
    assert done.code == 7
    assert "global_step_40 would be moved aside" in done.line
    assert tree_of(node.ckpt) == before
    assert node.pull("--keep-newer")["step"] == 40


def test_a_step_of_the_same_number_with_other_bytes_moves_aside(node, make_node, tree_of):
    step = verl_step(node.ckpt, 20)
    wanted = tree_of(step)
    node.once()
    other = make_node("n1", store=node.store)
    mine = verl_step(other.ckpt, 20, seed=7)
    (mine / "data.pt").unlink()  # a save that was cut short
    before = tree_of(mine)
    assert other.pull()["moved_aside"] == ["global_step_20"]
    assert tree_of(mine) == wanted
    (aside,) = (other.staging / "superseded").iterdir()
    assert tree_of(aside) == before


def test_a_second_pull_does_nothing(node, tree_of):
    step = verl_step(node.ckpt, 20)
    node.once()
    shutil.rmtree(node.ckpt)
    node.ckpt.mkdir()
    node.pull()
    before = tree_of(step)
    done = node.pull()
    assert (done["bytes_fetched"], done["moved_aside"]) == (0, [])
    assert tree_of(step) == before


def test_a_dry_run_changes_nothing(node, tree_of):
    for step in (20, 40):
        verl_step(node.ckpt, step)
    node.once()
    before = tree_of(node.ckpt)
    done = node.run("pull", "--step", "20", "--dry-run")
    assert done.code == 0
    assert "move global_step_40 aside" in done.out
    assert tree_of(node.ckpt) == before


def test_an_empty_store_is_nothing_to_resume_from(node):
    done = node.run("pull")
    assert done.code == 5
    assert "nothing to resume from" in done.line
    assert len(done.err.splitlines()) == 1
    assert os.listdir(node.ckpt) == []


def test_a_step_that_does_not_exist_is_nothing_to_resume_from(node, tree_of):
    verl_step(node.ckpt, 20)
    node.once()
    before = tree_of(node.ckpt)
    done = node.run("pull", "--step", "30")
    assert done.code == 5
    assert "step 30 cannot be restored" in done.line
    assert tree_of(node.ckpt) == before


def test_a_store_that_is_down_is_not_an_empty_store(node, tree_of):
    verl_step(node.ckpt, 20)
    before = tree_of(node.ckpt)
    node.environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "NO_PROXY": "127.0.0.1"}
    node.write_config('s3://bucket/run"\nendpoint = "http://127.0.0.1:9"\nregion = "us-east-1')
    done = node.run("pull")
    assert done.code == 6
    assert "s3://bucket/run" in done.line
    assert tree_of(node.ckpt) == before


def test_the_json_of_a_pull_is_all_there_is_on_stdout(node):
    verl_step(node.ckpt, 20)
    node.once()
    done = node.run("pull", "--json")
    assert json.loads(done.out)["resume_args"][1] == f"trainer.resume_from_path={node.ckpt}/global_step_20"
