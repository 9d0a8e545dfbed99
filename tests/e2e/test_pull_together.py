"""Several nodes pull together: real processes, one store, one step; whatever dies, comes late or disagrees."""

import json
import os
import random
import shutil
import time

import pytest
from together import commit, content, ended, pull, rounds, save, stand_on, start
from waiting import until

from ckptsync.testing.checkpoints import age, dcp_step, megatron_v2_step, verl_sft_step

RANKS = ([0, 1], [2, 3])


# -- the same step, whole, on all nodes


def test_all_nodes_get_the_whole_newest_step_and_every_trainer_finds_it(pair, tree_of):
    save(pair, 20)
    commit(pair)
    before = [content(tree_of, node, 20) for node in pair]
    results = pull(pair)
    assert [(each["step"], each["attempt"], each["round"]) for each in results] == [(20, "job-1", 1)] * 2
    stand_on(pair, 20)
    for node in pair:
        assert content(tree_of, node, 20) == before[0] | before[1]
        assert (node.ckpt / "global_step_20/data.pt").exists()
    assert rounds(pair[0])[1][2] == ["n0", "n1"]


def test_a_save_that_nobody_had_uploaded_is_not_lost(pair, tree_of):
    """Both daemons were down (or the upload not due): the newest save is on the disks only, half of it on each."""
    save(pair, 20)
    commit(pair)
    save(pair, 30, seed=3)
    assert pair[0].commits(30) == []
    results = pull(pair)
    assert [each["step"] for each in results] == [30, 30]
    stand_on(pair, 30)
    assert len(pair[0].commits(30)) == 1
    assert content(tree_of, pair[0], 30) == content(tree_of, pair[1], 30)


def test_a_save_whose_other_half_is_lost_with_its_node_is_not_picked(make_node, pair):
    """A node is replaced by an empty one: the newest save was on the dead disk, the one before is in the store."""
    save(pair, 20)
    commit(pair)
    save(pair, 30, seed=3)
    fresh = make_node("n7", nodes=2, store=pair[0].store)
    results = pull([pair[0], fresh])
    assert [each["step"] for each in results] == [20, 20]
    stand_on([pair[0], fresh], 20)
    assert results[0]["moved_aside"] == ["global_step_30", "global_step_20"]


def test_ranks_that_moved_between_nodes_find_their_shards(pair, tree_of):
    save(pair, 20)
    commit(pair)
    a, b = pair
    for path in ("ckpt", "state"):
        os.rename(a.home / path, a.home / "other")
        os.rename(b.home / path, a.home / path)
        os.rename(a.home / "other", b.home / path)
    for node in pair:
        shutil.rmtree(node.state / "saves", ignore_errors=True)
    pull(pair)
    stand_on(pair, 20)
    assert content(tree_of, a, 20) == content(tree_of, b, 20)


def test_nothing_is_agreed_to_by_all(pair):
    results = ended(start(pair))
    assert [done.code for done in results] == [5, 5]
    assert all("nothing to resume from, all nodes agree" in done.line for done in results)
    save(pair, 20)  # the training began from the start, and died
    results = pull(pair)
    assert [(each["step"], each["round"]) for each in results] == [(20, 2)] * 2


@pytest.mark.parametrize("write", [verl_sft_step, megatron_v2_step, dcp_step])
def test_a7_e3_each_trainers_own_tracker_and_the_union_of_all_shards_are_on_every_node(make_node, tree_of, write):
    """SFT: the tracker and `data_0.pt` were on one node only. DCP: `.metadata` was. None of it had been uploaded."""
    nodes = [make_node("n0", nodes=2)]
    nodes.append(make_node("n1", nodes=2, store=nodes[0].store))
    for number, node in enumerate(nodes):
        driver = {"driver": number == 0} if write is megatron_v2_step else {}
        made = write(node.ckpt, 20, world=4, ranks=RANKS[number], **driver).name
    written = [{p: e for p, e in tree_of(node.ckpt / made).items() if e[0] == "file"} for node in nodes]
    for each in pull(nodes):
        assert each["step"] == 20
    for node in nodes:
        assert {p: e for p, e in tree_of(node.ckpt / made).items() if e[0] == "file"} == written[0] | written[1]
        assert node.leftovers() == []
        if write is not dcp_step:
            assert node.tracker.read_text() == "20"


@pytest.mark.parametrize(
    ("tracker", "told"),
    [
        (None, "is missing: the trainer would start from step 0"),
        ("", "cannot be read"),
        ("step twenty", "cannot be read"),
        ("40", "names step 40, which is not here"),
        ("too high", "is missing"),
    ],
)
def test_a_tracker_that_lies_is_told_and_written_right_on_every_node(pair, tracker, told):
    """`too high`: a trainer has put it beside output_dir instead of into it."""
    save(pair, 20, tracker=False)
    where = pair[0].home / "latest_checkpointed_iteration.txt" if tracker == "too high" else pair[0].tracker
    if tracker is not None:
        where.write_text("20" if tracker == "too high" else tracker)
    log = pair[0].once()
    assert told in log
    pair[1].once()
    pull(pair)
    stand_on(pair, 20)
    if tracker == "too high":
        assert where.read_text() == "20"


def test_four_nodes_with_a_store_on_a_shared_file_system(make_node, tree_of):
    """As a team with NFS has it: one directory for all. A node is replaced by an empty one, in the middle."""
    nodes = [make_node("n0", nodes=4)]
    nodes += [make_node(f"n{number}", nodes=4, store=nodes[0].store) for number in (1, 2, 3)]
    save(nodes, 20)
    commit(nodes)
    save(nodes, 30, seed=3)
    nodes[3] = make_node("n9", nodes=4, store=nodes[0].store)
    for each in pull(nodes):
        assert each["step"] == 20
    stand_on(nodes, 20)
    save(nodes, 40, seed=4)
    for each in pull(nodes, attempt="job-2"):
        assert each["step"] == 40
    stand_on(nodes, 40)
    assert len({str(sorted(content(tree_of, node, 40).items())) for node in nodes}) == 1


# -- the same attempt again


def test_the_same_attempt_after_a_crash_of_the_training_is_a_new_round(pair):
    save(pair, 20)
    commit(pair)
    pull(pair)
    save(pair, 40, seed=4)
    results = pull(pair)
    assert [(each["step"], each["round"]) for each in results] == [(40, 2)] * 2
    stand_on(pair, 40)


@pytest.mark.parametrize(
    "label",
    [
        "pull.before-offer",
        "pull.before-decision",
        "pull.after-decision",
        "push.before-chunks",
        "push.before-ready",
        "push.before-commit",
        "pull.before-place",
        "pull.before-aside",
        "pull.after-place",
        "pull.before-tracker",
        "pull.before-latest",
        "pull.before-done",
    ],
)
def test_a_pull_that_is_killed_and_started_again_converges_with_the_other(pair, label, tree_of):
    save(pair, 20)
    commit(pair)
    save(pair, 30, seed=3)
    victim = pair[1].start("pull", "--json", "--attempt", "job-1", "--timeout", "60s", crash=label)
    (other,) = start(pair[:1], count=2)
    code = victim.wait().code
    if label not in ("pull.before-decision", "pull.after-decision"):  # the other one may have been first
        assert code == -9, victim.done.err
    if code:  # who is done and pulls again asks for another round, and would wait for the other
        victim = pair[1].start("pull", "--json", "--attempt", "job-1", "--timeout", "60s")
    results = ended([other, victim])
    assert [done.code for done in results] == [0, 0], "\n".join(done.err for done in results)
    assert {json.loads(done.out)["step"] for done in results} == {30}
    stand_on(pair, 30)
    assert content(tree_of, pair[0], 30) == content(tree_of, pair[1], 30)


@pytest.mark.parametrize("seed", range(3))
def test_pulls_that_are_killed_at_any_moment_converge_without_anybodys_help(pair, seed, tree_of):
    """Each of them is killed at random moments, and started again as it was, until both are done."""
    chance = random.Random(seed)
    save(pair, 20)
    commit(pair)
    save(pair, 30, seed=3)
    arguments = ("pull", "--json", "--attempt", "job-1", "--timeout", "60s", "--nodes", 2)
    for _ in range(5):
        running = [node.start(*arguments) for node in pair]
        time.sleep(chance.uniform(0, 0.5))
        chance.choice(running).kill()
        time.sleep(chance.uniform(0, 0.2))
        for each in running:
            if each.done is None:
                each.kill()
    results = ended(start(pair))
    assert [done.code for done in results] == [0, 0], "\n".join(done.err for done in results)
    assert {json.loads(done.out)["step"] for done in results} == {30}
    stand_on(pair, 30)
    assert content(tree_of, pair[0], 30) == content(tree_of, pair[1], 30)


# -- late, dead, absent


def test_a_late_node_follows_the_decision(pair):
    save(pair, 20)
    commit(pair)
    save(pair, 30, seed=3)
    (first,) = pull(pair[:1], count=2, timeout="1s")
    assert first["step"] == 20, "without the other node only what is committed counts"
    (second,) = pull(pair[1:], count=2)
    assert (second["step"], second["round"]) == (20, 1)
    stand_on(pair, 20)
    decision = rounds(pair[0])[1][1]
    assert (decision["step"], decision["outcome"]) == (20, "commit")


def test_a_node_that_offers_and_dies_holds_the_others_up_only_for_a_while(pair):
    save(pair, 20)
    commit(pair)
    save(pair, 30, seed=3)
    dying = [n.start("pull", "--attempt", "job-1", "--timeout", "60s", crash="push.before-chunks") for n in pair]
    assert [done.code for done in ended(dying)] == [-9, -9]
    (first,) = ended(start(pair[:1], count=2, timeout="2s"))
    assert first.code == 0, first.err
    assert json.loads(first.out)["step"] == 20
    assert rounds(pair[0])[1][0] == ["n0", "n1"]
    (second,) = pull(pair[1:], count=2)
    assert second["step"] == 20
    stand_on(pair, 20)


def test_without_any_commit_the_absent_nodes_are_named(pair):
    save(pair, 30)
    pair[1].once()
    (first,) = ended(start(pair[:1], count=2, timeout="1s"))
    assert first.code == 7
    assert "1 of 2 nodes did not come" in first.line
    assert "n1" in first.line
    assert "waiting: 1 of 2 nodes are here, 1 absent (n1?)" in first.err
    results = pull(pair)
    assert [(each["step"], each["round"]) for each in results] == [(30, 2)] * 2


def test_a_node_that_never_said_done_does_not_hold_back_what_the_others_trained_since(pair, make_node):
    """Three were to come, two decided when time was up, trained on and crashed: the old decision is over."""
    save(pair, 20)
    for node in pair:
        age(node.ckpt / "global_step_20", 3600)
    commit(pair)
    for each in pull(pair, count=3, timeout="2s"):
        assert each["step"] == 20
    decided = pair[0].store / "r/attempts/job-1/000001/decision.json"
    document = json.loads(decided.read_bytes())
    document["decided_ns"] -= 60 * 10**9  # a minute of training
    decided.write_bytes(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    save(pair, 30, seed=3)
    commit(pair)
    third = make_node("n2", nodes=3, store=pair[0].store)
    results = pull([*pair, third])
    assert [(each["step"], each["round"]) for each in results] == [(30, 2)] * 3


# -- disagreement


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (("--step", "20"), (), "disagree about the limits: n0: --step 20; n1: no limits"),
        (("--max-step", "20"), ("--max-step", "30"), "n1: --max-step 30"),
    ],
)
def test_nodes_that_were_told_different_things_all_refuse(pair, mine, theirs, why):
    save(pair, 20)
    commit(pair)
    results = ended(start(pair[:1], *mine, count=2) + start(pair[1:], *theirs, count=2))
    assert [done.code for done in results] == [7, 7]
    assert all(why in done.line for done in results)
    assert not (pair[1].ckpt / "global_step_20/data.pt").exists(), "nothing was restored"
    results = pull(pair, "--step", "20")
    assert [each["round"] for each in results] == [2, 2]


def test_nodes_that_count_differently_all_refuse(pair):
    save(pair, 20)
    commit(pair)
    results = ended(start(pair[:1], count=2) + start(pair[1:], count=3))
    assert [done.code for done in results] == [7, 7]
    assert "disagree about the number of nodes" in results[0].line


def test_a_late_node_that_was_told_otherwise_refuses(pair):
    save(pair, 20)
    save(pair, 40)
    commit(pair)
    pull(pair[:1], count=2, timeout="1s")
    (late,) = ended(start(pair[1:], "--step", "20", count=2))
    assert late.code == 7
    assert "step 40 was decided before" in late.line


def test_two_machines_with_one_name_are_told(pair, make_node, tmp_path):
    save(pair, 20)
    commit(pair)
    twin = make_node("n0", root=tmp_path / "elsewhere", nodes=3, store=pair[0].store)
    running = start(pair[:1], count=3)
    until((pair[0].store / "r/attempts/job-1/000001/offers/n0.json").exists)
    (second,) = ended(start([twin], count=3))
    assert second.code == 7
    assert "another machine called n0 takes part" in second.line
    running[0].kill()


def test_a_step_that_nobody_can_give(pair):
    save(pair, 20)
    commit(pair)
    results = ended(start(pair, "--step", "999"))
    assert [done.code for done in results] == [5, 5]


# -- one node, several pulls


def test_two_pulls_of_one_attempt_on_one_node_come_to_the_same(pair):
    save(pair, 20)
    commit(pair)
    running = start(pair[:1], count=2) + start(pair[:1], count=2)
    until(lambda: any("waiting for process" in each.err.read_text() for each in running))
    (other,) = pull(pair[1:], count=2)
    results = ended(running)
    assert [done.code for done in results] == [0, 0], "\n".join(done.err for done in results)
    assert any("waiting for process" in done.err for done in results)
    said = [json.loads(done.out) for done in results]
    assert {(each["step"], each["round"]) for each in [*said, other]} == {(20, 1)}
