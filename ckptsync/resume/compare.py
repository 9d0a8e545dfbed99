"""Settings of the original training against those of the start: name by name, each with its source and its cure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, Status, passed
from ckptsync.resume.settings import Known, same
from ckptsync.resume.sources.command import runs_script

__all__ = [
    "Finding",
    "Pair",
    "argument",
    "judge",
    "judged",
    "not_known",
    "override",
    "pair",
    "pairs",
    "record_contents",
    "record_it",
    "restore",
    "say_it",
    "shown",
]

_NO_STEP = "see the check `tracker`"
"""Where no step is resumed from, there is nothing to compare with."""
_SHOWN_CHARS_MAX = 120
_NAMES_MAX = 12
_PLAIN = re.compile(r"[A-Za-z0-9_./+@-][A-Za-z0-9_./+@:-]*")
_OTHER = re.compile(r"(?i)null|true|false|nan|[+-]?inf|[+-]?[0-9][0-9_]*\.?[0-9_]*(?:e[+-]?[0-9]+)?|[+-]?\.[0-9]+.*")
"""Text that Hydra would take for something else."""
_NO_QUOTES = re.compile(r"[A-Za-z0-9_./+@:=,%-]*")


Relation = Literal["same", "changed", "dropped", "new", "unknown", "absent"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check concludes from one pair, or from something else that it saw.

    Attributes:
        status: pass, warn, fail; skip = it should be known, and is not.
        message: a clause.
        remedy: what to do about it.
        sources: where its values were read, which is told once for all findings of a check that have the same.
    """

    status: Status
    message: str
    remedy: str = ""
    sources: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """One setting on both sides.

    Attributes:
        name: dotted.
        then, now: what is known of it; None = nothing.
        relation: same; changed; dropped = it was given then, and what the start will use instead is not known; new =
            the original's trainer did not have it; unknown = one side is, or nobody can resolve it; absent = nobody
            names it.
        explicit: the start's own arguments give it.
        unknown: what to say where a side is not known, and how it becomes known.
        unresolved: a side names it, and has no value that anybody here could tell.
    """

    name: str
    then: Known | None
    now: Known | None
    relation: Relation
    explicit: bool
    unknown: Finding
    unresolved: bool = False

    def __str__(self) -> str:
        if self.relation == "same" and self.then is not None:
            return f"{self.name}={shown(self.then.value)}"
        return f"{self.name}: {_value(self.then)}, now {_value(self.now)}"

    @property
    def sources(self) -> str:
        """Where both values were read."""
        sides = (("then", self.then), ("now", self.now))
        return "; ".join(f"{when}: {known.source}" for when, known in sides if known is not None)


def pair(context: Context, name: str) -> Pair:
    """`name` in the settings then and now."""
    then, now = context.then.get(name), context.now.get(name)
    unknown = not_known(context, name, [name], then=then is None, now=now is None)
    unresolved = context.then.is_unresolved(name) or context.now.is_unresolved(name)
    relation = _relation(context, name, then, now)
    return Pair(name, then, now, relation, name in context.now.explicit, unknown, unresolved)


def not_known(context: Context, what: str, names: Sequence[str], *, then: bool, now: bool) -> Finding:
    """A skip: `what`, which one of the settings `names` tells, is not known for the original, the start, or both."""
    sides = ["the original"] * then + ["the start"] * now
    asked = [context.then] * then + [context.now] * now
    unresolved = [name for name in names if any(settings.is_unresolved(name) for settings in asked)]
    it = "it" if unresolved == [what] else ", ".join(unresolved)
    why = f", since Hydra could not resolve {it}" if unresolved else ""
    cures = [record_it(context)] * then + [say_it(context, *names)] * now
    return Finding("skip", f"{what} is not known for {' and '.join(sides)}{why}", "; ".join(cures))


def pairs(context: Context, names: Iterable[str]) -> tuple[Pair, ...]:
    """The same for each of `names`, without those that nobody names."""
    return tuple(each for name in names if (each := pair(context, name)).relation != "absent")


def _relation(context: Context, name: str, then: Known | None, now: Known | None) -> Relation:
    if then is None and now is None:
        return "unknown" if context.then.is_unresolved(name) or context.now.is_unresolved(name) else "absent"
    if then is not None and now is not None:
        return "same" if same(then.value, now.value) else "changed"
    if then is None:
        return "new" if context.then.complete else "unknown"
    if context.now.complete:
        return "changed"  # the trainer will not have it
    told = bool(context.now.values or context.now.explicit) and not runs_script(context.words)
    return "dropped" if told and name in context.then.explicit - context.now.explicit else "unknown"


def argument(name: str, value: object) -> str:
    """The word that gives `name` this value on Hydra's command line."""
    return f"{name}={_hydra(value)}"


def override(name: str, value: object) -> str:
    """The same for people: quoted for a shell where it must be."""
    text = argument(name, value)
    return text if _NO_QUOTES.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"


def _hydra(value: object) -> str:
    """Hydra's override grammar: lists and dicts in brackets, text in quotes where it could mean something else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_hydra(item)}" for name, item in value.items()) + "}"
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and not _OTHER.fullmatch(text)):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def shown(value: object) -> str:
    """A value for people, on one line and not too long."""
    text = " ".join(_hydra(value).split())
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."


def _value(known: Known | None) -> str:
    return "not set" if known is None else shown(known.value)


def _side(known: Known | None) -> str:
    return _value(known) if known is None else f"{_value(known)} ({known.source})"


def restore(each: Pair) -> str:
    """What to add to the start so that it uses the original's value."""
    if each.then is not None:
        return f"add {override(each.name, each.then.value)}"
    return f"remove {each.name}, which the original did not set"


def judged(
    each: Pair, *, changed: Literal["fail", "warn", "pass"], explicit: bool = False, needed: bool = False
) -> Finding:
    """What a pair means.

    Args:
        each: the pair.
        changed: what a change is.
        explicit: the start should name it itself: a trainer's default can move between releases.
        needed: without it the check says nothing.
    """
    if each.relation == "changed" or (each.relation == "new" and each.explicit):
        return Finding(changed, str(each), restore(each) if changed != "pass" else "", each.sources)
    if each.relation == "dropped":
        what = f"{each.name} was given as {_side(each.then)}, and the start does not give it"
        return Finding("warn" if changed != "pass" else "pass", what, restore(each))
    if each.relation == "same" and explicit and not each.explicit and each.then is not None:
        return Finding("warn", f"{each} is not named by the start, only by default", restore(each))
    hidden = ((each.explicit and each.now is None) or each.unresolved) and changed != "pass"
    if (each.relation in ("unknown", "absent") and needed) or (each.relation == "unknown" and hidden):
        return _not_known(each)
    return Finding("pass", str(each) if each.relation == "same" else "")


def _not_known(each: Pair) -> Finding:
    if each.then is None or not (each.explicit or each.unresolved):
        return each.unknown
    what = f"{each.name} was {_side(each.then)}; the start gives what only the trainer's Hydra can make a value of"
    return replace(each.unknown, message=what)


def record_it(context: Context) -> str:
    """How the original's settings become known: nobody is told to do what was done already."""
    if context.resumed is None and context.record is None:
        return _NO_STEP
    this_run = "give the original's log with --train-log"
    if context.record is None:
        return f"{this_run}; what `ckptsync exec` starts is recorded"
    why = context.then.why or "neither its arguments nor Hydra told this"
    return f"{this_run}: its launch was recorded, but {why}"


def record_contents(context: Context) -> str:
    """How what neither logs nor Hydra tell becomes known: the contents of files, the versions of packages."""
    if context.resumed is None:
        return _NO_STEP
    return "only `ckptsync exec` records it, for the steps to come"


def say_it(context: Context, *names: str) -> str:
    """How the start's settings become known: `names`, where one of them could not be resolved."""
    if not context.words:
        return "give the trainer's command after --"
    if any(context.now.is_unresolved(name) for name in names):
        return "set the variables that its ${...} refers to as the trainer will have them, or give it as plain text"
    if runs_script(context.words):
        return "what a shell script adds cannot be seen: give it as an argument after the script, or the trainer itself"
    if context.python is None:
        return "give it as an argument, or name the trainer's Python with --python, so that Hydra can be asked"
    return f"give it as an argument: Hydra could not be asked with {context.python.path}"


def judge(findings: Iterable[Finding], good: str) -> Outcome:
    """One outcome of several findings: the worst status counts, and whatever is not as it should be is told.

    How more would be known is no remedy for what failed, and left out there.

    Args:
        findings: what was found.
        good: what to say before the details where nothing is wrong.
    """
    found = list(findings)
    worse = [each for status in ("fail", "warn", "skip") for each in found if each.status == status]
    if worse:
        urgent = [each for each in worse if each.status != "skip" or worse[0].status != "fail"]
        return Outcome(worse[0].status, _joined(worse), _remedies(urgent))
    details = _joined(found)
    return passed(f"{good}: {details}" if details else good)


def _joined(findings: Collection[Finding]) -> str:
    told = {each.message: each.sources for each in findings if each.message}
    sources = {source for source in told.values() if source}
    if len(sources) > 1:
        texts = [f"{message} ({source})" if source else message for message, source in told.items()]
    else:
        texts = list(told)
    more = f"; and {len(texts) - _NAMES_MAX} more" if len(texts) > _NAMES_MAX else ""
    once = f" ({sources.pop()})" if len(sources) == 1 else ""
    return "; ".join(texts[:_NAMES_MAX]) + more + once


def _remedies(findings: Collection[Finding]) -> str:
    """Arguments to add are told as one list that can be pasted."""
    remedies = list(dict.fromkeys(each.remedy for each in findings if each.remedy))
    adds = [text.removeprefix("add ") for text in remedies if text.startswith("add ")]
    rest = [text for text in remedies if not text.startswith("add ")]
    return "; ".join([*(["add " + " ".join(adds)] if adds else []), *rest])
