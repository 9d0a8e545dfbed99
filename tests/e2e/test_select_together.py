"""Several nodes select by a strategy: the same step on all of them, or none; real processes, one store."""

import json

import pytest
from together import commit, ended, pull, rounds, save, stand_on, start

from ckptsync.testing.checkpoints import verl_step

HUNDREDS = ("--select", "multiple-of 100")


def committed(pair, *steps):
    for step in steps:
        save(pair, step)
        commit(pair)


def metric(node, step, loss):
    (node.ckpt / f"global_step_{step}/metrics.json").write_text(json.dumps({"loss": loss}))


def test_all_nodes_take_the_newest_multiple_and_the_decision_says_how_it_was_made(pair):
    committed(pair, 100, 150, 200, 230)
    results = pull(pair, *HUNDREDS)
    assert [(each["step"], each["fallback"], each["round"]) for each in results] == [(200, "", 1)] * 2
    stand_on(pair, 200)
    decision = rounds(pair[0])[1][1]
    assert (decision["format"], decision["select"], decision["fallback"]) == ([1, 1], "multiple-of 100", "")
    offer = json.loads((pair[0].store / "r/attempts/job-1/000001/offers/n0.json").read_bytes())
    assert (offer["format"], offer["limits"]["select"]) == ([2, 0], "multiple-of 100")
    for each in pull(pair, attempt="job-2"):
        assert each["step"] == 200, "230 was left: to go back to a multiple is a roll-back"


def test_the_newest_stands_in_on_all_nodes_and_each_says_so(pair):
    committed(pair, 110, 130)
    results = ended(start(pair, *HUNDREDS))
    assert [done.code for done in results] == [0, 0], "\n".join(done.err for done in results)
    for done in results:
        document = json.loads(done.out)
        assert document["step"] == 130
        assert document["fallback"] == "no sound step is a multiple of 100: the newest is taken instead"
        assert f"--select multiple-of 100: {document['fallback']}" in done.err
    stand_on(pair, 130)


def test_a_multiple_that_nobody_had_uploaded_is_brought_in_and_a_newer_save_is_not(pair):
    committed(pair, 100)
    save(pair, 200)
    save(pair, 230, seed=2)
    results = pull(pair, *HUNDREDS)
    assert [each["step"] for each in results] == [200, 200]
    stand_on(pair, 200)
    assert (len(pair[0].commits(200)), pair[0].commits(230)) == (1, [])


def test_newest_committed_uploads_nothing(pair):
    committed(pair, 20)
    save(pair, 30, seed=3)
    results = pull(pair, "--select", "newest-committed")
    assert [each["step"] for each in results] == [20, 20]
    stand_on(pair, 20)
    assert pair[0].commits(30) == []


def test_newest_committed_does_not_call_what_is_on_the_disks_nothing(pair):
    save(pair, 30)
    results = ended(start(pair, "--select", "newest-committed"))
    assert [done.code for done in results] == [7, 7], "5 would begin from the start"
    assert all("step 30 is whole on the disks, but no step is committed" in done.line for done in results)
    results = pull(pair)
    assert [(each["step"], each["round"]) for each in results] == [(30, 2)] * 2


def test_the_best_counts_what_only_one_node_knows(pair):
    """The driver wrote the metrics; nothing of 30 is in the store, and a tag of 40 waits on the other node."""
    for step, loss in ((10, 0.5), (20, 0.25)):
        save(pair, step)
        metric(pair[0], step, loss)
        commit(pair)
    save(pair, 30, seed=3)
    metric(pair[0], 30, 0.125)
    results = pull(pair, "--select", "best loss min")
    assert [each["step"] for each in results] == [30, 30]
    stand_on(pair, 30)
    save(pair, 40, seed=4)
    assert pair[1].run("tag", "40", "loss=0.0625").code == 0
    assert pair[0].commits(40) == []
    results = pull(pair, "--select", "best loss min", attempt="job-2")
    assert [each["step"] for each in results] == [40, 40]
    stand_on(pair, 40)


def test_the_best_may_be_older_than_what_was_uploaded(pair):
    """Its own upload was not due."""
    committed(pair, 10)
    save(pair, 20, seed=2)
    metric(pair[0], 20, 0.125)
    save(pair, 30, seed=3)
    assert [node.run("push", "--step", "30").code for node in pair] == [4, 0], "whole with the second half"
    assert [len(pair[0].commits(step)) for step in (20, 30)] == [0, 1]
    results = pull(pair, "--select", "best loss min")
    assert [(each["step"], each["fallback"]) for each in results] == [(20, "")] * 2
    stand_on(pair, 20)


def test_the_best_of_what_is_committed_when_time_is_up(pair):
    for step, loss in ((10, 0.5), (20, 0.75)):
        save(pair, step)
        metric(pair[0], step, loss)
        commit(pair)
    save(pair, 30, seed=3)
    metric(pair[0], 30, 0.125)
    (first,) = pull(pair[:1], "--select", "best loss min", count=2, timeout="1s")
    assert first["step"] == 10
    (second,) = pull(pair[1:], "--select", "best loss min", count=2)
    assert (second["step"], second["round"]) == (10, 1)
    stand_on(pair, 10)


# -- the same on all nodes, or none


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (HUNDREDS, (), 'disagree about the limits: n0: --select "multiple-of 100"; n1: no limits'),
        (HUNDREDS, ("--select", "best loss"), 'n1: --select "best loss"'),
        (HUNDREDS, ("--step", "100"), "n1: --step 100"),
        ((*HUNDREDS, "--max-step", "150"), HUNDREDS, 'n0: --max-step 150, --select "multiple-of 100"'),
    ],
)
def test_nodes_that_select_differently_all_refuse(pair, mine, theirs, why):
    committed(pair, 100, 150)
    results = ended(start(pair[:1], *mine, count=2) + start(pair[1:], *theirs, count=2))
    assert [done.code for done in results] == [7, 7]
    assert all(why in done.line for done in results), results[0].line
    assert not (pair[1].ckpt / "global_step_100/data.pt").exists(), "nothing was restored"
    results = pull(pair, *HUNDREDS)
    assert [(each["step"], each["round"]) for each in results] == [(100, 2)] * 2


def test_a_late_node_follows_the_same_strategy_or_its_own_step_and_nothing_else(pair):
    committed(pair, 100, 150)
    (first,) = pull(pair[:1], *HUNDREDS, count=2, timeout="1s")
    assert first["step"] == 100
    for told in ((), ("--select", "newest-committed"), ("--step", "150")):
        (late,) = ended(start(pair[1:], *told, count=2))
        assert late.code == 7, late.err
        assert "step 100 was decided before" in late.line
        assert "as multiple-of 100, for 2 nodes" in late.line
    (second,) = pull(pair[1:], "--step", "100", count=2)
    assert (second["step"], second["round"]) == (100, 1)
    stand_on(pair, 100)


def test_the_configuration_of_all_nodes_selects_and_a_number_overrides_it(pair):
    committed(pair, 100, 150)
    for node in pair:
        node.settings = '[pull]\nselect = "multiple-of 100"\n'
        node.write_config()
    for each in pull(pair):
        assert each["step"] == 100
    for each in pull(pair, "--step", "150", attempt="job-2"):
        assert each["step"] == 150
    for each in pull(pair, attempt="job-3"):
        assert each["step"] == 100
    pair[1].settings = ""
    pair[1].write_config()
    results = ended(start(pair, attempt="job-4"))
    assert [done.code for done in results] == [7, 7]


def test_an_offer_as_a_node_without_strategies_puts_it_is_understood(pair):
    """It stands for the newest: so it agrees with the newest, and disagrees with everything else."""
    committed(pair, 100, 150)
    pull(pair, attempt="job-1")
    attempts = pair[0].store / "r/attempts"
    offer = json.loads((attempts / "job-1/000001/offers/n1.json").read_bytes())
    assert offer["format"] == [1, 0]
    assert offer["limits"].keys() == {"step", "max_step", "layout"}
    for attempt, told, code in (("job-2", (), 0), ("job-3", HUNDREDS, 7)):
        target = attempts / attempt / "000001/offers"
        target.mkdir(parents=True)
        document = json.dumps({**offer, "attempt": attempt}, sort_keys=True, separators=(",", ":"))
        (target / "n1.json").write_text(document)
        (done,) = ended(start(pair[:1], *told, attempt=attempt, count=2))
        assert done.code == code, done.err
    assert 'n0: --select "multiple-of 100"; n1: no limits' in done.line


def test_a_decision_as_a_node_without_strategies_puts_it_is_for_the_newest(pair):
    committed(pair, 100, 150)
    pull(pair[:1], count=2, timeout="1s")
    decision = rounds(pair[0])[1][1]
    assert decision["format"] == [1, 0]
    assert "select" not in decision
    (late,) = ended(start(pair[1:], *HUNDREDS, count=2))
    assert late.code == 7
    assert "as newest, for 2 nodes" in late.line
    (late,) = pull(pair[1:], count=2)
    assert late["step"] == 150


# -- what a node alone says of it


def test_select_says_which_nodes_have_the_rest(pair, make_node):
    """Three were to come: so nobody uploaded 30, which is whole on the two, nor 40, of which the first has its half."""
    committed(pair, 20)
    save(pair, 30, seed=3)
    verl_step(pair[0].ckpt, 40, world=4, ranks=[0, 1], seed=4)
    assert [each["step"] for each in pull(pair, count=3, timeout="1s")] == [20, 20]
    fresh = make_node("n7", nodes=2, store=pair[0].store)
    found = json.loads(fresh.run("select", "--json").out)
    assert found["step"] == 20
    said = {other["step"]: other["reason"] for other in found["alternatives"]}
    assert said.keys() == {30, 40}
    assert said[30] == "not committed: it is whole on the disks of n0, n1: a pull of all nodes uploads it"
    assert said[40].startswith("not committed: actor: ")
    assert "rank" in said[40]
