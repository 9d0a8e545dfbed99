"""`select` and `pull --select` on one node: the step that is taken, why, and why none of the others."""

import json
import os
import shutil
import uuid

import pytest

from ckptsync.testing.checkpoints import age, verl_step


def save(node, step, *, loss=None, **how):
    made = verl_step(node.ckpt, step, **how)
    if loss is not None:
        (made / "metrics.json").write_text(json.dumps({"loss": loss, "val": {"acc": -loss}}))
    return made


def uploaded(node, *steps):
    """Each of them verified and committed, one after the other."""
    for step in steps:
        save(node, step)
        node.once()


def select(node, strategy=None, *, code=0):
    """The JSON of `select`."""
    done = node.run("select", "--json", *(("--select", strategy) if strategy else ()))
    assert done.code == code, done.err
    return json.loads(done.out)


def reasons(found, step):
    return [other["reason"] for other in found["alternatives"] if other["step"] == step]


def told(document):
    return document["step"], document["fallback"]


def test_nothing_to_resume_from(node):
    found = select(node, code=5)
    assert (found["step"], found["why"], found["alternatives"]) == (None, "", [])
    done = node.run("select", "--select", "best loss")
    assert (done.code, "nothing to resume from" in done.line) == (5, True)


def test_the_newest_with_all_others_and_why_not(node):
    uploaded(node, 10, 20)
    save(node, 30)
    found = select(node)
    assert found["strategy"] == "newest"
    assert (found["step"], found["commit"], found["why"]) == (30, None, "the newest"), "newer than every commit"
    assert {other["step"]: other["reason"] for other in found["alternatives"]} == {20: "older", 10: "older"}
    assert [other["step"] for other in found["alternatives"]] == [20, 10]
    committed = select(node, "newest-committed")
    assert (committed["step"], committed["why"]) == (20, "the newest committed")
    assert committed["commit"] + ".json" in node.commits(20)
    assert reasons(committed, 30) == ["it is not committed"]
    assert node.steps()[30]["local"] == "verified", "it was verified for that, as a pull does"
    shown = node.run("select").out.splitlines()
    assert shown[0].startswith("step 30: the newest (not committed, whole on this disk, saved 20")
    assert shown[1].split() == ["STEP", "SAVED", "WHY", "NOT"]


def test_a_save_is_told_once_whatever_the_store_has_of_it(node):
    """What is not due leaves its part in the store: that is no other save."""
    node.config.write_text(node.config.read_text().replace("every_steps = 1\n", "every_steps = 100\n"))
    uploaded(node, 10, 20, 30)
    assert {step: row["remote"] for step, row in node.steps().items()} == {10: "partial", 20: "partial", 30: "partial"}
    for strategy in (None, "best loss"):
        found = select(node, strategy)
        assert (found["step"], found["commit"]) == (30, None)
        assert [other["step"] for other in found["alternatives"]] == [20, 10]
        assert all("parts" not in other["reason"] and other["saved_ns"] for other in found["alternatives"])


def test_what_is_selected_is_what_a_pull_takes_and_nothing_is_restored_by_select(node, tree_of):
    uploaded(node, 100, 150, 200, 230)
    before = tree_of(node.ckpt)
    for strategy, step, fallback in (
        ("newest", 230, ""),
        ("multiple-of 100", 200, ""),
        ("multiple-of 50", 200, ""),
        ("multiple-of 1000", 230, "no sound step is a multiple of 1000: the newest is taken instead"),
        ("best loss", 230, "no sound step has a value of loss: the newest is taken instead"),
    ):
        assert told(select(node, strategy)) == (step, fallback)
        done = node.run("pull", "--dry-run", "--select", strategy)
        assert done.code == 0
        assert f"step {step}" in done.out
        assert (f"--select {strategy}: {fallback}" in done.out) == bool(fallback)
    assert tree_of(node.ckpt) == before
    assert reasons(select(node, "multiple-of 100"), 230) == ["no multiple of 100"]
    assert reasons(select(node, "multiple-of 100"), 100) == ["older"]
    pulled = node.pull("--select", "multiple-of 100")
    assert told(pulled) == (200, "")
    assert pulled["moved_aside"] == ["global_step_230"]
    assert (node.named(), node.tracker.read_text()) == ("global_step_200", "200")


def test_the_configuration_selects_and_the_command_line_has_the_last_word(node):
    uploaded(node, 100, 150)
    node.settings = '[pull]\nselect = "multiple-of 100"\n'
    node.write_config()
    assert (select(node)["strategy"], select(node)["step"]) == ("multiple-of 100", 100)
    assert select(node, "newest")["step"] == 150
    assert node.pull("--dest", node.home / "a")["step"] == 100
    assert node.pull("--dest", node.home / "b", "--select", "newest")["step"] == 150
    assert node.pull("--dest", node.home / "c", "--step", "150")["step"] == 150, "a number needs no strategy"
    assert node.pull("--step", "150")["step"] == 150
    assert node.pull()["step"] == 100


def test_max_step_bounds_what_is_selected(node):
    uploaded(node, 100, 150, 200, 230)
    pulled = node.pull("--dest", node.home / "a", "--select", "multiple-of 100", "--max-step", "199")
    assert told(pulled) == (100, "")
    done = node.run("pull", "--select", "multiple-of 100", "--max-step", "99")
    assert done.code == 5, done.err


@pytest.mark.parametrize("fresh", [False, True], ids=["here", "from the store"])
def test_the_best_by_the_files_of_the_steps_and_by_tags(node, make_node, fresh):
    for step, loss in ((10, 0.5), (20, 0.25), (30, 0.75), (40, None)):
        save(node, step, loss=loss)
        node.once()
    looker = make_node("n1", store=node.store) if fresh else node
    lowest = select(looker, "best loss min")
    assert (lowest["step"], lowest["value"], lowest["why"]) == (20, 0.25, "loss = 0.25, the least of 3")
    assert reasons(lowest, 40) == ["no value of loss"]
    assert reasons(lowest, 10) == ["loss = 0.5"]
    assert select(looker, "best val/acc min")["step"] == 30
    assert select(looker, "best metrics.json:loss")["step"] == 30
    assert node.run("tag", "40", "loss=0.125").code == 0
    assert select(looker, "best loss min")["step"] == 40
    assert looker.pull("--select", "best loss min")["step"] == 40
    assert looker.tracker.read_text() == "40"


def test_the_best_may_be_on_this_disk_only_with_a_tag_that_waits_for_its_commit(node):
    save(node, 10, loss=0.5)
    node.once()
    save(node, 20, loss=0.25)
    found = select(node, "best loss min")
    assert (found["step"], found["commit"], found["value"]) == (20, None, 0.25)
    save(node, 30)
    assert node.run("tag", "30", "loss=0.125").code == 0
    assert node.commits(30) == []
    assert (select(node, "best loss min")["step"], node.pull("--select", "best loss min")["step"]) == (30, 30)


def test_what_is_broken_bad_left_or_mixed_is_shown_and_skipped(node, make_node):
    """In the store: 110 is marked as bad, 120 damaged. On the disk: 130 torn, 140 rewritten, 145 mixed, 150 growing."""
    uploaded(node, 100, 110, 120)
    (part,) = (node.store / f"r/steps/{120:012d}/parts").iterdir()
    part.write_bytes(b"damaged")
    assert node.run("pull", "--avoid", "110", "--dest", node.home / "a").code == 0
    shutil.rmtree(node.ckpt / "global_step_110")
    shutil.rmtree(node.ckpt / "global_step_120")
    shard = save(node, 130) / "actor/model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:-100])
    save(node, 140)
    age(node.ckpt / "global_step_140", 30)
    save(node, 140, seed=1, driver=False, kinds=("model",))  # the next save has begun in its place
    old = save(node, 145, world=2) / "actor/model_world_size_2_rank_0.pt"
    os.utime(old, (old.stat().st_mtime - 9000,) * 2)
    save(node, 150, driver=False)
    for strategy in ("newest", "multiple-of 10", "best loss"):
        found = select(node, strategy)
        assert found["step"] == 100
        assert reasons(found, 110) == ["its commit is marked as bad"]
        assert any("missing or broken" in reason for reason in reasons(found, 120))
        assert any(reason.startswith("broken here: ") for reason in reasons(found, 130))
        assert any("here: " in reason and "another save began" in reason for reason in reasons(found, 140))
        assert any(reason.startswith("growing here: ") for reason in reasons(found, 150))
        said = "actor/model_world_size_2_rank_0.pt: older than the end of the previous save"
        assert any("shards of rank 0 of 2 are missing" in reason and said in reason for reason in reasons(found, 145))
    assert node.pull("--select", "multiple-of 10")["step"] == 100


def test_what_a_roll_back_has_left_is_shown_and_skipped(node):
    uploaded(node, 100, 120)
    attempt = ("--nodes", "1", "--attempt", "job-1")
    assert node.pull("--select", "multiple-of 100", *attempt)["step"] == 100
    found = select(node)
    assert (found["step"], reasons(found, 120)) == (100, ["superseded: a roll-back has left it"])
    assert node.pull("--select", "newest", "--nodes", "1", "--attempt", "job-2")["step"] == 100
    assert node.pull("--select", "multiple-of 60", "--nodes", "1", "--attempt", "job-3")["step"] == 100


def test_what_other_nodes_hold_is_named(make_node):
    """Two nodes of a run, half a step on each; nothing of 30 has been uploaded, and 40 has only one half."""
    first = make_node("n0", nodes=2)
    second = make_node("n1", nodes=2, store=first.store)
    shares = ((first, [0, 1], True), (second, [2, 3], False))
    for node, ranks, driver in shares:
        verl_step(node.ckpt, 20, world=4, ranks=ranks, driver=driver)
        node.once()
    for node, ranks, driver in shares:
        verl_step(node.ckpt, 30, world=4, ranks=ranks, driver=driver, seed=3)
    found = select(first)
    assert found["step"] == 20
    assert reasons(found, 30) == ["verified here, but whole only with what other nodes have"]


def test_newest_committed_refuses_to_call_a_step_on_the_disk_nothing(node, tree_of):
    save(node, 30)
    found = select(node, "newest-committed", code=9)
    assert (found["step"], reasons(found, 30)) == (None, ["it is not committed"])
    before = tree_of(node.ckpt)
    done = node.run("pull", "--select", "newest-committed")
    assert done.code == 9
    assert "no step is committed" in done.line
    assert "step 30 is whole on this disk" in done.line
    assert tree_of(node.ckpt) == before
    node.once()
    assert node.pull("--select", "newest-committed")["step"] == 30


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--step", "20", "--select", "newest"), "--step and --select exclude each other"),
        (("--select", "oldest"), "selects nothing"),
        (("--select", "multiple-of 0"), "selects nothing"),
        (("--select", "best"), "selects nothing"),
    ],
)
def test_options_that_cannot_be(node, options, why):
    uploaded(node, 20)
    done = node.run("pull", *options)
    assert (done.code, why in done.line) == (2, True), done.err
    if "--step" not in options:
        done = node.run("select", *options)
        assert (done.code, why in done.line) == (2, True), done.err


def test_a_store_that_is_not_there_is_not_nothing(node):
    uploaded(node, 20)
    shutil.rmtree(node.ckpt / "global_step_20")
    node.write_config(store=(node.home / "elsewhere").as_uri())
    done = node.run("select", "--json")
    assert (done.code, done.out) == (6, "")


def test_with_a_real_s3_server(node, make_node, s3_server, s3_environ):
    url = s3_server.url(uuid.uuid4().hex)
    node.environ = s3_environ
    node.write_config(store=url)
    for step, loss in ((100, 0.25), (150, 0.5), (200, 0.75)):
        save(node, step, loss=loss)
        node.once()
    other = make_node("n1", environ=s3_environ)
    other.write_config(store=url)
    assert [select(other, each)["step"] for each in ("newest", "multiple-of 150", "best loss min")] == [200, 150, 100]
    assert other.pull("--select", "best loss min")["step"] == 100
    assert os.listdir(other.ckpt / "global_step_100")


def test_of_many_alternatives_people_see_the_newest(node):
    for step in range(1, 26):
        save(node, step)
    lines = node.run("select").out.splitlines()
    assert lines[0].startswith("step 25: the newest")
    assert lines[-1] == "and 4 more: --json shows all"
    assert [line.split()[0] for line in lines[2:-1]] == [str(step) for step in range(24, 4, -1)]
