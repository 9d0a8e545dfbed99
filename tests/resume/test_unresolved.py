"""What Hydra cannot resolve here is named by the check that would compare it, with the way to make it known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hydra_app import HydraApp
from preflighting import fresh, prepared
from resuming import ACTOR, MODEL, context_of, now, then

from ckptsync.resume import registry
from ckptsync.testing.checkpoints import verl_step

SIZE = {"trainer.nnodes": 1, "trainer.n_gpus_per_node": 2}
OPTIONS = {f"{MODEL}.use_remove_padding": True, f"{MODEL}.enable_gradient_checkpointing": True}
KNOWN = {**SIZE, **OPTIONS, "algorithm.adv_estimator": "grpo", "data.train_files": "/d/a.parquet"}
WORDS = ("python3", "-m", "acme.trainer.main_ppo")


def unresolved(settings, *names):
    left = {name: known for name, known in settings.values.items() if name not in names}
    return replace(settings, values=left, unresolved=frozenset(names), complete=False)


@pytest.fixture
def outcome(tmp_path):
    """What a check says of a start (or of an original) whose Hydra could not resolve a setting."""
    step = verl_step(tmp_path / "out", 10, world=2)

    def of(check, name, *, before=True, start=True, original=()):
        values = KNOWN | ({name: 1} if before else {})
        current = now(KNOWN | {name: 1}, explicit=KNOWN.keys() - {name})
        given = {
            "then": unresolved(then(values, explicit=()), *original),
            "now": unresolved(current, name) if start else current,
        }
        return registry.run(check, context_of(tmp_path, step=step, words=WORDS, **given))

    return of


CHECKED = [
    ("algorithm", "algorithm.gamma"),
    ("algorithm", "algorithm.adv_estimator"),
    ("model_options", f"{MODEL}.lora_rank"),
    ("model_options", f"{MODEL}.use_remove_padding"),
    ("model_path", f"{MODEL}.path"),
    ("dataset", "data.train_files"),
    ("dataset", "data.val_files"),
    ("dataset", "data.shuffle"),
    ("parallelism", "trainer.nnodes"),
    ("parallelism", f"{ACTOR}.strategy"),
    ("ports", "actor_rollout_ref.rollout.port"),
]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("check", "name"), CHECKED)
def test_a_setting_of_the_start_that_hydra_could_not_resolve_is_named(outcome, check, name, before):
    found = outcome(check, name, before=before)
    assert name in found.message
    if check == "dataset" and name != "data.train_files":
        assert (found.status, "no such file" in found.message) == (
            "fail",
            True,
        )  # which says nothing of what is skipped
        return
    assert (found.status, "set the variables that its ${...} refers to" in found.remedy) == ("skip", True)


@pytest.mark.parametrize(("check", "name"), [each for each in CHECKED if each[0] != "ports"])
def test_so_is_one_of_the_original(outcome, check, name):
    found = outcome(check, name, start=False, original=[name])
    said = ("the model's path" if check == "model_path" else name) + " is not known for the original"
    assert f"{said}, since Hydra could not resolve" in found.message
    assert name in found.message
    assert found.status == ("fail" if check == "dataset" else "skip"), "the data is not there, which is worse"


def test_all_below_a_part_that_could_not_be_resolved_is_not_known(tmp_path):
    before = then(KNOWN | {f"{ACTOR}.clip_ratio": 0.2, f"{ACTOR}.entropy_coeff": 0}, explicit=())
    start = replace(now(KNOWN), unresolved=frozenset({ACTOR}))
    found = registry.run("algorithm", context_of(tmp_path, then=before, now=start, words=WORDS))
    assert found.status == "skip"
    assert f"{ACTOR}.clip_ratio was 0.2" in found.message
    assert f"{ACTOR}.entropy_coeff was 0" in found.message


def test_a_resume_mode_that_hydra_could_not_resolve_never_passes(tmp_path):
    out = tmp_path / "out"
    verl_step(out, 10)
    context = prepared(fresh(tmp_path), f"trainer.default_local_dir={out}")
    assert registry.run("tracker", context).status == "pass"
    start = replace(context.now, unresolved=frozenset({"trainer.resume_mode"}))
    found = registry.run("tracker", replace(context, now=start))
    assert (found.status, "trainer.resume_mode is set, and only" in found.message) == ("warn", True)


def test_a_real_hydra_tells_what_it_could_not_resolve(tmp_path, monkeypatch):
    app, out = HydraApp(tmp_path / "app"), tmp_path / "out"
    config = app.root / "acme/trainer/config/ppo_trainer.yaml"
    config.write_text(config.read_text().replace("adv_estimator: gae", "adv_estimator: ${oc.env:ESTIMATOR}"))
    verl_step(out, 10)
    for name, value in app.env.items():
        monkeypatch.setenv(name, value)
    words = app.words(f"trainer.default_local_dir={out}", f"{MODEL}.path=/m", "actor_rollout_ref.rollout.name=vllm")

    def algorithm():
        return registry.run("algorithm", replace(prepared(fresh(tmp_path), *words), then=then(KNOWN, explicit=())))

    found = algorithm()
    assert found.status == "skip"
    assert "algorithm.adv_estimator was grpo (the launch record of attempt a-1); the start gives what" in found.message
    monkeypatch.setenv("ESTIMATOR", "gae")
    found = algorithm()
    assert (found.status, "algorithm.adv_estimator: grpo, now gae" in found.message) == ("fail", True)
