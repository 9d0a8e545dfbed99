"""Reports about saves: shards on several nodes, saves cut short, trackers that lie, numbers that come again."""

import os
import shutil

import pytest

from ckptsync.testing.checkpoints import age, megatron_v1_step, verl_sft_step, verl_step

TWO = ([0, 1], [2, 3])


def two_nodes(make_node, **options):
    first = make_node("n0", nodes=2, **options)
    return first, make_node("n1", nodes=2, store=first.store, **options)


@pytest.mark.parametrize("write", [verl_step, verl_sft_step, megatron_v1_step])
def test_a1_a_step_spread_over_nodes_is_committed_with_its_last_part_and_restored_whole(make_node, write, tree_of):
    nodes = two_nodes(make_node)
    for number, (node, ranks) in enumerate(zip(nodes, TWO, strict=True)):
        driver = {} if write is verl_sft_step else {"driver": number == 0}
        write(node.ckpt, 20, world=4, ranks=ranks, **driver)
    nodes[0].once()
    assert nodes[0].commits(20) == [], "one node's part is not the step"
    nodes[1].once()
    assert len(nodes[0].commits(20)) == 1
    third = make_node("n2", nodes=2, store=nodes[0].store)
    third.pull("--nodes", 1)
    for node in nodes:
        for path, entry in tree_of(node.ckpt / "global_step_20").items():
            if entry[0] == "file":
                assert tree_of(third.ckpt / "global_step_20")[path] == entry


def test_a2_a_step_whose_second_part_never_comes_is_skipped_and_the_reason_is_told(make_node):
    nodes = two_nodes(make_node)
    for step in (20, 40):
        for number, (node, ranks) in enumerate(zip(nodes, TWO, strict=True)):
            if (step, number) != (40, 1):
                verl_step(node.ckpt, step, world=4, ranks=ranks, driver=number == 0)
    verl_step(nodes[1].ckpt, 40, world=4, ranks=[2], kinds=("model",), driver=False)
    (nodes[1].ckpt / "global_step_40/actor/model_world_size_4_rank_2.pt").write_bytes(b"PK\3\4")
    for node in nodes:
        node.once()
    third = make_node("n2", nodes=2, store=nodes[0].store)
    done = third.run("pull", "--nodes", 1)
    assert done.code == 0, done.err
    assert "skip step 40: not committed" in done.out
    assert os.listdir(third.ckpt / "global_step_20/actor")
    assert third.tracker.read_text() == "20"


@pytest.mark.parametrize(
    "gone",
    ["data.pt", "actor/fsdp_config.json", "actor/huggingface/config.json", "actor/optim_world_size_2_rank_1.pt"],
)
@pytest.mark.parametrize("half", [False, True])
def test_b1_a_save_that_was_killed_is_not_named_and_not_deleted(node, gone, half, tree_of):
    verl_step(node.ckpt, 40, world=2)
    broken = verl_step(node.ckpt, 60, world=2, tracker=False)
    data = (broken / gone).read_bytes()
    (broken / gone).unlink()
    if half:
        (broken / gone).write_bytes(data[: len(data) // 2])
    before = tree_of(broken)
    node.once()
    assert node.named() == "global_step_40"
    assert node.commits(60) == []
    assert tree_of(broken) == before
    row = node.steps()[60]
    assert row["local"] in ("growing", "broken")
    assert any(gone.rpartition("/")[2].partition("_world")[0] in reason for reason in row["reasons"])


def test_b2_a_tracker_ahead_of_the_data_proves_nothing(node):
    megatron_v1_step(node.ckpt, 20)
    ahead = megatron_v1_step(node.ckpt, 30)
    for name in (".metadata", "metadata.json"):
        (ahead / "actor/dist_ckpt" / name).unlink()
    assert node.tracker.read_text() == "30"
    node.once()
    assert node.named() == "global_step_20"
    assert node.commits(30) == []


def test_b3_without_any_tracker_steps_are_taken_and_a_pull_writes_one(node):
    for step in (20, 40, 60):
        verl_step(node.ckpt, step, tracker=False)
    node.once()
    assert node.named() == "global_step_60"
    assert not node.tracker.exists(), "it is the trainer's"
    node.pull()
    assert node.tracker.read_text() == "60"


@pytest.mark.parametrize("there", ["gone", "empty", "husk"])
def test_b6_a_tracker_that_names_nothing_does_not_move_latest(node, there):
    verl_step(node.ckpt, 20)
    if there != "gone":
        (node.ckpt / "global_step_40" / "actor").mkdir(parents=True)
    if there == "husk":
        shutil.copy(node.ckpt / "global_step_20" / "data.pt", node.ckpt / "global_step_40")
    node.tracker.write_text("40")
    node.once()
    assert node.named() == "global_step_20"
    assert node.commits(40) == []


def test_b9_hard_links_and_links_of_a_migration_are_stored_once_and_restored(node, make_node):
    step = megatron_v1_step(node.ckpt, 10, n=300_000)
    for piece in ("model", "optimizer"):
        (step / "actor" / piece / "dist_ckpt").mkdir(parents=True)
        for path in (step / "actor/dist_ckpt").iterdir():
            os.link(path, step / "actor" / piece / "dist_ckpt" / path.name)
    (step / "actor/model/huggingface").symlink_to("../huggingface")
    (step / "actor/extra").symlink_to(step / "actor/model", target_is_directory=True)
    contents = '{"schema_version": 2, "global_step": 10, "contents": {"model": {"path": "model/dist_ckpt"}}}'
    (step / "actor/ckpt_contents.json").write_text(contents)
    (step / "data.pt").touch()
    node.once()
    stored = sum(path.stat().st_size for path in node.chunks())
    once = sum(path.stat().st_size for path in step.rglob("*") if path.is_file() and "optimizer" not in path.parts)
    assert stored < once
    other = make_node("n1", store=node.store)
    other.pull()
    for path in step.rglob("*"):
        if path.is_file():
            assert (other.ckpt / step.name / path.relative_to(step)).read_bytes() == path.read_bytes()
    for link, target in (("actor/model/huggingface", "../huggingface"), ("actor/extra", "model")):
        assert os.readlink(other.ckpt / step.name / link) == target


@pytest.mark.parametrize("how", ["anew", "in place"])
def test_f1_the_same_number_with_other_content_is_a_save_of_its_own(node, make_node, how, tree_of):
    step = verl_step(node.ckpt, 20)
    age(step, 600)
    node.once()
    (old,) = node.commits(20)
    if how == "anew":
        shutil.rmtree(step)
    verl_step(node.ckpt, 20, seed=999)
    wanted = tree_of(step)
    node.once()
    assert node.named() == "global_step_20"
    assert old in node.commits(20), "what was there stays"
    assert len(node.commits(20)) == 2
    other = make_node("n1", store=node.store)
    other.pull()
    assert tree_of(other.ckpt / "global_step_20") == wanted


def test_f1_latest_follows_time_and_not_numbers(node):
    verl_step(node.ckpt, 100)
    node.once()
    verl_step(node.ckpt, 20, seed=1)
    node.once()
    assert node.named() == "global_step_20"


def test_f3_steps_are_ordered_as_numbers(node):
    for step in (9, 10, 99, 100, 9900, 10000):
        verl_step(node.ckpt, step)
    node.once()
    assert list(node.steps()) == [9, 10, 99, 100, 9900, 10000]
    assert node.named() == "global_step_10000"


def test_f6_a_run_whose_name_begins_like_another_is_not_seen(node, make_node):
    other = make_node("n1", store=node.store)
    for one, run in ((node, "run-1"), (other, "run-10")):
        one.config.write_text(one.config.read_text().replace('name = "r"', f'name = "{run}"'))
    verl_step(node.ckpt, 1)
    verl_step(other.ckpt, 10)
    node.once()
    other.once()
    assert list(node.steps()) == [1]
    shutil.rmtree(node.ckpt)
    node.ckpt.mkdir()
    assert node.pull()["step"] == 1
    assert node.run("pull", "--step", "10").code == 5
