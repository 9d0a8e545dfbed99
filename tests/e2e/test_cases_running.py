"""Reports about what happens beside a running trainer: its retention, its files' content, the store, the disk."""

import json
import os
import shutil
import signal
import time

import pytest

from ckptsync.testing.checkpoints import hf_step, megatron_v1_step, verl_step


def until(condition, running):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail(f"not within 20 s: {running.kill().err}")


def stop(running):
    running.send(signal.SIGTERM)
    done = running.wait()
    assert done.code == 0, done.err
    return done.err


@pytest.mark.parametrize("label", ["push.before-chunks", "push.before-ready"])
def test_c1_a_step_that_is_deleted_after_it_was_staged_is_still_pushed(node, make_node, label, tree_of):
    """The daemon is killed in the middle of the push, the trainer deletes, the daemon starts again."""
    step = verl_step(node.ckpt, 20, world=2)
    wanted = tree_of(step)
    assert node.run("run", "--once", crash=label).code == -9
    shutil.rmtree(step / "actor")
    log = node.once()
    assert "Traceback" not in log
    assert len(node.commits(20)) == 1
    other = make_node("n1", store=node.store)
    other.pull()
    assert tree_of(other.ckpt / "global_step_20") == wanted


@pytest.mark.parametrize("what", ["actor", ""])
def test_c1_a_step_that_is_deleted_and_not_staged_ends_quietly(node, what):
    step = verl_step(node.ckpt, 20, world=2)
    assert node.run("run", "--once", crash="push.before-chunks").code == -9
    for held in (node.staging / "linked").iterdir():
        shutil.rmtree(held)
    shutil.rmtree(step / what if what else step)
    log = node.once()
    assert node.commits(20) == []
    assert node.named() is None
    assert "Traceback" not in log
    verl_step(node.ckpt, 40)
    node.once()
    assert len(node.commits(40)) == 1


def test_c2_husks_are_neither_alarms_nor_uploads_and_delete_nothing(node):
    for number in (10, 20, 30, 40):
        verl_step(node.ckpt, number)
    node.once()
    for number in (10, 20, 30):
        shutil.rmtree(node.ckpt / f"global_step_{number}/actor")
    log = node.once()
    assert "broken" not in log
    rows = node.steps()
    assert [(rows[n]["local"], rows[n]["remote"]) for n in (10, 20, 30)] == [("pruned", "committed")] * 3
    assert node.named() == "global_step_40"
    assert all(len(node.commits(number)) == 1 for number in rows)


@pytest.mark.parametrize("write", [hf_step, verl_step])
def test_c5_h4_nothing_in_a_step_directory_is_touched(node, write, tree_of):
    """Names, modes and times of everything in output_dir, before and after: only `latest` may have come."""
    for number in (300, 400, 500):
        write(node.ckpt, number)
    before = tree_of(node.ckpt)
    daemon = node.start("run")
    until(lambda: node.commits(500) and node.commits(300) and node.commits(400), daemon)
    stop(daemon)
    after = tree_of(node.ckpt)
    after.pop(b"latest", None)
    for entries in (before, after):
        entries.pop(b".")
    assert after == before


def test_c5_a_restored_step_has_its_old_time_among_its_siblings(node, tree_of):
    """Hugging Face's rotation deletes by the directories' times."""
    for number in (300, 400, 500):
        os.utime(hf_step(node.ckpt, number), (number, number))
    node.once()
    shutil.rmtree(node.ckpt)
    node.ckpt.mkdir()
    node.pull("--step", "300")
    assert (node.ckpt / "checkpoint-300").stat().st_mtime == 300


def cut(data):
    return data[: len(data) // 2]


def hole(data):
    middle = len(data) // 2
    return data[:middle] + bytes(64) + data[middle + 64 :]


@pytest.mark.parametrize(
    ("write", "path"),
    [
        (verl_step, "actor/model_world_size_1_rank_0.pt"),
        (verl_step, "actor/extra_state_world_size_1_rank_0.pt"),
        (verl_step, "data.pt"),
        (verl_step, "actor/huggingface/config.json"),
        (lambda root, step: verl_step(root, step, hf=True), "actor/huggingface/model.safetensors"),
        (lambda root, step: hf_step(root, step, shards=2), "model-00001-of-00002.safetensors"),
        (lambda root, step: hf_step(root, step, shards=2), "model.safetensors.index.json"),
        (megatron_v1_step, "actor/dist_ckpt/__1_0.distcp"),
        (megatron_v1_step, "actor/dist_ckpt/.metadata"),
        (megatron_v1_step, "actor/dist_ckpt/common.pt"),
    ],
)
def test_g1_g4_a_truncated_file_is_found_and_latest_stays(node, write, path):
    good = write(node.ckpt, 20)
    bad = write(node.ckpt, 40)
    (bad / path).write_bytes(cut((bad / path).read_bytes()))
    node.once()
    row = node.steps()[40]
    assert row["local"] == "broken"
    assert any(os.path.basename(path) in reason for reason in row["reasons"])
    assert node.commits(40) == []
    assert node.steps()[20]["remote"] == "committed"
    assert node.named() in (good.name, None)  # None: the link is not for this layout's output_dir


@pytest.mark.parametrize(
    ("write", "path"),
    [
        (verl_step, "actor/model_world_size_1_rank_0.pt"),
        (verl_step, "actor/optim_world_size_1_rank_0.pt"),
        (megatron_v1_step, "actor/dist_ckpt/__0_0.distcp"),
        (megatron_v1_step, "actor/dist_ckpt/common.pt"),
    ],
)
def test_g2_right_size_and_wrong_bytes_are_found(node, write, path):
    write(node.ckpt, 20)
    bad = write(node.ckpt, 40)
    (bad / path).write_bytes(hole((bad / path).read_bytes()))
    node.once()
    row = node.steps()[40]
    assert row["local"] == "broken"
    assert any(path in reason for reason in row["reasons"])
    assert node.named() == "global_step_20"
    assert node.commits(40) == []


def test_g4_an_index_that_names_a_missing_shard_is_found(node):
    hf_step(node.ckpt, 20, shards=2)
    bad = hf_step(node.ckpt, 40, shards=2)
    (bad / "model-00002-of-00002.safetensors").unlink()
    node.once()
    row = node.steps()[40]
    assert row["local"] in ("broken", "growing")
    assert node.commits(40) == []


def test_h1_without_a_commit_there_is_no_step(node, make_node):
    verl_step(node.ckpt, 20)
    assert node.run("run", "--once", crash="push.before-commit").code == -9
    other = make_node("n1", store=node.store)
    assert other.run("pull").code == 5
    node.once()
    assert other.pull()["step"] == 20


def test_h2_what_a_dead_push_left_is_used_or_ignored_never_mixed(node, make_node, tree_of):
    """A push dies after some chunks, the step is saved anew with other bytes, and pushed."""
    step = verl_step(node.ckpt, 20, world=2, n=100_000)
    assert node.run("run", "--once", crash="push.before-ready").code == -9
    shutil.rmtree(step)
    verl_step(node.ckpt, 20, world=2, n=100_000, seed=5)
    wanted = tree_of(step)
    node.once()
    other = make_node("n1", store=node.store)
    other.pull()
    assert tree_of(other.ckpt / "global_step_20") == wanted


def test_h5_a_store_that_cannot_be_written_is_told_by_status(node):
    node.environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "NO_PROXY": "127.0.0.1"}
    node.write_config('s3://bucket/run"\nendpoint = "http://127.0.0.1:9"\nregion = "us-east-1')
    verl_step(node.ckpt, 20)
    daemon = node.start("run")
    status = node.state / "status.json"
    until(lambda: node.named() and status.exists() and "Connection refused" in status.read_text(), daemon)
    report = json.loads(node.run("status", "--json").out)
    assert report["remote"]["committed"] is None
    assert report["problems"]
    assert node.run("status", "--check", "--max-age", "1m").code != 0
    stop(daemon)


def test_h7_a_disk_that_is_full_stops_neither_the_daemon_nor_latest(node, make_node, small_disk, tree_of):
    """The store's disk is full: the step is promoted here, and committed when there is room again."""
    small = small_disk("small", "1m")
    ballast = small / "ballast"
    full = make_node("n1", store=small / "store")
    verl_step(full.ckpt, 20, n=30_000)
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65536)):
                pass
        except OSError:
            pass
    done = full.run("run", "--once")
    assert done.code == 8, done.err
    assert "No space left on device" in done.line
    assert full.named() == "global_step_20"
    wanted = tree_of(full.ckpt / "global_step_20")
    ballast.unlink()
    full.once()
    assert len(full.commits(20)) == 1
    other = make_node("n2", store=full.store)
    other.pull()
    assert tree_of(other.ckpt / "global_step_20") == wanted


def test_h10_thousands_of_small_files_become_few_objects(node, make_node, tree_of):
    step = node.ckpt / "step-10"
    for number in range(5000):
        path = step / "d" / f"{number % 97:02x}" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%032d" % number)
    node.once()
    assert len(node.commits(10)) == 1
    assert sum(1 for path in node.store.rglob("*") if path.is_file()) < 20
    other = make_node("n1", store=node.store)
    other.pull()
    assert tree_of(other.ckpt / "step-10") == tree_of(step)


def test_h12_a_pull_makes_the_very_name_that_verl_parses(node):
    verl_step(node.ckpt, 20)
    node.once()
    shutil.rmtree(node.ckpt)
    node.ckpt.mkdir()
    done = node.pull()
    path = done["resume_args"][1].partition("=")[2]
    assert int(path.split("global_step_")[-1]) == 20
    assert os.path.isdir(path)
    assert node.tracker.read_text() == "20"
