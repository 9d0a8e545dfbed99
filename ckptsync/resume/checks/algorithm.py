"""`algorithm`: the resume trains with the algorithm of the original: advantages, group size, KL terms, reward.

Names: verl 0.9.1, trainer/config/{ppo_trainer,actor/actor,rollout/rollout,data/legacy_data,reward/reward}.yaml, and
legacy_reward_impl.yaml for the older ones. A change of any of them leaves no trace in the log but another curve.
"""

from __future__ import annotations

from ckptsync.resume.compare import Finding, judge, judged, pair, pairs
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome
from ckptsync.resume.settings import same

__all__ = ["check"]

_ESTIMATOR = "algorithm.adv_estimator"
_GROUP = "actor_rollout_ref.rollout.n"
_KL_LOSS = "actor_rollout_ref.actor.use_kl_loss"
_KL_REWARD = "algorithm.use_kl_in_reward"
_UNCHANGED = (_ESTIMATOR, _GROUP, _KL_LOSS, _KL_REWARD)
_ONLY_WITH = {
    "actor_rollout_ref.actor.kl_loss_coef": _KL_LOSS,
    "actor_rollout_ref.actor.kl_loss_type": _KL_LOSS,
    "algorithm.kl_penalty": _KL_REWARD,
    "algorithm.kl_ctrl.type": _KL_REWARD,
    "algorithm.kl_ctrl.kl_coef": _KL_REWARD,
    "algorithm.kl_ctrl.horizon": _KL_REWARD,
    "algorithm.kl_ctrl.target_kl": _KL_REWARD,
}
"""Has an effect only where the other one is on: off on both sides, its value does not matter."""
_LOOK_AT = (
    "algorithm.gamma",
    "algorithm.lam",
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.filter_groups.enable",
    "algorithm.filter_groups.metric",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_k",
    "actor_rollout_ref.rollout.top_p",
    "critic.optim.lr",
    "custom_reward_function.name",
    "custom_reward_function.path",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.train_batch_size",
    "reward.custom_reward_function.name",
    "reward.custom_reward_function.path",
    "reward.reward_manager.name",
    "reward.reward_model.enable",
    "reward.reward_model.model_path",
    "reward_model.enable",
    "reward_model.model.path",
    "reward_model.reward_manager",
)
"""What people do change on purpose in the middle of a run."""


def check(context: Context) -> Outcome:
    """fail: estimator, group size or a KL term changed; warn: the estimator is not named, or a coefficient changed.

    skip: the estimator is not known for the original, or for the start.
    """
    findings = [
        judged(pair(context, name), changed="fail", explicit=name == _ESTIMATOR, needed=name == _ESTIMATOR)
        for name in _UNCHANGED
    ]
    findings += [
        judged(each, changed="fail")
        for each in pairs(context, _ONLY_WITH)
        if not _is_off(context, _ONLY_WITH[each.name])
    ]
    findings += map(_noticed, (judged(each, changed="warn") for each in pairs(context, _LOOK_AT)))
    return judge(findings, "as in the original")


def _is_off(context: Context, switch: str) -> bool:
    both = pair(context, switch)
    return both.relation == "same" and both.then is not None and same(both.then.value, False)


def _noticed(finding: Finding) -> Finding:
    """Only what changed is told: the list is long."""
    return finding if finding.status != "pass" else Finding("pass", "")
