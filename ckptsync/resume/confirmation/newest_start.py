"""What a train log says of the newest start in it, and of the steps that were logged before."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptsync.model.secrets import hide_text
from ckptsync.resume.sources.train_log import Event, events, is_training, plain

__all__ = ["AFTER_MAX", "Fault", "Logged", "NewestStart", "Start"]

AFTER_MAX = 64
_BEFORE_MAX = 4096
_FAULTS_MAX = 8
_TEXT_MAX = 300
_KEPT = re.compile(
    r"(?:[\w.-]+/)*(?:lr|learning_rate|loss|pg_loss|kl_loss|vf_loss|entropy|entropy_loss)|training/epoch"
    r"|critic/(?:score|rewards|advantages)/(?:mean|min|max)|response_length/(?:mean|min|max|clip_ratio)"
    r"|response/aborted_ratio"
)
"""Metrics that are compared: verl 0.9.1 logs about a hundred of each step (trainer/ppo/metric_utils.py)."""
_PATH_STEP = re.compile(r"(?:global_step_|step_|checkpoint-|step-|iter_)0*([0-9]{1,12})/?$")

FaultKind = Literal["keys", "fresh", "memory"]
_FAULTS: tuple[tuple[FaultKind, re.Pattern[str]], ...] = (
    # torch.nn.Module.load_state_dict and torch.distributed.checkpoint (torch 2.13); lists as people print what
    # load_state_dict(strict=False) returns
    ("keys", re.compile(r"(?:Missing|Unexpected) key(?:\(s\))? in (?:checkpoint )?state_dict|size mismatch for \S+:")),
    ("keys", re.compile(r"Error\(s\) in loading state_dict")),
    ("keys", re.compile(r"(?:missing|unexpected)[_ ]keys?['\"]?\s*[=:]\s*\[\s*['\"]", re.IGNORECASE)),
    # transformers: also what a value head causes that the step fills in afterwards
    ("fresh", re.compile(r"Some weights of .* (?:were not initialized|were not used)|newly initialized")),
    # torch.OutOfMemoryError, ray (OutOfMemoryError; its memory monitor), vLLM 0.10, the kernel
    ("memory", re.compile(r"\bOutOfMemoryError\b|(?:CUDA|HIP|NPU|XPU)\b.{0,40}\bout of memory", re.IGNORECASE)),
    ("memory", re.compile(r"killed due to memory pressure|No available memory for the cache blocks")),
    (
        "memory",
        re.compile(r"Free memory on device .* less than desired GPU memory|\boom[-_]kill|Out of memory: Killed"),
    ),
)
_WORTH = re.compile(r"key|mismatch|state_dict|weights|initialized|memory|oom", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Logged:
    """A step that was trained, and those of its metrics that are compared."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that speaks of trouble.

    Attributes:
        kind: `keys` of a state dict that do not fit, `fresh` weights that came from no file, `memory` that ran out.
        text: the line.
        trained: how many steps had been logged since the start by then.
    """

    kind: FaultKind
    text: str
    trained: int


@dataclass(slots=True)
class Start:
    """The newest start in a log.

    Attributes:
        said: it says what it does at all: it resumes, or begins from nothing.
        step: that it says it resumed from; None = it names none.
        epoch, optimizer_step, offset: what it says to have restored; None = it does not say.
        validated: the step at which it validated before its first one: verl 0.9.1 does, with what it has loaded.
        layered: it is the line of a layered trainer.
        scratch: it says that it trains from nothing.
        no_dataloader: it says that the order of the data begins anew.
        trained: the steps that it logged, the first AFTER_MAX.
        recent: the last ones.
        faults: lines that speak of trouble.
    """

    said: bool = False
    step: int | None = None
    epoch: int | None = None
    optimizer_step: int | None = None
    offset: int | None = None
    validated: int | None = None
    layered: bool = False
    scratch: bool = False
    no_dataloader: bool = False
    trained: list[Logged] = field(default_factory=list)
    recent: deque[Logged] = field(default_factory=lambda: deque(maxlen=_BEFORE_MAX))
    faults: list[Fault] = field(default_factory=list)

    @property
    def origin(self) -> int | None:
        """The step that it resumed from, as far as the log tells it one way or the other; 0 = from nothing."""
        return self.step if self.said else self.validated

    def of(self, *kinds: FaultKind) -> list[Fault]:
        """The faults of these kinds."""
        return [fault for fault in self.faults if fault.kind in kinds]


class NewestStart:
    """Reads a log as it grows. All steps of earlier starts are in `before`.

    A start is recognised by what it says; by the command or configuration that it prints; or by a step number that
    goes down.

    Args:
        before: steps that other logs hold, oldest first.

    Attributes:
        start: what the newest one says.
        starts: how many there were.
        told: how often it told something: a start, a step, a fault.
    """

    def __init__(self, before: Sequence[Logged] = ()) -> None:
        self.start, self.starts, self.told = Start(), 1, 0
        self._last = ""
        self._before: dict[int, Logged] = {}
        self._keep(before)

    @property
    def last(self) -> str:
        """The last line that is not empty, as far as it can be shown."""
        return _readable(self._last)

    @property
    def before(self) -> list[Logged]:
        """Steps of earlier starts, one for each number (the one that was logged last), ascending."""
        return sorted(self._before.values(), key=lambda logged: logged.step)

    @property
    def everything(self) -> list[Logged]:
        """`before`, and what the newest start has logged in the place of that."""
        merged = {**self._before, **{logged.step: logged for logged in self.start.recent}}
        return sorted(merged.values(), key=lambda logged: logged.step)

    def feed(self, lines: Iterable[str]) -> None:
        """Go on reading."""
        for event in events(self._watched(lines)):
            self._take(event)

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        """Note faults on the way: they are no events."""
        for line in lines:
            if not line.isspace():
                self._last = line
            if _WORTH.search(line) is not None and len(self.start.faults) < _FAULTS_MAX:
                text = _readable(line)
                kind = next((kind for kind, pattern in _FAULTS if pattern.search(text)), None)
                if kind is not None:
                    self.told += 1
                    self.start.faults.append(Fault(kind, text, len(self.start.trained)))
            yield line

    def _take(self, event: Event) -> None:
        start = self.start
        if event.kind in ("command", "config"):
            if start.origin is not None or start.said or start.trained or start.faults:
                self._begin()
        elif event.kind in ("resumed", "scratch"):
            self.told += 1
            self._resumed(event)
        elif event.kind == "optimizer":
            start.optimizer_step = event.step
        elif event.kind == "offset":
            start.offset = event.count
        elif event.kind == "no-dataloader":
            start.no_dataloader = True
        elif event.kind == "step" and event.step is not None:
            metrics = {name: value for name, value in event.values.items() if isinstance(value, float)}
            if is_training(metrics):
                self.told += 1
                kept = {name: value for name, value in metrics.items() if _KEPT.fullmatch(name)}
                self._logged(Logged(event.step, kept))
            else:
                self._validated(event.step)

    def _resumed(self, event: Event) -> None:
        """The legacy trainer of verl says it in two lines, each with half of it."""
        found = _PATH_STEP.search(event.path)
        step = event.step if event.step is not None or found is None else int(found[1])
        other = self.start.step is not None and step is not None and step != self.start.step
        if self.start.trained or other or (self.start.said and self.start.scratch != (event.kind == "scratch")):
            self._begin()
        start = self.start
        start.said, start.scratch = True, event.kind == "scratch"
        start.layered |= "Resuming from step" in event.text
        start.step = step if step is not None else start.step
        start.epoch = event.epoch if event.epoch is not None else start.epoch

    def _validated(self, step: int) -> None:
        """One for a lower step can only belong to a new start; one for the same step may follow its training."""
        if self.start.recent and step < self.start.recent[-1].step:
            self._begin()
        if not self.start.recent and self.start.validated is None:
            self.told += 1
            self.start.validated = step

    def _logged(self, logged: Logged) -> None:
        if self.start.recent and logged.step < self.start.recent[-1].step:
            self._begin()
        start = self.start
        if start.recent and logged.step == start.recent[-1].step:  # a second logger, or a worker that repeats it
            whole = Logged(logged.step, {**start.recent.pop().metrics, **logged.metrics})
            if start.trained[-1].step == logged.step:
                start.trained[-1] = whole
            start.recent.append(whole)
            return
        start.recent.append(logged)
        if len(start.trained) < AFTER_MAX:
            start.trained.append(logged)

    def _begin(self) -> None:
        self._keep(self.start.recent)
        self.start = Start()
        self.starts += 1

    def _keep(self, steps: Iterable[Logged]) -> None:
        for logged in steps:
            self._before.pop(logged.step, None)
            self._before[logged.step] = logged
        while len(self._before) > _BEFORE_MAX:
            del self._before[next(iter(self._before))]


def _readable(line: str) -> str:
    """A line to show people: bounded, printable, without prefix and secrets."""
    text = hide_text(plain(line)[1].strip()[:_TEXT_MAX])
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
