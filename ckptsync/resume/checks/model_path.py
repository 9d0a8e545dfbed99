"""`model_path`: the start loads the model that the original was trained from.

Trainers take architecture, tokenizer and (for the KL terms) the reference weights from `actor_rollout_ref.model.path`,
never from the step: another model there trains on without a word if only its shapes fit.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping

from ckptsync.resume.compare import Finding, judge, not_known, override, shown
from ckptsync.resume.contents.models import PATH_NAMES, architecture, is_hub_id, model_path, tokenizer
from ckptsync.resume.contents.step_json import named
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome

__all__ = ["check"]


def check(context: Context) -> Outcome:
    """fail: another path, or a model that differs from the original's.

    warn: another path to what looks like the same, or nothing is there.

    skip: the path is not known, for the original or for the start.
    """
    then, now = model_path(context.then), model_path(context.now)
    found = [*_content(context, then, now)] if now is not None else []
    return judge([_paths(context, then, now, found), *found], "the original's model")


def _paths(context: Context, then: str | None, now: str | None, found: list[Finding]) -> Finding:
    """The two paths; `found` is what comparing contents said."""
    if then is None or now is None:
        return not_known(context, "the model's path", PATH_NAMES, then=then is None, now=now is None)
    there = context.record.cwd if context.record is not None else context.cwd
    if _same_place(then, there, now, context.cwd):
        return Finding("pass", now)
    name = next((name for name in PATH_NAMES if context.then.get(name) is not None), PATH_NAMES[0])
    what = f"the original had {shown(then)}{_kind(then, there)}, the start has {shown(now)}{_kind(now, context.cwd)}"
    remedy = f"add {override(name, then)}"
    if found and all(each.status == "pass" for each in found):
        return Finding("warn", f"{what}: it looks the same, but weights were not compared", remedy)
    return Finding("fail", what, remedy)


def _same_place(then: str, there: str, now: str, here: str) -> bool:
    if then.rstrip("/") == now.rstrip("/"):
        return True
    if is_hub_id(then, there) or is_hub_id(now, here):
        return False
    return os.path.realpath(_here(then, there)) == os.path.realpath(_here(now, here))


def _here(path: str, cwd: str) -> str:
    return os.path.join(cwd, os.path.expanduser(path))


def _kind(path: str, cwd: str) -> str:
    return " (a name on a hub)" if is_hub_id(path, cwd) else " (a directory)"


def _content(context: Context, then: str | None, now: str) -> Iterator[Finding]:
    """The start's directory against what the record and the step tell of the original's model."""
    directory = _here(now, context.cwd)
    if not os.path.isdir(directory):
        run = context.node.config.run
        if not is_hub_id(now, context.cwd) and "://" not in now and run.trainer_dir == run.output_dir:
            yield Finding("warn", f"{now} is not a directory on this host", "bring it here, or correct the path")
        return
    mine = _told(directory)
    recorded = (context.record.datasets.get(then or now) if context.record is not None else None) or {}
    yield from _compared(recorded, mine, now, "the record")
    resumed = context.resumed
    if resumed is None:
        return
    for config in named(resumed, "config.json")[:1]:
        beside = os.path.join(resumed.path, posixpath.dirname(config))
        yield from _compared(_told(beside), mine, now, posixpath.dirname(config) or "the step")


def _told(directory: str) -> dict[str, Mapping[str, object]]:
    return {"architecture": architecture(directory), "tokenizer": tokenizer(directory)}


def _compared(
    original: Mapping[str, object], mine: Mapping[str, Mapping[str, object]], path: str, where: str
) -> Iterator[Finding]:
    """Field by field, those that both have."""
    for part, fields in mine.items():
        theirs = original.get(part)
        if not isinstance(theirs, Mapping):
            continue
        shared = sorted(fields.keys() & theirs.keys())
        different = [name for name in shared if fields[name] != theirs[name]]
        if different:
            told = ", ".join(f"{n}: {shown(theirs[n])}, now {shown(fields[n])}" for n in different)
            what = f"{part} of {path} differs from {where}: {told}"
            yield Finding("fail", what, "use the model that the run was started from")
        elif shared:
            yield Finding("pass", f"same {part} as {where}")
