"""Launches: what a start of the trainer on one node used, and which of them wrote a save (docs/format.md). Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, canonical
from ckptsync.model.parse import Fields, parse_canonical
from ckptsync.model.secrets import hide, hide_text, hide_words

__all__ = [
    "GRACE_NS",
    "RECORD_BYTES_MAX",
    "LaunchRecord",
    "Span",
    "Start",
    "is_local",
    "local_attempt",
    "parse_launch",
    "read_value",
    "spell",
    "wrote",
]

RECORD_BYTES_MAX = 16 * 1024 * 1024
GRACE_NS = 90 * 10**9
"""How long a launch may have lived on after its last sign of life, which it gives each minute."""
_SLACK_NS = 5 * 10**9
"""By how much the clocks of two nodes may differ without that being known: an offset below 2 s is taken for none, a
store cuts off fractions of its seconds, and a request takes its time."""
_FORMAT = [FORMAT_MAJOR, FORMAT_MINOR]
_NONE = -1
_STEP_MAX = 10**12
_TIME_MAX = 2**63
_NAMES_MAX = 100_000
_LOCAL = "local-"


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """With what the trainer was started on one node, written down while it starts.

    Secrets never leave the process: `to_bytes` writes `***` in their place (ckptsync.model.secrets), so a record that
    was read again may differ there from the one that was put.

    Attributes:
        run, run_id, attempt, node: where it belongs.
        started_ns: store time; with the node, its identity.
        argv: the command, word by word, with the resume arguments.
        cwd: where it was started.
        settings: dotted name -> value as JSON has it.
        explicit: names that the command line itself gave.
        complete: a name that is absent from `settings` is one that the trainer does not have.
        versions: package -> version, of the trainer's interpreter.
        datasets: path -> what was found there (rows, digest of the schema, fingerprint).
        resumed_step, resumed_commit: what it resumed from; None and "" = nothing, or not committed.
    """

    run: str
    run_id: str
    attempt: str
    node: str
    started_ns: int
    argv: tuple[str, ...] = ()
    cwd: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()
    complete: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    datasets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    resumed_step: int | None = None
    resumed_commit: str = ""

    def to_bytes(self) -> bytes:
        """Canonical JSON. Values stand in it as JSON text of their own: a canonical document has no fractions."""
        return canonical(
            {
                "kind": "launch",
                "format": _FORMAT,
                "run": self.run,
                "run_id": self.run_id,
                "attempt": self.attempt,
                "node": self.node,
                "started_ns": self.started_ns,
                "argv": list(hide_words(self.argv)),
                "cwd": self.cwd,
                "settings": {name: spell(hide(name, value)) for name, value in self.settings.items()},
                "explicit": sorted(self.explicit),
                "complete": self.complete,
                "versions": dict(self.versions),
                "datasets": {hide_text(path): spell(hide("", dict(said))) for path, said in self.datasets.items()},
                "resumed_step": _NONE if self.resumed_step is None else self.resumed_step,
                "resumed_commit": self.resumed_commit,
            }
        )


def parse_launch(data: bytes, *, run: str, run_id: str, attempt: str, node: str, started_ns: int) -> LaunchRecord:
    """Read the record that was found for a launch.

    Raises:
        ManifestError: not one, of a newer major version, or of another launch.
    """
    if len(data) > RECORD_BYTES_MAX:
        _fail(f"longer than {RECORD_BYTES_MAX} bytes")
    found = Fields(parse_canonical(data, "launch"))
    place = {"run": run, "run_id": run_id, "attempt": attempt, "node": node, "started_ns": started_ns}
    if any(type(found[name]) is not type(value) or found[name] != value for name, value in place.items()):
        _fail(f"it belongs to another launch: { {name: found[name] for name in place} }")
    step = found["resumed_step"]
    if type(step) is not int or not _NONE <= step < _STEP_MAX:
        _fail(f"not a step: {step!r}")
    if type(found["complete"]) is not bool:
        _fail("complete is neither true nor false")
    return LaunchRecord(
        run,
        run_id,
        attempt,
        node,
        started_ns,
        argv=tuple(_texts(found["argv"])),
        cwd=_text(found["cwd"]),
        settings={name: read_value(text) for name, text in _object(found["settings"]).items()},
        explicit=frozenset(_texts(found["explicit"])),
        complete=found["complete"],
        versions={name: _text(text) for name, text in _object(found["versions"]).items()},
        datasets={path: _dataset(text) for path, text in _object(found["datasets"]).items()},
        resumed_step=None if step == _NONE else step,
        resumed_commit=_text(found["resumed_commit"]),
    )


def spell(value: object) -> str:
    """A value as JSON text with one spelling: fractions as Python's shortest, inf and nan as words."""
    return json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _finite(value: object) -> object:
    """As JSON has it: what is no number there becomes text, and so does everything that is no JSON at all."""
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def read_value(text: object) -> object:
    """The inverse of `spell`. Raises ManifestError for anything that it would not have written."""
    spelled = _text(text)
    try:
        value = json.loads(spelled, parse_constant=_no_number)
        again = spell(value)
    except (ValueError, RecursionError) as error:
        _fail(f"a value is not JSON: {error}")
    if again != spelled:
        _fail("a value is not in canonical spelling")
    return value


def _no_number(text: str) -> NoReturn:
    _fail(f"number {text} not allowed")


def _dataset(text: object) -> Mapping[str, object]:
    value = read_value(text)
    if not isinstance(value, dict):
        _fail("what is said of a dataset is no object")
    return value


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict) or len(value) > _NAMES_MAX:
        _fail("not an object that can be here")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > _NAMES_MAX:
        _fail("not a list that can be here")
    return [_text(item) for item in value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        _fail(f"not text: {value!r}")
    return value


def _fail(why: str) -> NoReturn:
    raise ManifestError(why)


# -- which launch wrote a save


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The life of a launch, as far as it is known. All times in store time.

    Attributes:
        started_ns: taken before the trainer started.
        node, attempt: whose it is.
        seen_ns: its last sign of life.
        ended_ns: when it ended; None = it never said so.
    """

    started_ns: int
    node: str
    attempt: str
    seen_ns: int
    ended_ns: int | None = None

    @property
    def shown_ns(self) -> int:
        """Until then it certainly lived."""
        return self.seen_ns if self.ended_ns is None else self.ended_ns

    @property
    def until_ns(self) -> int:
        """After that it certainly did not."""
        return self.seen_ns + GRACE_NS if self.ended_ns is None else self.ended_ns + _SLACK_NS


@dataclass(frozen=True, slots=True)
class Start:
    """A decision of an attempt, made at `decided_ns` (store time): its nodes start anew."""

    attempt: str
    decided_ns: int


def wrote(saved_ns: int, node: str, spans: Iterable[Span], starts: Iterable[Start] = ()) -> Span | None:
    """The launch that wrote a save; None = nobody can know. Never a guess.

    It began before the save ended, and lived then: on `node` itself, else on others that all belong to one attempt (a
    trainer over several nodes may be started on one of them). No later launch of its node, and no decision that starts
    the training anew, lies between; and nowhere did two run side by side.

    Args:
        saved_ns: when the save ended, store time.
        node: where the save lies.
        spans: the launches of all nodes, in any order.
        starts: the decisions of all attempts; without an outcome to start from, they are none.
    """
    decided = list(starts)
    by_node: dict[str, list[Span]] = {}
    for span in spans:
        if span.started_ns <= saved_ns:
            by_node.setdefault(span.node, []).append(span)
    if node in by_node and (mine := _writer(saved_ns, by_node[node], decided)) is not None:
        return mine
    if any(saved_ns <= span.until_ns for span in by_node.get(node, ())):
        return None  # something ran here, and nobody knows what
    if any(_side_by_side(saved_ns, spans) for spans in by_node.values()):
        return None  # of two on another node, either may have had ranks here
    others = [found for name in sorted(by_node) if (found := _writer(saved_ns, by_node[name], decided)) is not None]
    shared = [span for span in others if not is_local(span.attempt)]
    return shared[0] if shared and len({span.attempt for span in others}) == 1 else None


def _writer(saved_ns: int, spans: list[Span], starts: Iterable[Start]) -> Span | None:
    """Of the launches of one node that began before the save ended."""
    last = max(spans)
    if saved_ns > last.until_ns or _between(last, saved_ns, starts) or _side_by_side(saved_ns, spans):
        return None
    return last


def _side_by_side(saved_ns: int, spans: list[Span]) -> bool:
    """Whether one of a node's launches perhaps still ran then, though the last of them had begun before its end."""
    *before, last = sorted(spans)
    return any(span.shown_ns >= last.started_ns and saved_ns <= span.until_ns for span in before)


def _between(span: Span, saved_ns: int, starts: Iterable[Start]) -> bool:
    """Whether the training was started anew after the launch began. Its own attempt's start comes just before it."""
    for start in starts:
        slack_ns = _SLACK_NS if start.attempt == span.attempt else 0
        if span.started_ns + slack_ns < start.decided_ns <= saved_ns:
            return True
    return False


def local_attempt(started_ns: int) -> str:
    """The attempt of a launch that takes part in none."""
    return f"{_LOCAL}{started_ns}"


def is_local(attempt: str) -> bool:
    """Whether a launch takes part in no attempt: it says nothing of other nodes."""
    return attempt.startswith(_LOCAL)
