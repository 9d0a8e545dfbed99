"""What a pull offers and follows, in one process: few offers are those that count, and a number needs no strategy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptsync.actions.launched import ALONE, Launch
from ckptsync.actions.pull import PullOptions, pull_step
from ckptsync.model.selection import parse_strategy
from ckptsync.testing.checkpoints import verl_step

NAMES = ("a", "b")


def save(bench, step, *, loss=None, **how):
    """A rank on each node, the driver on the last one."""
    for rank, name in enumerate(NAMES):
        made = verl_step(bench.out(name), step, world=2, ranks=[rank], driver=name == "b", **how)
        if loss is not None and name == "b":
            (made / "metrics.json").write_text(f'{{"loss": {loss}}}')


def pull(bench, text, *, names=NAMES, **which):
    def one(name):
        launch = Launch(len(names), "job-1") if len(names) > 1 else ALONE
        options = PullOptions(launch=launch, timeout_s=60.0, select=parse_strategy(text))
        which_step = {"step": None, "max_step": None, **which}
        with pull_step(
            bench.node(name), dest=None, keep_newer=False, say=lambda _: None, options=options, **which_step
        ) as planned:
            return planned.execute(lambda _: None).step, planned.plan.choice.fallback

    with ThreadPoolExecutor(len(names)) as pool:
        return set(pool.map(one, names))


@pytest.mark.parametrize(
    ("text", "step"), [("newest", 130), ("multiple-of 100", 100), ("best loss", 120), ("best loss min", 110)]
)
def test_of_many_saves_those_are_offered_that_a_strategy_would_take(bench, monkeypatch, text, step):
    """Only one node knows the values."""
    monkeypatch.setattr("ckptsync.actions.together._OFFERED_MAX", 1)  # and for the best for all
    for number, loss in ((100, None), (110, 0.25), (120, 0.5), (130, None)):
        save(bench, number, loss=loss, seed=number)
    assert pull(bench, text) == {(step, "")}


def test_a_step_by_its_number_needs_no_strategy(bench):
    """A library that gives both, as no command line can."""
    for step in (100, 130):
        save(bench, step, seed=step)
    assert pull(bench, "multiple-of 100", step=130) == {(130, "")}
    assert b'"format":[1,0]' in bench.store.get("run/attempts/job-1/000001/offers/a.json", max_size=10_000)
