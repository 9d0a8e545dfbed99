"""Overrides are read exactly as Hydra's own parser reads them, or not at all."""

from __future__ import annotations

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ckptsync.resume.sources.override import Override, Unreadable, parse_override, parse_value

HYDRA = OverridesParser.create()
PIECES = (
    *(
        "a",
        "a-b_1",
        "1",
        "-7",
        "1.5",
        "1.",
        ".5",
        "1_000",
        "1e-6",
        "1E5",
        "inf",
        "nan",
        "true",
        "False",
        "null",
        "NULL",
    ),
    *("'x y'", '"q"', "'it\\'s'", '"\\\\"', "''", "[", "]", "{", "}", ":", ",", " ", "\t", "=", "(", ")", "f("),
    *("\\,", "\\\\", "\\ ", "\\'", "-", "+", "/x/y.parquet", "s3://b/k", "${a.b}", "$", "@", "%", "*", "?", "|", "01"),
)
texts = st.one_of(
    st.text(alphabet="ab1 0.e-+_'\"\\,:=[]{}()/\t$nulTrue", max_size=12),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.recursive(
        st.sampled_from([piece for piece in PIECES if piece not in set("[]{}(),: \t=$f(${a.b}")]),
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
            | st.dictionaries(st.sampled_from(["a", "b.c", "1", "true"]), inner, max_size=3).map(
                lambda pairs: "{" + ",".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
            )
        ),
        max_leaves=6,
    ),
)


def _hydra(text):
    """(True, value) as Hydra has it; (False, None) for what it refuses, and what only it can evaluate."""
    try:
        value = HYDRA.parse_override(f"a={text}").value()
    except HydraException:
        return False, None
    if isinstance(value, Sweep) or _interpolates(value):
        return False, None
    return True, _as_json(value)


def _interpolates(value):
    if isinstance(value, dict):
        return any(map(_interpolates, value.values())) or any("${" in str(key) for key in value)
    return any(map(_interpolates, value)) if isinstance(value, list) else "${" in str(value)


def _as_json(value):
    if isinstance(value, dict):
        return {_key(key): _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list) else value


def _key(key):
    return {True: "true", False: "false", None: "null"}[key] if isinstance(key, bool) or key is None else str(key)


def _equal(one, other):
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


@settings(max_examples=600, deadline=None)
@given(texts)
def test_values_are_those_of_hydra(text):
    understood, theirs = _hydra(text)
    override = parse_override(f"a={text}")
    assert override is not None
    try:
        ours = parse_value(override.text)
    except Unreadable:
        event("refused")
        assert not understood or "(" in text or "${" in text, theirs  # str(1); {1: ${a}, true: b}, which has one key
        return
    event("read")
    assert understood, ours
    assert _equal(ours, theirs), (ours, theirs)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("a.b=c", Override("", "a.b", "c")),
        ("+a.b= c", Override("+", "a.b", "c")),
        ("++a=", Override("++", "a", "")),
        ("~a.b", Override("~", "a.b", None)),
        ("~a.b=c", Override("~", "a.b", "c")),
        ("db/engine=x", Override("", "db/engine", "x")),
        (
            "actor@actor_rollout_ref.actor=megatron_actor",
            Override("", "actor@actor_rollout_ref.actor", "megatron_actor"),
        ),
        ("hydra.run.dir=/x", Override("", "hydra.run.dir", "/x")),
        ("a.0.b=1", Override("", "a.0.b", "1")),
        ("a.b=x=y", Override("", "a.b", "x=y")),
        ("a.b", None),
        ("+a", None),
        ("=x", None),
        ("a b=c", None),
        ("--a=b", None),
        ("/path/x=y", None),
        ("", None),
    ],
)
def test_which_words_are_overrides(word, expected):
    assert parse_override(word) == expected


@pytest.mark.parametrize(
    "text", ["${a}", "x-${a}", "'${a}'", "choice(a,b)", "range(1,3)", "a,b", "[${a}]", "{a:${b}}", "["]
)
def test_what_only_the_trainer_knows_is_refused(text):
    with pytest.raises(Unreadable):
        parse_value(text)


def test_depth_is_bounded():
    with pytest.raises(Unreadable):
        parse_value("[" * 10_000)
    with pytest.raises(Unreadable):
        parse_value("[" * 200 + "]" * 200)


def test_a_number_that_python_does_not_make_is_refused():
    for text in ("9" * 5000, f"[{'9' * 5000}]"):
        with pytest.raises(Unreadable):
            parse_value(text)
