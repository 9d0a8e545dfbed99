"""Interpolations are resolved as OmegaConf resolves them, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ckptsync.resume.sources.interpolation import resolve

KEYS = ("a", "b", "c", "d_1")
REFERENCES = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(".".join)
SCALARS = st.sampled_from([1, -2, 0.5, 1e-6, True, None, "x", "", "a b", "???", "$", "{}"])
TEXTS = st.one_of(
    REFERENCES.map(lambda name: f"${{{name}}}"),
    st.tuples(st.sampled_from([".", "..", "..."]), REFERENCES).map(lambda two: f"${{{two[0]}{two[1]}}}"),
    st.tuples(REFERENCES, REFERENCES).map(lambda two: f"/p/${{{two[0]}}}-${{{two[1]}}}"),
    st.tuples(REFERENCES, st.sampled_from(["1", "null", "x y", "'q'", "1e-6", ""])).map(
        lambda two: f"${{oc.select:{two[0]},{two[1]}}}"
    ),
    REFERENCES.map(lambda name: f"${{oc.select:{name}}}"),
    st.tuples(REFERENCES, REFERENCES).map(lambda two: f"${{oc.select:{two[0]},${{oc.select:{two[1]}, null}}}}"),
    st.tuples(REFERENCES, REFERENCES).map(lambda two: f"${{oc.select:{two[0]},${{{two[1]}}}}}"),
    st.just("${oc.env:HOME}"),
    st.just("${a.${b}}"),
    st.just("\\${a}"),
)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=10,
)
CONFIGS = st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4)


def _theirs(config, name):
    """(True, value) as OmegaConf has it; (False, None) where it fails."""
    try:
        node = config
        for key in name.split("."):
            node = node[key]
        value = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if OmegaConf.is_config(node) else node
    except (OmegaConfBaseException, RecursionError, KeyError, TypeError, AttributeError):
        return False, None
    return True, value


@settings(max_examples=200, deadline=None)
@given(CONFIGS)
def test_values_are_those_of_omegaconf(nested):
    config = OmegaConf.create(nested)
    values, unresolved = resolve(nested)
    assert not unresolved & set(values)
    for name, value in values.items():
        if value == "???" or "???" in str(value):
            continue
        understood, theirs = _theirs(config, name)
        assert understood, (name, value)
        assert repr(theirs) == repr(value), (name, value, theirs)
        event("resolved")
    for _ in unresolved:
        event("unresolved")


def test_what_verl_writes():
    nested = {
        "trainer": {
            "project_name": "p",
            "experiment_name": "e",
            "default_local_dir": "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
        },
        "actor_rollout_ref": {
            "rollout": {"n": 8, "seed": "${oc.env:SEED}"},
            "actor": {
                "rollout_n": "${oc.select:actor_rollout_ref.rollout.n,1}",
                "ppo_epochs": "${oc.select:actor_rollout_ref.nowhere,1}",
                "strategy": "fsdp",
                "profiler": {"enable": "${..strategy}"},
            },
            "all": "${.actor}",
            "qat": "${oc.select:actor_rollout_ref.all.qat,${oc.select:actor_rollout_ref.all.profiler,null}}",
            "ref": {"strategy": "${actor_rollout_ref.actor.strategy}", "all": "${..actor.profiler}"},
        },
    }
    values, unresolved = resolve(nested)
    assert values["trainer.default_local_dir"] == "checkpoints/p/e"
    assert values["actor_rollout_ref.actor.rollout_n"] == 8
    assert values["actor_rollout_ref.actor.ppo_epochs"] == 1
    assert values["actor_rollout_ref.actor.profiler.enable"] == "fsdp"
    assert values["actor_rollout_ref.ref.strategy"] == "fsdp"
    assert values["actor_rollout_ref.ref.all.enable"] == "fsdp"
    assert values["actor_rollout_ref.all.rollout_n"] == 8
    assert values["actor_rollout_ref.qat.enable"] == "fsdp"
    assert unresolved == {"actor_rollout_ref.rollout.seed"}


@pytest.mark.parametrize(
    "nested",
    [
        {"a": "${a}"},
        {"a": "${b}", "b": "${a}"},
        {"a": {"b": "${a}"}},
        {"a": "${nowhere}"},
        {"a": "x${b}", "b": {"c": 1}},
        {"a": "${oc.env:HOME}/x"},
        {"a": "${now:%Y}"},
        {"a": "${b}", "b": "???"},
    ],
)
def test_what_is_not_known_is_named(nested):
    values, unresolved = resolve(nested)
    assert any(name == "a" or name.startswith("a.") for name in unresolved)
    assert "a" not in values


def test_a_value_that_is_nowhere_given_stays_one():
    assert resolve({"a": "???"}) == ({"a": "???"}, frozenset())


@pytest.mark.parametrize(
    "twice", ["${{b.a{0}}}${{b.a{0}}}", ["${{b.a{0}}}"] * 2, {"x": "${{b.a{0}}}", "y": "${{b.a{0}}}"}]
)
def test_references_that_double_are_given_up(twice):
    def level(number, value):
        if isinstance(value, str):
            return value.format(number)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        made = {key: level(number, item) for key, item in items}
        return made if isinstance(value, dict) else list(made.values())

    nested = {"first": 1, "b": {"a0": "x" * 1000} | {f"a{n}": level(n - 1, twice) for n in range(1, 39)}}
    values, unresolved = resolve(nested)
    assert values["first"] == 1
    assert any(name.startswith("b.a38") for name in unresolved)
    assert len(str(values)) < 200_000_000
