"""The checks `algorithm` and `model_options`: settings of the original against those of the start."""

from __future__ import annotations

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from resuming import ACTOR, MODEL, ROLLOUT, context_of, now, then

from ckptsync.resume.checks import algorithm, model_options
from ckptsync.resume.sources.names import flatten
from ckptsync.testing.checkpoints import verl_step

GRPO = {
    "algorithm.adv_estimator": "grpo",
    f"{ROLLOUT}.n": 8,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.gamma": 1.0,
}
OPTIONS = {f"{MODEL}.use_remove_padding": True, f"{MODEL}.enable_gradient_checkpointing": True, f"{MODEL}.path": "/m"}


class TestAlgorithm:
    def test_the_same_algorithm_passes_however_its_values_are_spelled(self, tmp_path):
        same = {**GRPO, f"{ROLLOUT}.n": "8", "algorithm.gamma": "1", f"{ACTOR}.use_kl_loss": "true"}
        outcome = algorithm.check(context_of(tmp_path, then=then(GRPO), now=now(same)))
        assert outcome.status == "pass"
        assert "algorithm.adv_estimator=grpo" in outcome.message
        assert f"{ROLLOUT}.n=8" in outcome.message

    @pytest.mark.parametrize(
        ("name", "value", "add"),
        [
            ("algorithm.adv_estimator", "gae", "add algorithm.adv_estimator=grpo"),
            (f"{ROLLOUT}.n", 16, f"add {ROLLOUT}.n=8"),
            (f"{ACTOR}.use_kl_loss", False, f"add {ACTOR}.use_kl_loss=True"),
            (f"{ACTOR}.kl_loss_coef", 0.01, f"add {ACTOR}.kl_loss_coef=0.001"),
            (f"{ACTOR}.kl_loss_type", "k3", f"add {ACTOR}.kl_loss_type=low_var_kl"),
            ("algorithm.use_kl_in_reward", True, "add algorithm.use_kl_in_reward=False"),
        ],
    )
    def test_another_estimator_group_size_or_kl_term_fails_with_the_argument_to_add(self, tmp_path, name, value, add):
        outcome = algorithm.check(context_of(tmp_path, then=then(GRPO), now=now({**GRPO, name: value})))
        assert outcome.status == "fail"
        assert name in outcome.message
        assert "launch record of attempt a-1" in outcome.message
        assert outcome.remedy == add

    def test_a_coefficient_of_a_term_that_is_off_on_both_sides_does_not_matter(self, tmp_path):
        outcome = algorithm.check(
            context_of(tmp_path, then=then(GRPO), now=now({**GRPO, "algorithm.kl_ctrl.kl_coef": 0.5}))
        )
        assert outcome.status == "pass"
        on = {**GRPO, "algorithm.use_kl_in_reward": True}
        outcome = algorithm.check(
            context_of(tmp_path, then=then(on), now=now({**on, "algorithm.kl_ctrl.kl_coef": 0.5}))
        )
        assert outcome.status == "fail"

    def test_what_people_change_on_purpose_is_a_warning(self, tmp_path):
        outcome = algorithm.check(context_of(tmp_path, then=then(GRPO), now=now({**GRPO, "algorithm.gamma": 0.99})))
        assert (outcome.status, outcome.remedy) == ("warn", "add algorithm.gamma=1.0")

    def test_an_estimator_that_is_right_only_by_default_is_a_warning(self, tmp_path):
        start = now(GRPO, explicit=set(GRPO) - {"algorithm.adv_estimator"}, complete=True)
        outcome = algorithm.check(context_of(tmp_path, then=then(GRPO), now=start))
        assert (outcome.status, outcome.remedy) == ("warn", "add algorithm.adv_estimator=grpo")

    def test_a_group_size_that_was_given_and_is_not_any_more_is_told_where_hydra_cannot_be_asked(self, tmp_path):
        less = {name: value for name, value in GRPO.items() if name != f"{ROLLOUT}.n"}
        outcome = algorithm.check(context_of(tmp_path, then=then(GRPO), now=now(less)))
        assert (outcome.status, outcome.remedy) == ("warn", f"add {ROLLOUT}.n=8")

    @pytest.mark.parametrize("name", ["actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.use_kl_loss"])
    def test_what_is_given_as_something_that_only_hydra_knows_never_passes(self, tmp_path, name):
        values = {"algorithm.adv_estimator": "grpo"}
        found = algorithm.check(
            context_of(tmp_path, then=then(values | {name: 8}), now=now(values, explicit={*values, name}))
        )
        assert (found.status, name in found.message) == ("skip", True)
        assert found.remedy

    def test_without_the_originals_estimator_nobody_knows(self, tmp_path):
        step = verl_step(tmp_path / "out", 10)
        outcome = algorithm.check(context_of(tmp_path, step=step, now=now(GRPO)))
        assert outcome.status == "skip"
        assert "not known for the original" in outcome.message
        assert "ckptsync exec" in outcome.remedy
        outcome = algorithm.check(context_of(tmp_path, then=then(GRPO)))
        assert outcome.status == "skip"
        assert "not known for the start" in outcome.message
        assert "after --" in outcome.remedy

    def test_real_hydra_configurations_in_verls_shape_are_compared_as_composed(self, tmp_path):
        directory = tmp_path / "config"
        (directory / "actor").mkdir(parents=True)
        (directory / "actor" / "dp_actor.yaml").write_text(
            "strategy: fsdp\nuse_kl_loss: false\nkl_loss_coef: 0.001\n"
            "rollout_n: ${oc.select:actor_rollout_ref.rollout.n,1}\n"
        )
        main = {
            "defaults": [{"actor@actor_rollout_ref.actor": "dp_actor"}, "_self_"],
            "actor_rollout_ref": {"rollout": {"n": 1}},
            "algorithm": {"adv_estimator": "gae", "use_kl_in_reward": False, "kl_ctrl": {"kl_coef": 0.001}},
        }
        (directory / "trainer.yaml").write_text(yaml.safe_dump(main))

        def composed(*words):
            with initialize_config_dir(str(directory), version_base=None):
                config = compose("trainer", list(words))
            return flatten(OmegaConf.to_container(config, resolve=True))

        words = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8")
        names = {word.partition("=")[0] for word in words}
        before = then(composed(*words), explicit=names)
        start = now(composed(*words), explicit=names, complete=True)
        assert algorithm.check(context_of(tmp_path, then=before, now=start)).status == "pass"
        start = now(composed(words[0]), explicit={"algorithm.adv_estimator"}, complete=True)
        outcome = algorithm.check(context_of(tmp_path, then=before, now=start))
        assert (outcome.status, outcome.remedy) == ("fail", f"add {ROLLOUT}.n=8")


class TestModelOptions:
    def test_the_same_and_named_options_pass(self, tmp_path):
        assert model_options.check(context_of(tmp_path, then=then(OPTIONS), now=now(OPTIONS))).status == "pass"

    @pytest.mark.parametrize("name", ["use_remove_padding", "enable_gradient_checkpointing"])
    def test_an_option_that_changes_the_state_dicts_keys_fails(self, tmp_path, name):
        start = now({**OPTIONS, f"{MODEL}.{name}": False})
        outcome = model_options.check(context_of(tmp_path, then=then(OPTIONS), now=start))
        assert (outcome.status, outcome.remedy) == ("fail", f"add {MODEL}.{name}=True")

    def test_any_other_option_of_the_model_that_changed_fails_too(self, tmp_path):
        before = {**OPTIONS, f"{MODEL}.lora_rank": 32, f"{MODEL}.target_modules": ["q_proj", "v_proj"]}
        start = {**before, f"{MODEL}.lora_rank": 0, f"{MODEL}.target_modules": "all-linear"}
        outcome = model_options.check(context_of(tmp_path, then=then(before), now=now(start)))
        assert outcome.status == "fail"
        assert outcome.remedy == f"add {MODEL}.lora_rank=32 '{MODEL}.target_modules=[q_proj,v_proj]'"

    def test_an_option_that_the_start_adds_fails(self, tmp_path):
        start = now({**OPTIONS, f"{MODEL}.override_config.attn_implementation": "eager"}, complete=True)
        outcome = model_options.check(context_of(tmp_path, then=then(OPTIONS), now=start))
        assert outcome.status == "fail"
        assert "remove" in outcome.remedy

    def test_a_dict_without_entries_is_not_told_beside_the_entries_of_the_other_side(self, tmp_path):
        before = {**OPTIONS, f"{MODEL}.override_config": {}}
        start = {**OPTIONS, f"{MODEL}.override_config.x": 1}
        outcome = model_options.check(context_of(tmp_path, then=then(before), now=now(start, complete=True)))
        assert outcome.status == "fail"
        assert outcome.remedy == f"remove {MODEL}.override_config.x, which the original did not set"

    def test_another_path_is_not_this_checks_business(self, tmp_path):
        start = now({**OPTIONS, f"{MODEL}.path": "/other"})
        assert model_options.check(context_of(tmp_path, then=then(OPTIONS), now=start)).status == "pass"

    def test_options_that_are_right_only_by_default_are_a_warning_with_the_text_to_add(self, tmp_path):
        before = then({**OPTIONS, f"{MODEL}.use_liger": True}, explicit={f"{MODEL}.use_liger"})
        start = now({**OPTIONS, f"{MODEL}.use_liger": True}, explicit=(), complete=True)
        outcome = model_options.check(context_of(tmp_path, then=before, now=start))
        assert outcome.status == "warn"
        assert outcome.remedy == (
            f"add {MODEL}.use_remove_padding=True {MODEL}.enable_gradient_checkpointing=True {MODEL}.use_liger=True"
        )

    def test_without_the_originals_options_or_the_starts_nobody_knows(self, tmp_path):
        outcome = model_options.check(context_of(tmp_path, now=now(OPTIONS)))
        assert outcome.status == "skip"
        assert "use_remove_padding is not known for the original" in outcome.message
        outcome = model_options.check(context_of(tmp_path))
        assert outcome.status == "skip"
        assert "the trainer's command after --" in outcome.remedy
