"""What nodes that pull together never take up again: steps that were left by a roll-back, and commits that are bad."""

import json

from together import commit, ended, pull, save, stand_on, start

from ckptsync.testing.checkpoints import verl_step


def test_a_roll_back_is_not_undone_by_a_crash(pair):
    """Back from 120 to 80, a crash before anything new is saved: 80 again, though 120 is newer and committed."""
    for step in (80, 120):
        save(pair, step)
        commit(pair)
    pull(pair, "--step", "80", attempt="job-1")
    stand_on(pair, 80)
    for each in pull(pair, attempt="job-2"):
        assert each["step"] == 80
    save(pair, 90, seed=9)
    for each in pull(pair, attempt="job-3"):
        assert each["step"] == 90
    for each in pull(pair, "--max-step", "85", attempt="job-4"):
        assert each["step"] == 80
    for each in pull(pair, attempt="job-5"):
        assert each["step"] == 80, "90 was left by the decision for 80"
    for each in pull(pair, "--step", "120", attempt="job-6"):
        assert each["step"] == 120, "by force, the line that was left can be taken up again"
    for each in pull(pair, attempt="job-7"):
        assert each["step"] == 120


def test_a_node_alone_does_not_return_to_what_was_left_either(pair, make_node):
    for step in (80, 120):
        save(pair, step)
        commit(pair)
    pull(pair, "--step", "80")
    alone = make_node("n5", store=pair[0].store)
    assert alone.pull("--nodes", "1")["step"] == 80


def test_a_commit_that_failed_to_load_is_avoided_by_all_and_a_new_save_of_its_number_is_not(pair):
    for step in (80, 120):
        save(pair, step)
        commit(pair)
    for each in pull(pair):
        assert each["step"] == 120
    for each in pull(pair, "--avoid", "120"):
        assert (each["step"], each["round"]) == (80, 2)
    for each in pull(pair, attempt="job-2"):
        assert each["step"] == 80, "the mark holds for the whole run"
    results = ended(start(pair, "--step", "120", attempt="job-3"))
    assert [done.code for done in results] == [5, 5], "also if it is asked for"
    assert "marked as bad" in results[0].err
    save(pair, 120, seed=5)
    commit(pair)
    for each in pull(pair, "--avoid", "120", attempt="job-4"):
        assert each["step"] == 120, "the launch script still says --avoid 120: it meant the other one"


def test_a_decision_whose_commit_turned_out_bad_is_over(pair):
    """One node has restored it and failed to load it; the other has not come yet."""
    for step in (80, 120):
        save(pair, step)
        commit(pair)
    pull(pair[:1], count=2, timeout="1s")
    running = start(pair[:1], "--avoid", "120", count=2)
    (late,) = pull(pair[1:], "--avoid", "120", count=2)
    (first,) = ended(running)
    assert first.code == 0, first.err
    assert {(each["step"], each["round"]) for each in (late, json.loads(first.out))} == {(80, 2)}


def test_time_does_not_decide_while_a_node_stands_on_what_is_bad_now(pair):
    for step in (80, 120):
        save(pair, step)
        commit(pair)
    pull(pair[:1], count=2, timeout="1s")
    (late,) = ended(start(pair[1:], "--avoid", "120", count=2, timeout="1s"))
    assert late.code == 7
    assert "n0 restored what was decided before, and must pull again" in late.line


def test_one_node_alone_marks_what_it_restored_and_failed_to_load(make_node):
    node = make_node("n0")
    for step in (80, 120):
        verl_step(node.ckpt, step)
        node.once()
    assert node.pull()["step"] == 120
    dry = node.run("pull", "--avoid", "120", "--dry-run")
    assert "marks nothing in a dry run" in dry.out
    done = node.pull("--avoid", "120")
    assert (done["step"], done["moved_aside"], done["attempt"]) == (80, ["global_step_120"], None)
    assert node.pull()["step"] == 80
    verl_step(node.ckpt, 120, seed=7)
    node.once()
    assert node.pull()["step"] == 120
