"""Whether what a training logs after a resume goes on from what it logged before. Pure; one function for each check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ckptsync.resume.confirmation.newest_start import Fault, Logged, Start
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned

__all__ = ["Resumption", "judge"]

_NEAR = 100  # steps before N that still say something about N
_WINDOW = 20
_AFTER = 3
_FEW = 3
_LR_SLACK = 0.01  # a schedule is printed with all its digits; this is for schedules that bend
_FLOOR = 0.1  # of a loss: a band is never narrower, however quiet the last steps were
_SAME = 1e-9
_TINY = 1e-3
"""Of a loss, too: the policy's is next to zero where each batch is used once."""
_LOSSES = ("loss", "pg_loss", "kl_loss", "vf_loss", "entropy", "entropy_loss")
_BEFORE_REMEDY = "give the log of the training before the resume: --before FILE"
_NO_STEP = "no step has been logged since the start"
_WAIT = "wait for the first step: --follow"
_METRICS = "let the trainer print its metrics: trainer.logger with 'console' (verl)"


@dataclass(frozen=True, slots=True)
class Resumption:
    """What is judged.

    Attributes:
        step: resumed from; None = nobody knows.
        epoch, offset: those of the step; None = not known.
        start: what the log says of the start.
        before: steps that were logged before it, ascending.
        last: the last line of the log.
    """

    step: int | None
    epoch: int | None
    offset: int | None
    start: Start
    before: Sequence[Logged]
    last: str = ""

    def known(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric before the resume: the last steps up to the one resumed from, ascending."""
        step = self.step if self.step is not None else self.before[-1].step if self.before else 0
        near = (logged for logged in self.before if step - _NEAR < logged.step <= step)
        return [(logged.step, logged.metrics[name]) for logged in near if name in logged.metrics][-_WINDOW:]

    def now(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric in the first steps after the resume."""
        return [(x.step, x.metrics[name]) for x in self.start.trained[:_AFTER] if name in x.metrics]

    def names(self, *ends: str) -> list[str]:
        """Metrics of the first steps whose last word is one of `ends`, or that are one of them."""
        found = {name for logged in self.start.trained[:_AFTER] for name in logged.metrics}
        return sorted(name for name in found if name in ends or name.rpartition("/")[2] in ends)


def judge(resumption: Resumption) -> tuple[tuple[str, Outcome], ...]:
    """All checks, in the order in which people want to read them."""
    return tuple((name, check(resumption)) for name, check in _CHECKS.items())


# -- what it says


def _resumed(it: Resumption) -> Outcome:
    start = it.start
    if start.scratch:
        return failed(
            "the log says that it trains from nothing",
            "stop it; `ckptsync preflight` says why it finds no step, `ckptsync exec` gives it the right arguments",
        )
    if start.origin is None:
        return skipped(
            "the log does not say what was resumed from",
            "give all that the driver prints, stderr too (`2>&1`), at level INFO (verl: VERL_LOGGING_LEVEL=INFO)",
        )
    how = "resumed from" if start.said else "had validated before its first step at"
    if it.step is not None and start.origin != it.step:
        return failed(
            f"it {how} step {start.origin}, not step {it.step}",
            "stop it; start it with `ckptsync exec`, which names the step",
        )
    return passed(f"it {how} step {start.origin}")


def _first_step(it: Resumption) -> Outcome:
    if not it.start.trained:
        last = f"; the last line is: {it.last}" if it.last else ""
        return failed(_NO_STEP + last, _WAIT + ", or see why it ended")
    first = it.start.trained[0].step
    if it.step is None and it.before and first <= 1:
        return failed(
            f"it began anew: step {first} follows step {it.before[-1].step}", "stop it; resume with `ckptsync exec`"
        )
    if it.step is None:
        return skipped(f"the first step is {first}, and nobody knows which step was resumed from", "give it: --step N")
    if it.step < first <= it.step + _spacing(it):
        return passed(f"the first step after step {it.step} is {first}")
    began = " (it began anew)" if first <= 1 else ""
    return failed(
        f"the first step is {first}{began}, it should be {it.step + 1}",
        "stop it before it writes over what there is; `ckptsync preflight` says what it would start from",
    )


def _spacing(it: Resumption) -> int:
    """Some trainers log every tenth step; then that is what can come first."""
    steps = [logged.step for logged in it.before][-_WINDOW:] or [logged.step for logged in it.start.trained]
    return max(min((b - a for a, b in pairwise(steps) if b > a), default=1), 1)


def _epoch(it: Resumption) -> Outcome:
    if it.start.epoch is not None and it.epoch is not None:
        return _equal("epoch", it.start.epoch, it.epoch)
    before, now = it.known("training/epoch"), it.now("training/epoch")
    if not before or not now:
        return skipped("the log does not tell the epoch before and after", f"{_METRICS}; {_BEFORE_REMEDY}")
    last, first = before[-1][1], now[0][1]
    if last <= first <= last + 1:
        return passed(f"epoch {first:g} after epoch {last:g}")
    return failed(
        f"epoch {first:g} follows epoch {last:g}", "the order of the data is not the old one: resume with its state"
    )


def _optimizer(it: Resumption) -> Outcome:
    if it.start.optimizer_step is None:
        return skipped(
            "the log does not tell the optimizer's step",
            "layered trainers print it with trainer.debug=True; for verl, `ckptsync preflight` looks into the step",
        )
    if it.step is None:
        return skipped(f"the optimizer is at step {it.start.optimizer_step}", "give the step resumed from: --step N")
    return _equal("optimizer step", it.start.optimizer_step, it.step)


def _dataloader(it: Resumption) -> Outcome:
    start = it.start
    if start.no_dataloader:
        return failed(
            "the state of the dataloader was not found: the order of the data begins anew",
            "`ckptsync pull` brings it to every node (verl: data.pt, which the driver reads)",
        )
    if start.offset is not None and it.offset is not None:
        return _equal("dataloader offset", start.offset, it.offset)
    if start.offset is not None:
        return warned(f"the dataloader goes on at sample {start.offset}; the step does not say where it should")
    if start.said and start.trained and not start.layered:  # verl complains where it finds none
        return passed("the log has no complaint about the state of the dataloader")
    return skipped("the log does not tell of the dataloader", "layered trainers print it with trainer.debug=True")


def _equal(what: str, now: int, then: int) -> Outcome:
    if now == then:
        return passed(f"{what} {now}, as saved")
    return failed(f"{what} {now}, saved was {then}", "stop it; the step was not restored as it was saved")


# -- what it logs


def _learning_rate(it: Resumption) -> Outcome:
    names = it.names("lr", "learning_rate")
    if not names:
        return skipped("no learning rate is logged" if it.start.trained else _NO_STEP, f"{_WAIT}; {_METRICS}")
    return _worst(_one_rate(it, name) for name in names)


def _one_rate(it: Resumption, name: str) -> Outcome:
    (step, now), before = it.now(name)[0], it.known(name)
    again = {logged.step: logged.metrics[name] for logged in it.before if name in logged.metrics}.get(step)
    if again is not None and math.isclose(now, again, rel_tol=_LR_SLACK):
        return passed(f"{name} is {now:g} at step {step}, as it was at this step before")
    if not before:
        return skipped(f"{name} before the resume is not known", _BEFORE_REMEDY)
    last_step, last = before[-1]
    rates = [abs(b - a) / (s2 - s1) for (s1, a), (s2, b) in pairwise(before)]
    allowed = 2 * max(rates, default=0.0) * max(step - last_step, 1) + _LR_SLACK * abs(last)
    if abs(now - last) <= allowed:
        return passed(f"{name} goes on: {last:g} at step {last_step}, {now:g} at step {step}")
    what = f"{name} jumps: {last:g} at step {last_step}, {now:g} at step {step}"
    if not rates:
        return warned(what, f"with one value before nobody knows the schedule: {_BEFORE_REMEDY}")
    return failed(what, "the scheduler was not restored, or its settings changed: `ckptsync preflight` compares them")


def _loss(it: Resumption) -> Outcome:
    names = it.names(*_LOSSES)
    if not names:
        return skipped("no loss is logged" if it.start.trained else _NO_STEP, f"{_WAIT}; {_METRICS}")
    score = [n for n in ("critic/score/mean",) if it.now(n)]
    outcomes = [_band(it, name) for name in names]
    outcomes += [_softened(_band(it, name)) for name in score]
    return _worst(outcomes)


def _band(it: Resumption, name: str) -> Outcome:
    """The values before, widened by their own width; beyond three widths nothing explains it but other weights."""
    now, before = it.now(name), [value for _, value in it.known(name) if math.isfinite(value)]
    if any(not math.isfinite(value) for _, value in now):
        step = next(step for step, value in now if not math.isfinite(value))
        return failed(f"{name} is not a number at step {step}", "stop it: the next save would hold what it has become")
    if len(before) < _FEW:
        return skipped(f"{name} is known for {len(before)} steps before the resume, too few", _BEFORE_REMEDY)
    low, high, value = min(before), max(before), median(value for _, value in now)
    width = max(high - low, _FLOOR * abs(median(before)), _TINY)
    beyond = max(low - value, value - high) / width
    seen = f"{low:.4g} to {high:.4g} in the {len(before)} steps before, {value:.4g} after"
    if beyond <= 1:
        return passed(f"{name}: {seen}")
    if beyond <= _AFTER:
        return warned(f"{name} has moved: {seen}", "look at it again in a few steps")
    return failed(f"{name} jumps: {seen}", "stop it; docs/troubleshooting.md, Loss jump")


def _softened(outcome: Outcome) -> Outcome:
    """Rewards of another batch may well be others."""
    return warned(outcome.message, outcome.remedy) if outcome.status == "fail" else outcome


def _rollouts(it: Resumption) -> Outcome:
    """What verl 0.9.1 logs: the least and the greatest length, score and advantage of a batch (ppo/metric_utils.py)."""
    alike = {what: _alike(it.start.trained[:_AFTER], metric) for what, metric in _ALIKE.items()}
    seen = {what: found for what, found in alike.items() if found is not None}
    if not seen:
        return skipped("nothing is logged of the rollouts" if it.start.trained else _NO_STEP, f"{_WAIT}; {_METRICS}")
    same = [what for what, found in seen.items() if found]
    if not same:
        return passed(f"responses differ in {' and '.join(seen)}")
    near = [x for x in it.before if it.step is None or it.step - _NEAR < x.step <= it.step][-_WINDOW:]
    if all(any(_alike([logged], _ALIKE[what]) for logged in near) for what in same):
        return passed(f"all responses have the same {' and '.join(same)}, as in steps before the resume")
    said = f"all responses of a step have the same {' and '.join(same)}"
    remedy = "docs/troubleshooting.md, All responses identical"
    return failed(said, f"stop it; {remedy}") if {"length", "score"} <= set(same) else warned(said, remedy)


_ALIKE = {"length": "response_length", "score": "critic/score", "advantage": "critic/advantages"}


def _alike(steps: Sequence[Logged], metric: str) -> bool | None:
    """Whether in each of the steps the least is the greatest; None = it is not logged."""
    pairs = [(x.metrics.get(f"{metric}/min"), x.metrics.get(f"{metric}/max")) for x in steps]
    known = [(low, high) for low, high in pairs if low is not None and high is not None]
    if not known:
        return None
    return all(math.isclose(low, high, rel_tol=_SAME, abs_tol=_SAME) for low, high in known)


# -- what it complains about


def _state_dict(it: Resumption) -> Outcome:
    if found := it.start.of("keys"):
        return failed(
            f"the weights did not fit: {found[0].text}",
            "the model is built otherwise than when it was saved: docs/troubleshooting.md, Missing or unexpected keys",
        )
    if found := it.start.of("fresh"):
        return warned(
            f"some weights came from no file: {found[0].text}",
            "fine for a value head that the step fills in afterwards; else docs/troubleshooting.md",
        )
    return _after_a_step(it, "no key of a state dict was missing or unexpected")


def _memory(it: Resumption) -> Outcome:
    found = it.start.of("memory")
    if not found:
        return _after_a_step(it, "memory did not run out")
    said = f"memory ran out: {found[0].text}"
    remedy = "docs/troubleshooting.md, Out of memory on resume"
    return warned(f"{said} (it trained on)", remedy) if _went_on(it, found) else failed(said, remedy)


def _went_on(it: Resumption, faults: Sequence[Fault]) -> bool:
    return len(it.start.trained) > max(fault.trained for fault in faults)


def _after_a_step(it: Resumption, message: str) -> Outcome:
    return passed(message) if it.start.trained else skipped(_NO_STEP, _WAIT)


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst one; of several that are equally bad the first. A skip says less than a pass."""
    order = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}
    return min(outcomes, key=lambda outcome: order[outcome.status])


_CHECKS: Mapping[str, Callable[[Resumption], Outcome]] = {
    "resumed": _resumed,
    "first_step": _first_step,
    "epoch": _epoch,
    "optimizer": _optimizer,
    "dataloader": _dataloader,
    "learning_rate": _learning_rate,
    "loss": _loss,
    "rollouts": _rollouts,
    "state_dict": _state_dict,
    "memory": _memory,
}
