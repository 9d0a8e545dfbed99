"""Retention end to end: the real command line, real files, a real store, real kills."""

import json
import os
import shutil
import signal
import time

import pytest
from retaining import KEEP_TWO, STEPS, names, reasons, retain, save, trash, unreachable, uploaded, verdicts

from ckptsync.testing.checkpoints import hf_step, verl_step


def test_without_delete_nothing_goes_and_the_report_says_what_would(node, tree_of):
    node.settings = KEEP_TWO.replace("delete = true\n", "")
    uploaded(node, *STEPS)
    before = tree_of(node.ckpt)
    found = retain(node)
    assert verdicts(found) == {10: False, 20: False, 30: False, 40: True, 50: True}
    assert reasons(found, 10) == ["no policy keeps it", "it is in the store"]
    assert "latest names it" in reasons(found, 50)
    assert verdicts(found, "remote") == dict.fromkeys(STEPS, True)
    assert all(row["bytes"] > 0 for row in (*found["local"], *found["remote"]))
    assert not any(row["deleted"] for row in found["local"])
    node.once()
    assert tree_of(node.ckpt) == before
    table = node.run("retain").out
    assert "[retention.local] delete = true lets it go" in table
    assert len(table.splitlines()) == 1 + 2 * len(STEPS) + 2


def test_retain_deletes_what_goes_and_only_that(node, tree_of, make_node):
    node.settings = KEEP_TWO
    uploaded(node, *STEPS)
    before = {step: tree_of(node.ckpt / f"global_step_{step}") for step in STEPS}
    assert verdicts(retain(node, "--dry-run")) == {10: False, 20: False, 30: False, 40: True, 50: True}
    assert names(node) == list(STEPS)
    found = retain(node)
    assert [row["step"] for row in found["local"] if row["deleted"]] == [10, 20, 30]
    assert names(node) == [40, 50]
    assert trash(node) == []
    assert node.named() == "global_step_50"
    assert {step: tree_of(node.ckpt / f"global_step_{step}") for step in (40, 50)} == {s: before[s] for s in (40, 50)}
    assert [len(node.commits(step)) for step in STEPS] == [1] * 5  # deleting here deletes nothing there
    other = make_node("n1", store=node.store)
    other.pull("--step", "10")
    assert tree_of(other.ckpt / "global_step_10") == before[10]
    node.once()  # and what was deleted is not due again
    assert [len(node.commits(step)) for step in STEPS] == [1] * 5


def test_the_daemon_does_the_same_at_each_pass(node):
    node.settings = KEEP_TWO
    node.write_config()
    save(node, *STEPS)
    log = node.once() + node.once()  # verifies, commits, deletes
    assert names(node) == [40, 50]
    assert trash(node) == []
    assert "step 10 is deleted here" in log
    assert "no policy keeps it; it is in the store" in log
    save(node, 60)
    node.once()
    node.once()
    assert names(node) == [50, 60]


def test_what_is_due_waits_for_its_commit_and_a_policy_for_the_store(node):
    node.settings = KEEP_TWO
    uploaded(node, 10, 20)
    save(node, 30, 40, 50)
    unreachable(node)
    done = node.run("run", "--once")
    assert done.code == 6
    assert names(node) == [10, 20, 30, 40, 50]
    assert "nothing is deleted before the store says what is pinned" in done.err
    assert node.run("retain").code == 6
    found = retain(node, "--local")
    assert verdicts(found) == {10: False, 20: False, 30: True, 40: True, 50: True}
    assert reasons(found, 30) == ["due, and not committed yet"]
    assert any("step 10 stays: the store was not asked" in problem for problem in found["problems"])
    assert names(node) == [10, 20, 30, 40, 50]
    node.write_config()
    node.once()
    node.once()
    assert names(node) == [40, 50]


def test_a_step_that_the_store_lost_stays(node):
    node.settings = KEEP_TWO
    uploaded(node, *STEPS)
    shutil.rmtree(node.store / "r" / "steps" / f"{10:012d}" / "commits")
    found = retain(node)
    assert names(node) == [10, 40, 50]
    assert any("step 10 stays: the store no longer holds its commit" in problem for problem in found["problems"])
    node.once()
    assert names(node) == [10, 40, 50]


CRASHES = (
    ("trash.before-rename", 1),
    ("trash.before-rename", 2),
    ("move-dir.before-dir-fsync", 1),
    ("trash.after-rename", 1),
    ("trash.after-rename", 3),
    ("trash.before-delete", 1),
    ("trash.before-delete", 2),
    ("remove-tree.unlinked", 1),
    ("remove-tree.unlinked", 5),
    ("publish.before-rename", 1),
)


@pytest.mark.parametrize(("label", "nth"), CRASHES)
@pytest.mark.parametrize("command", [("retain",), ("run", "--once")], ids=["retain", "run"])
def test_killed_at(node, tree_of, command, label, nth):
    """Each step is as it was or gone; what is left of it is removed by the next pass; the store has everything."""
    node.settings = KEEP_TWO
    uploaded(node, *STEPS)
    before = {step: tree_of(node.ckpt / f"global_step_{step}") for step in STEPS}
    killed = node.run(*command, crash=label, nth=nth)
    assert killed.code == -9, f"was not killed: {killed.out} {killed.err}"
    for step in names(node):
        assert tree_of(node.ckpt / f"global_step_{step}") == before[step]
    assert {40, 50} <= set(names(node))
    retain(node)
    assert names(node) == [40, 50]
    assert trash(node) == node.leftovers() == []
    assert [len(node.commits(step)) for step in STEPS] == [1] * 5
    assert node.named() == "global_step_50"


def until(condition, what):
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def test_a_trainer_that_rotates_beside_the_daemon(node, make_node, tree_of):
    """Both keep two steps, at the same time, over fifteen saves: nobody fails, and the store has every one of them."""
    node.settings = KEEP_TWO
    node.write_config()
    daemon, before = node.start("run"), {}
    for step in range(10, 160, 10):
        path = verl_step(node.ckpt, step)
        before[step] = tree_of(path)
        until(lambda step=step: node.commits(step), f"the commit of step {step}")
        for old in sorted(names(node))[:-2]:
            shutil.rmtree(node.ckpt / f"global_step_{old}" / "actor", ignore_errors=True)  # as verl does: a husk stays
    until(lambda: names(node) == [140, 150] and trash(node) == [], "the end of the deletions")
    assert {step: tree_of(node.ckpt / f"global_step_{step}") for step in (140, 150)} == {
        s: before[s] for s in (140, 150)
    }
    daemon.send(signal.SIGTERM)
    done = daemon.wait()
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    other = make_node("n1", store=node.store)
    for step in (10, 70, 150):
        other.pull("--step", str(step))
        assert tree_of(other.ckpt / f"global_step_{step}") == before[step]


# -- husks


def test_husks_are_pruned_and_go_when_superseded(node):
    """Ten saves, of which the trainer has pruned eight: a husk is not broken, is not uploaded, and its commit stays."""
    node.settings = KEEP_TWO.replace("delete = true\n", "")
    uploaded(node, *range(10, 110, 10))
    for step in range(10, 90, 10):
        shutil.rmtree(node.ckpt / f"global_step_{step}" / "actor")
    log = node.once()
    assert "broken" not in log
    rows = node.steps()
    assert {step: row["local"] for step, row in rows.items() if step < 90} == dict.fromkeys(range(10, 90, 10), "pruned")
    assert {row["remote"] for row in rows.values()} == {"committed"}
    assert reasons(retain(node), 10) == ["pruned by the trainer", "superseded by step 100"]
    node.settings = KEEP_TWO
    node.write_config()
    node.once()
    assert names(node) == [90, 100]
    assert all(len(node.commits(step)) == 1 for step in range(10, 110, 10))


# -- pins and tags


def test_a_pin_is_honoured_by_every_node(node, make_node):
    other = make_node("n1", store=node.store, settings=KEEP_TWO)
    node.settings = KEEP_TWO
    uploaded(node, *STEPS)
    other.settings, settings = "", other.settings
    other.write_config()
    for step in STEPS:
        other.pull("--step", str(step))
        shutil.move(other.ckpt / f"global_step_{step}", other.home / str(step))
    for step in STEPS:
        shutil.move(other.home / str(step), other.ckpt / f"global_step_{step}")
    other.settings = settings
    other.write_config()
    done = node.run("pin", "10", "--note", "baseline of the paper", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["commit"] == node.commits(10)[0].removesuffix(".json")
    assert "pinned: baseline of the paper" in reasons(retain(other, "--dry-run"), 10)
    retain(other)
    assert 10 in names(other)
    assert 20 not in names(other)
    node.once()
    assert names(node) == [10, 40, 50]
    assert json.loads(node.run("unpin", "10", "--json").out)["pins"] == 1
    assert "is not pinned" in node.run("unpin", "10").out or "was not pinned" in node.run("unpin", "10").out
    node.once()
    assert names(node) == [40, 50]


def test_a_pin_of_a_step_that_is_not_due_makes_it_due_and_reaches_the_store_with_its_commit(node, make_node):
    node.settings = KEEP_TWO + "\n"
    node.write_config()
    node.config.write_text(node.config.read_text().replace("every_steps = 1", "every_steps = 100"))
    save(node, *STEPS)
    node.once()
    assert node.commits(20) == []
    assert names(node) == [40, 50]  # what is not due is never uploaded, and goes
    save(node, 60, 70)
    done = node.run("pin", "40", "--note", "why")
    assert "not committed yet" in done.out
    save(node, 80, 90)
    assert "pinned: why" in reasons(retain(node), 40)
    node.once()
    node.once()
    assert len(node.commits(40)) == 1
    assert 40 in names(node)
    pins = {path.name for path in (node.store / "r/pins").iterdir()}
    assert node.commits(40)[0].removesuffix(".json") in pins
    assert list((node.state / "notes").iterdir()) == []
    assert "pinned: why" in reasons(retain(make_node("n1", store=node.store)), 40, "remote")


def test_a_pin_on_one_node_makes_the_step_due_on_the_others(make_node):
    """Each node has half of a step that was never due; one of them pins it, and both upload their halves."""
    nodes = [make_node(f"n{rank}", nodes=2) for rank in (0, 1)]
    for node in nodes:
        node.config.write_text(node.config.read_text().replace("every_steps = 1", "every_steps = 100"))
    for step in (10, 20, 30):
        for rank in (1, 0):
            verl_step(nodes[rank].ckpt, step, world=2, ranks=[rank], driver=rank == 0)
    for node in nodes:
        node.once()
    assert nodes[0].commits(20) == []
    assert nodes[0].run("pin", "20", "--note", "both halves").code == 0
    for node in nodes * 2:
        node.once()
    assert len(nodes[0].commits(20)) == 1
    assert nodes[0].commits(10) == []
    nodes[1].settings = KEEP_TWO.replace("keep_last = 2", "keep_last = 1")
    nodes[1].write_config()
    for step in (40, 50):
        verl_step(nodes[1].ckpt, step, world=2, ranks=[1], driver=False)
    assert "pinned: both halves" in reasons(retain(nodes[1], "--dry-run"), 20)


def test_a_pin_without_the_store_holds_here_and_is_told_later(node):
    node.settings = KEEP_TWO
    save(node, 10)
    unreachable(node)
    done = node.run("pin", "10")
    assert done.code == 6
    assert "pinned on this node only" in done.line
    assert "pinned" in reasons(retain(node, "--local"), 10)
    node.write_config()
    save(node, 20, 30, 40)
    for _ in range(3):
        node.once()
    assert names(node) == [10, 30, 40]
    assert len(list((node.store / "r/pins").iterdir())) >= 1


def test_pins_of_what_is_not_there_are_refused(node):
    uploaded(node, 10)
    assert node.run("pin", "20").code == 4
    (node.ckpt / "global_step_10/actor/model_world_size_1_rank_0.pt").write_bytes(b"PK")
    done = node.run("pin", "10")
    assert done.code == 4
    assert "step 10 is growing" in done.line
    assert node.run("tag", "10", "reward").code == 2
    assert node.run("tag", "10", "reward=nan").code == 2


def test_tags_decide_keep_best_here_and_in_the_store(node):
    node.settings = (
        KEEP_TWO + 'keep_best = { metric = "val/reward", count = 1 }\n'
        '[retention.remote]\nkeep_last = 1\nkeep_best = { metric = "val/reward", mode = "min" }\n'
    )
    uploaded(node, *STEPS)
    for step, value in ((10, 0.1), (20, 0.9), (30, 0.5)):
        assert node.run("tag", str(step), f"val/reward={value}", "other=3").code == 0
    found = retain(node)
    assert "keep_best: val/reward = 0.9, 1 of 1" in reasons(found, 20)
    assert names(node) == [20, 40, 50]
    assert verdicts(found, "remote") == {10: True, 20: False, 30: False, 40: False, 50: True}
    assert reasons(found, 10, "remote") == ["keep_best: val/reward = 0.1, 1 of 1"]


def test_a_tag_before_the_commit_is_known_at_once_and_told_later(node):
    node.settings = KEEP_TWO + 'keep_best = { metric = "acc" }\n'
    save(node, 10)
    node.write_config()
    assert node.run("tag", "10", "acc=0.7").code == 0
    save(node, 20, 30, 40)
    for _ in range(3):
        node.once()
    assert names(node) == [10, 30, 40]
    assert (node.store / "r/tags" / node.commits(10)[0].removesuffix(".json") / "acc").exists()


def test_metrics_come_from_the_trainers_own_files(make_node):
    """The Trainer's record of the whole run: the last entry up to the step; here, and by the store elsewhere."""
    settings = '[retention.local]\ndelete = true\nkeep_best = { metric = "eval_loss", mode = "min" }\n'
    settings += settings.replace("local", "remote").replace("delete = true\n", "")
    node = make_node("n0", layout="plain")
    history = []
    for index, (step, loss) in enumerate(((10, 0.9), (20, 0.2), (30, 0.5), (40, 0.6))):
        path = hf_step(node.ckpt, step)
        history.append({"step": step, "eval_loss": loss})
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
        for entry in (*path.rglob("*"), path):
            os.utime(entry, ns=(10**9, (1_700_000_000 + index) * 10**9))
    node.once()
    node.settings = settings
    node.write_config()
    found = retain(node)
    assert verdicts(found) == {10: False, 20: True, 30: True, 40: True}
    assert reasons(found, 20) == ["keep_best: eval_loss = 0.2, 1 of 1"]
    assert verdicts(found, "remote") == {10: False, 20: True, 30: False, 40: True}
    assert sorted(path.name for path in node.ckpt.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in (20, 30, 40)]


# -- roll-backs


def test_a_rolled_back_run_keeps_what_it_will_write_again(node):
    """After 50 the run goes back to 20 and saves 30 anew: its old 40 and 50 lie ahead, and are not touched."""
    node.settings = KEEP_TWO
    uploaded(node, *STEPS)
    path = node.ckpt / "global_step_30"
    shutil.rmtree(path)
    verl_step(node.ckpt, 30, seed=7)
    node.once()
    node.once()
    assert names(node) == [30, 40, 50]
    assert len(node.commits(30)) == 2
    assert "above the newest save (30): the run will write this number again" in reasons(retain(node), 40)


def test_the_step_of_the_last_pull_stays(node):
    node.settings = KEEP_TWO
    uploaded(node, 10, 20)
    node.pull("--step", "10")
    for step in (30, 40, 50):
        verl_step(node.ckpt, step)
    node.once()
    node.once()
    assert "the last resume started from it" in reasons(retain(node), 10)
    assert 10 in names(node)


# -- disks
