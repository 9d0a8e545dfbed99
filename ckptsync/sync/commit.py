"""Making a step exist remotely. Any node may do it, a race writes equal bytes; no leader, no lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptsync.errors import ConflictError, CorruptObject, KeyMissing
from ckptsync.model.manifest import Commit
from ckptsync.model.merge import StepRules, Union, saves_of
from ckptsync.model.step import Problem
from ckptsync.store import keys
from ckptsync.sync.collect_lists import Condemned
from ckptsync.sync.remote import Remote, StepIndex

__all__ = ["Outcome", "RulesOf", "check_commit", "try_commit"]

RulesOf = Mapping[str, StepRules]
"""Layout name -> its rules: commits say which layout judged them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a try to commit a step came to: the newest whole save, or what keeps the step from being whole."""

    union: Union | None
    problems: tuple[Problem, ...] = ()

    @property
    def commit(self) -> Commit | None:
        """The commit that now stands."""
        return self.union.commit if self.union else None


def try_commit(remote: Remote, step: int, rules: StepRules, *, window_ns: int) -> Outcome:
    """Commit every whole save that the ready parts of a step hold.

    Order: list the ready parts, put the commit, then read the condemn lists again and claim nothing that is void.

    Raises:
        ConflictError: nodes hold different bytes for one shard of one save.
        StoreError: the store failed; nothing is claimed.
    """
    index = remote.index(step)
    condemned = remote.condemned()
    known = remote.parts(step, index.parts | index.ready)
    usable = {i for i in index.ready if keys.part_key(remote.run, step, str(i)) not in condemned.listed}
    ready = [part for i, part in known.items() if i in usable]
    if not ready:
        return Outcome(None, (Problem("", "not-ready", "no part is ready yet"),))
    saves = saves_of(ready, rules, window_ns=window_ns, witnesses=known.values())
    whole = [union for union in saves if union.whole and not union.awaited]
    if not whole:
        _raise_conflict(step, saves)
        return Outcome(None, (*saves[0].problems, *saves[0].awaited) if saves else ())
    for union in whole:
        if union.commit.digest not in index.commits:
            remote.put_commit(union.commit)
    after = remote.condemned()
    for union in whole:
        names = {keys.part_key(remote.run, step, str(i)) for i in union.parts}
        names.add(keys.commit_key(remote.run, step, union.commit.digest))
        if not names & after.listed:
            return Outcome(union)
    return Outcome(None, (Problem("", "condemned", "a collection is removing this step"),))


def _raise_conflict(step: int, saves: tuple[Union, ...]) -> None:
    for union in saves:
        if union.conflicts:
            first = union.conflicts[0]
            raise ConflictError(f"step {step} cannot be committed", where=first.path, why=first.message)


def check_commit(
    remote: Remote, index: StepIndex, digest: str, rules_of: RulesOf, condemned: Condemned, *, window_ns: int
) -> tuple[Union | None, str]:
    """Whether a commit may be restored: its union, or None and the reason against it.

    All parts of the step are looked at, as the committer did: those outside the commit tell where saves begin and end.
    """
    step = index.step
    try:
        commit = remote.commit(step, digest)
    except (KeyMissing, CorruptObject) as error:
        return None, str(error)
    if remote.void(step, commit, condemned):
        return None, "a collection has condemned it"
    known = remote.parts(step, index.parts)  # never by what is remembered: parts can be deleted behind our back
    gone = [str(part) for part in commit.parts if part not in known]
    if gone:
        return None, f"its part {gone[0]} is missing or broken"
    parts = [known[part] for part in commit.parts]
    layout = parts[0].layout
    rules = rules_of.get(layout)
    if rules is None:
        return None, f"this ckptsync has no layout {layout!r}"
    for union in saves_of(parts, rules, window_ns=window_ns, witnesses=known.values()):
        if union.whole and union.commit == commit:
            return union, ""
    return None, "its parts are not whole together"
