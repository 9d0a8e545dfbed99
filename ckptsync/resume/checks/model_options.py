"""`model_options`: every option of the model is what it was, and is named.

Names: verl 0.9.1, trainer/config/model/hf_model.yaml. `use_remove_padding`, `enable_gradient_checkpointing`, LoRA and
the like wrap or replace modules, and with them the keys of the state dict: "missing keys" at the load, or worse, a load
that is not strict.
"""

from __future__ import annotations

from ckptsync.resume.compare import Finding, Pair, judge, judged, pair, pairs
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome

__all__ = ["check"]

_MODEL = "actor_rollout_ref.model"
_NAMED = (f"{_MODEL}.use_remove_padding", f"{_MODEL}.enable_gradient_checkpointing")
_ELSEWHERE = frozenset({f"{_MODEL}.path"})
"""The check `model_path` looks at it."""


def check(context: Context) -> Outcome:
    """fail: an option changed; warn: the start relies on a default where it should name the option.

    skip: `use_remove_padding` or `enable_gradient_checkpointing` is not known for the original, or for the start.
    """
    findings = [judged(pair(context, name), changed="fail", explicit=True, needed=True) for name in _NAMED]
    sides = (context.then, context.now)
    known = {name for side in sides for name, _ in side.under(_MODEL)}
    unresolved = {name for side in sides for name in side.unresolved if name.startswith(f"{_MODEL}.")}
    others = sorted((known | unresolved) - {*_NAMED})
    for each in pairs(context, others):
        if each.name in _ELSEWHERE or "_target_" in each.name or _is_empty(each):
            continue
        finding = judged(each, changed="fail", explicit=each.name in context.then.explicit)
        findings.append(finding if finding.status != "pass" else Finding("pass", ""))
    return judge(findings, "as in the original")


def _is_empty(each: Pair) -> bool:
    """A dict without entries on the one side: on the other, its entries have names of their own."""
    return any(side is not None and side.value == {} for side in (each.then, each.now)) and each.relation != "same"
