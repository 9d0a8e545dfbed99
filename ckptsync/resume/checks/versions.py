"""`versions`: the software that resumes is the software that wrote the step.

An older torch is a failure: FSDP shards pickle classes of torch's own modules (DTensor, ShardedTensor), and PyTorch
promises only that a newer release reads what an older one wrote, not the reverse. Any other difference is a warning: it
loads or says why not, but kernels, defaults and samplers move between releases, and with them the curve.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ckptsync.resume.compare import Finding, judge, record_contents
from ckptsync.resume.contents.step_json import named, object_in
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, skipped

__all__ = ["check"]

_LOOKED_AT = ("torch", "verl", "vllm", "sglang", "transformers", "ray", "CUDA", "python")
_DECISIVE = frozenset({"torch", "verl", "transformers"})
_RELEASE = re.compile(r"[vV]?(\d{1,6})(?:\.(\d{1,6}))?")
_OWN_PYTHON = "name the trainer's own Python next time: `ckptsync exec --python PATH`"
_ASK = "name the trainer's Python with --python, or give its command after --"


def check(context: Context) -> Outcome:
    """fail: torch is older (by major or minor); warn: major or minor of another package differs, or one is missing.

    skip: no record, or the trainer's interpreter cannot be asked.
    """
    then = _recorded(context)
    if not then:
        cure = record_contents(context) if context.record is None else _OWN_PYTHON
        return skipped("the versions that wrote the step are not known", cure)
    if context.python is None:
        return skipped("the trainer's interpreter was not found, so its versions are not known", _ASK)
    now = context.python.versions()
    if not now:
        return skipped("the trainer's interpreter does not tell its versions", _ASK)
    findings = [_compared(name, then[name], now.get(name)) for name in _LOOKED_AT if name in then]
    if "torch" not in then:
        findings.append(_no_torch(context))
    return judge(findings, "as recorded")


def _no_torch(context: Context) -> Finding:
    if context.record is None:
        return Finding("skip", "the torch that wrote the step is not known", record_contents(context))
    what = "the launch was recorded with a Python that has no torch, so which torch wrote the step is not known"
    return Finding("skip", what, _OWN_PYTHON)


def _recorded(context: Context) -> Mapping[str, str]:
    """From the launch record; without one, the step's own config.json names the transformers that wrote it."""
    if context.record is not None and context.record.versions:
        return context.record.versions
    resumed = context.resumed
    paths = named(resumed, "config.json")[:1] if resumed is not None else ()
    said = (object_in(resumed, paths[0]) or {}).get("transformers_version") if resumed is not None and paths else None
    return {"transformers": said} if isinstance(said, str) and _RELEASE.match(said) else {}


def _compared(name: str, then: str, now: str | None) -> Finding:
    if now is None:
        return Finding("warn", f"{name}: {then}, and now it is not installed", f"install {name} {then}")
    before, after = _release(then), _release(now)
    if then == now:
        return Finding("pass", f"{name} {now}")
    if before is None or after is None:
        what = f"{name}: {then!r} and {now!r} cannot be compared"
        return Finding("skip", what, f"compare them yourself: install {name} {then} to be sure")
    if before == after:
        return Finding("pass", f"{name} {then}, now {now}")
    what = f"{name}: {then} wrote the step, now {now}"
    if name == "torch" and after < before:
        return Finding("fail", f"{what}, which is older: it need not read what a newer one wrote", _install(name, then))
    return Finding("warn", what, _install(name, then))


def _install(name: str, version: str) -> str:
    text = f"install {name} {version}"
    return text if name in _DECISIVE else f"{text} if results differ"


def _release(version: str) -> tuple[int, int] | None:
    match = _RELEASE.match(version)
    return (int(match[1]), int(match[2] or 0)) if match else None
