"""Offers and decisions: what the nodes of a round tell each other (docs/format.md). Canonical JSON, like parts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, PartId, canonical
from ckptsync.model.parse import Fields, parse_canonical, parse_part_id
from ckptsync.model.selection import NEWEST, Strategy, parse_strategy

__all__ = ["Decision", "Limits", "Offer", "Place", "parse_decision", "parse_offer"]

Outcome = Literal["commit", "nothing", "refused"]
_NONE = -1
_WHY_CHARS_MAX = 1000
_STEP_MAX = 10**12
_NODES_MAX = 10**6
_TIME_MAX = 2**63
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FORMAT = [FORMAT_MAJOR, FORMAT_MINOR]
_OFFER_MAJOR = 2
"""Of an offer with a strategy: who does not know that field would decide for another step, so he must not read on."""
_DECISION_FORMAT = [1, 1]
"""Of a decision with a strategy: what it decides is the same to a reader who does not know it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document belongs: run, its id, attempt, and the number of the round."""

    run: str
    run_id: str
    attempt: str
    number: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node accepts; the same on all nodes of a round.

    Attributes:
        step: this step and no other.
        max_step: no step above it.
        layout: a layout's name, "" = any.
        select: which of those that are left.
    """

    step: int | None = None
    max_step: int | None = None
    layout: str = ""
    select: Strategy = NEWEST

    def allow(self, step: int, layout: str) -> bool:
        """Whether a step of a layout is within the limits."""
        return (
            (self.step is None or step == self.step)
            and (self.max_step is None or step <= self.max_step)
            and self.layout in ("", layout)
        )

    def follow(self, select: Strategy) -> bool:
        """Whether what was decided by a strategy may be followed: by the same one, or this step was asked for."""
        return self.step is not None or self.select == select

    def __str__(self) -> str:
        words = [
            f"--step {self.step}" if self.step is not None else "",
            f"--max-step {self.max_step}" if self.max_step is not None else "",
            f'--select "{self.select}"' if self.select != NEWEST else "",
            f"layout {self.layout}" if self.layout else "",
        ]
        return ", ".join(word for word in words if word) or "no limits"


@dataclass(frozen=True, slots=True)
class Offer:
    """What one node says, once, in a round.

    Attributes:
        place: attempt and round.
        node, node_id: who says it.
        nodes: how many nodes it takes for this round.
        limits: what it accepts.
        scope: what it will restore of the step, for people.
        parts: (step, part) in the store whose bytes are on its disk, not committed yet as far as it knows.
        values: of those parts, as far as this node knows the metric that is asked for: their files may not be in the
            store yet.
    """

    place: Place
    node: str
    node_id: str
    nodes: int
    limits: Limits = Limits()
    scope: str = "all"
    parts: frozenset[tuple[int, PartId]] = frozenset()
    values: frozenset[tuple[PartId, float]] = frozenset()

    def to_bytes(self) -> bytes:
        """Canonical JSON; what is asked for without a strategy is said as ever."""
        limits = self.limits
        said: dict[str, object] = {
            "step": _NONE if limits.step is None else limits.step,
            "max_step": _NONE if limits.max_step is None else limits.max_step,
            "layout": limits.layout,
        }
        document = {
            **_head("offer", self.place, self.node, self.nodes),
            "node_id": self.node_id,
            "limits": said,
            "scope": self.scope,
            "parts": sorted([step, str(part)] for step, part in self.parts),
        }
        if limits.select != NEWEST:
            document["format"] = [_OFFER_MAJOR, 0]
            said["select"] = str(limits.select)
            document["values"] = {str(part): repr(value) for part, value in self.values}
        return canonical(document)


@dataclass(frozen=True, slots=True)
class Decision:
    """What all nodes of a round do.

    Attributes:
        place: attempt and round.
        node: who wrote it.
        nodes: how many nodes take part.
        outcome: restore `commit` of `step`; or there is nothing; or no agreement.
        step, commit, saved_ns: of outcome "commit": number, digest, save time (store time).
        decided_ns: store time.
        why: for people.
        select: by which strategy.
        fallback: for people: why it is not what the strategy asks for; "" = it is.
    """

    place: Place
    node: str
    nodes: int
    outcome: Outcome
    step: int = _NONE
    commit: str = ""
    saved_ns: int = 0
    decided_ns: int = 0
    why: str = field(default="", compare=False)
    select: Strategy = NEWEST
    fallback: str = field(default="", compare=False)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        document = {
            **_head("decision", self.place, self.node, self.nodes),
            "outcome": self.outcome,
            "step": self.step,
            "commit": self.commit,
            "saved_ns": self.saved_ns,
            "decided_ns": self.decided_ns,
            "why": self.why[:_WHY_CHARS_MAX],
        }
        if self.select != NEWEST:
            document["format"] = _DECISION_FORMAT
            document["select"] = str(self.select)
            document["fallback"] = self.fallback[:_WHY_CHARS_MAX]
        return canonical(document)


def parse_offer(data: bytes, place: Place, node: str) -> Offer:
    """Read an offer that was found at `place` under `node`.

    Raises:
        ManifestError: not one, of a newer major version, or of another place.
    """
    found = _read(data, "offer", place, major=_OFFER_MAJOR)
    if found["node"] != node:
        _fail("it says another node")
    limits = found["limits"]
    step, most = (_integer(limits[key], _NONE, _STEP_MAX) for key in ("step", "max_step"))
    return Offer(
        place,
        node,
        _text(found["node_id"]),
        _integer(found["nodes"], 1, _NODES_MAX),
        Limits(
            None if step == _NONE else step,
            None if most == _NONE else most,
            _text(limits["layout"]),
            _strategy(limits),
        ),
        _text(found["scope"]),
        frozenset((_integer(step, 0, _STEP_MAX), parse_part_id(_text(part))) for step, part in found["parts"]),
        frozenset((parse_part_id(part), _value(text)) for part, text in _values(found).items()),
    )


def parse_decision(data: bytes, place: Place) -> Decision:
    """Read the decision that was found at `place`.

    Raises:
        ManifestError: not one, of a newer major version, or of another place.
    """
    found = _read(data, "decision", place)
    outcome, commit = found["outcome"], _text(found["commit"])
    if outcome not in get_args(Outcome) or (outcome == "commit") != bool(_DIGEST.fullmatch(commit)):
        _fail(f"outcome {outcome!r} does not go with commit {commit!r}")
    return Decision(
        place,
        _text(found["node"]),
        _integer(found["nodes"], 1, _NODES_MAX),
        outcome,
        _integer(found["step"], 0 if outcome == "commit" else _NONE, _STEP_MAX),
        commit,
        _integer(found["saved_ns"], 0, _TIME_MAX),
        _integer(found["decided_ns"], 0, _TIME_MAX),
        _text(found["why"]),
        _strategy(found),
        _text(found.get("fallback", "")),
    )


def _head(kind: str, place: Place, node: str, nodes: int) -> dict[str, object]:
    return {
        "kind": kind,
        "format": _FORMAT,
        "run": place.run,
        "run_id": place.run_id,
        "attempt": place.attempt,
        "round": place.number,
        "node": node,
        "nodes": nodes,
    }


def _read(data: bytes, kind: str, place: Place, *, major: int = FORMAT_MAJOR) -> Mapping[str, Any]:
    found = Fields(parse_canonical(data, kind, major))
    said = Place(found["run"], found["run_id"], found["attempt"], found["round"])
    if said != place:
        _fail(f"it belongs to another place: {said}")
    if kind == "offer":
        if not isinstance(found["limits"], dict) or not isinstance(found["parts"], list):
            _fail("its limits or parts are none")
        found["limits"] = Fields(found["limits"])
        if not all(isinstance(item, list) and len(item) == len(("step", "part")) for item in found["parts"]):
            _fail("its parts are no pairs")
    return found


def _integer(value: object, low: int, below: int) -> int:
    if type(value) is not int or not low <= value < below:
        _fail(f"not a number that can be here: {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        _fail(f"not text: {value!r}")
    return value


def _strategy(found: Mapping[str, Any]) -> Strategy:
    """Documents from before there were strategies were for the newest."""
    try:
        return parse_strategy(_text(found.get("select", str(NEWEST))))
    except ManifestError:
        raise
    except ValueError as error:
        _fail(str(error))


def _values(found: Mapping[str, Any]) -> Mapping[str, object]:
    values = found.get("values", {})
    if not isinstance(values, dict):
        _fail("its values are none")
    return values


def _value(text: object) -> float:
    try:
        number = float(_text(text))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        _fail(f"not a value: {text!r}")
    return number


def _fail(why: str) -> NoReturn:
    raise ManifestError(why)
