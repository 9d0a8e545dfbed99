"""Settings then and now, side by side."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from resuming import context_of, now, record, then

from ckptsync.resume.compare import Finding, argument, judge, judged, override, pair, pairs
from ckptsync.testing.checkpoints import verl_step


@pytest.mark.parametrize(
    ("before", "after", "complete", "relation"),
    [
        ({"a.b": 1}, {"a.b": "1"}, False, "same"),
        ({"a.b": 1}, {"a.b": 2}, False, "changed"),
        ({"a.b": 1}, {}, True, "changed"),
        ({"a.b": 1}, {"x": 1}, False, "dropped"),
        ({"a.b": 1}, {}, False, "unknown"),
        ({}, {"a.b": 1}, False, "new"),
        ({}, {}, False, "absent"),
    ],
)
def test_two_sides_of_a_setting_are_the_same_or_not_or_not_known(tmp_path, before, after, complete, relation):
    context = context_of(tmp_path, then=then(before), now=now(after, complete=complete))
    assert pair(context, "a.b").relation == relation
    assert len(pairs(context, ["a.b"])) == (relation != "absent")


def test_a_name_that_nobody_gave_and_a_value_that_only_hydra_knows_are_not_taken_for_dropped(tmp_path):
    before = then({"a.b": 1}, explicit=())
    assert pair(context_of(tmp_path, then=before), "a.b").relation == "unknown"
    interpolated = now({}, explicit=["a.b"])
    assert pair(context_of(tmp_path, then=then({"a.b": 1}), now=interpolated), "a.b").relation == "unknown"
    hidden = context_of(tmp_path, then=then({"a.b": 1}), now=now({"x": 1}), words=("bash", "train.sh", "x=1"))
    assert pair(hidden, "a.b").relation == "unknown"
    assert pair(context_of(tmp_path, then=then({}, complete=False), now=now({"a.b": 1})), "a.b").relation == "unknown"


@pytest.mark.parametrize(
    "value",
    [
        1, 1.5, 1e-6, True, False, None, "grpo", "Qwen/Qwen3-8B", "/data/a b.parquet", "it's", 'a "quoted" one', "null",
        "true", "12", "", "a,b", "x=y", "${a}", ["/data/a.parquet", "/data/b.parquet"], [], {"a": 1, "b": "c d"}, "~/x",
    ],
)  # fmt: skip
def test_hydra_reads_back_the_value_that_an_argument_gives(value):
    if value == "${a}":
        assert argument("a.b", value) == 'a.b="${a}"'
        return
    (parsed,) = OverridesParser.create().parse_overrides([argument("a.b", value)])
    assert parsed.value() == value
    assert type(parsed.value()) is type(value)


def test_an_override_can_be_pasted_into_a_shell():
    assert override("a.b", "c") == "a.b=c"
    assert override("a.b", ["c", "d"]) == "'a.b=[c,d]'"
    assert override("a.b", "it's") == """'a.b="it'\\''s"'"""


def test_the_worst_finding_decides_and_everything_that_is_not_right_is_told():
    bad, odd, open_ = (
        Finding("fail", "bad", "add a=1"),
        Finding("warn", "odd", "add b=2"),
        Finding("skip", "open", "ask"),
    )
    outcome = judge([Finding("pass", "fine"), open_, odd, bad], "good")
    assert (outcome.status, outcome.message, outcome.remedy) == ("fail", "bad; odd; open", "add a=1 b=2")
    outcome = judge([odd, open_], "good")
    assert (outcome.status, outcome.message, outcome.remedy) == ("warn", "odd; open", "add b=2; ask")
    assert judge([open_], "good").status == "skip"
    assert judge([Finding("pass", "fine"), Finding("pass", "")], "good").message == "good: fine"


def test_where_values_were_read_is_told_once_if_it_is_the_same_for_all(tmp_path):
    context = context_of(tmp_path, then=then({"a": 1, "b": 2}), now=now({"a": 3, "b": 4}))
    changed = [judged(pair(context, name), changed="fail") for name in ("a", "b")]
    sources = "(then: the launch record of attempt a-1; now: the command line)"
    assert judge(changed, "good").message == f"a: 1, now 3; b: 2, now 4 {sources}"
    mixed = [*changed, Finding("fail", "c: 5, now 6", sources="then: the train log"), Finding("fail", "d")]
    assert (
        judge(mixed, "good").message
        == f"a: 1, now 3 {sources}; b: 2, now 4 {sources}; c: 5, now 6 (then: the train log); d"
    )


def test_a_dropped_option_is_a_warning_with_the_text_to_add_whatever_a_change_of_it_would_be(tmp_path):
    context = context_of(tmp_path, then=then({"a.b": [1, 2]}), now=now({"x": 1}))
    finding = judged(pair(context, "a.b"), changed="fail")
    assert (finding.status, finding.remedy) == ("warn", "add 'a.b=[1,2]'")
    assert "a.b was given as [1,2] (the launch record of attempt a-1)" in finding.message


def test_an_option_that_only_a_newer_trainer_has_is_no_change_unless_it_is_given(tmp_path):
    before = then({})
    silent = context_of(tmp_path, then=before, now=now({"a.b": 1}, explicit=(), complete=True))
    assert judged(pair(silent, "a.b"), changed="fail").status == "pass"
    given = context_of(tmp_path, then=before, now=now({"a.b": 1}, complete=True))
    finding = judged(pair(given, "a.b"), changed="fail")
    assert (finding.status, finding.remedy) == ("fail", "remove a.b, which the original did not set")


def test_nobody_is_told_to_do_what_was_done_already(tmp_path):
    step = verl_step(tmp_path / "out", 10)

    def cure(**given):
        return pair(context_of(tmp_path, **{"step": step, **given}), "a.b").unknown.remedy

    assert "--train-log" in cure(now=now({"a.b": 1}))
    assert "what `ckptsync exec` starts is recorded" in cure(now=now({"a.b": 1}))
    assert cure(now=now({"a.b": 1}), step=None).startswith("see the check `tracker`")
    recorded = cure(now=now({"a.b": 1}), record=record())
    assert "was recorded" in recorded
    assert "`ckptsync exec`" not in recorded
    python, words = SimpleNamespace(path="/venv/bin/python3"), ("python3", "train.py")
    before = then({"a.b": 1}, explicit=())
    assert cure(then=before) == "give the trainer's command after --"
    assert "--python" in cure(then=before, words=words)
    assert cure(then=before, words=words, python=python).endswith("with /venv/bin/python3")
    assert "a shell script" in cure(then=before, words=("bash", "train.sh"))
