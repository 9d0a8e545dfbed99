"""A trainer's log, line by line: what it was started with, what it resumed from, and the steps that it logged.

The lines are those of verl 0.9.1: `pprint` of the resolved configuration (trainer/main_ppo.py, main_ppo_v0.py),
`Resuming from ..., setting global step to N` (ppo/v1/trainer_base.py), `Setting global step to N` (ppo/ray_trainer.py),
`step:N - name:value - ...` (utils/logger/aggregate_logger.py), `dataset len: N` (utils/dataset/rl_dataset.py); those of
layered trainers with `trainer.debug=True`; and the command as `set -x` of a shell shows it. Ray puts
`(TaskRunner pid=123) ` before each line of a worker, in colour on a terminal.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ckptsync.disk.faults import guarded
from ckptsync.disk.read import FileSource
from ckptsync.errors import UsageError
from ckptsync.resume.settings import Known, Settings, same
from ckptsync.resume.sources.arguments import parse_arguments
from ckptsync.resume.sources.names import flatten

__all__ = ["DATASET_LEN", "Event", "events", "is_training", "parse_step_line", "plain", "read_lines", "settings_of"]

Kind = Literal[
    "command", "config", "setting", "resumed", "scratch", "optimizer", "offset", "no-dataloader", "dataset", "step"
]

DATASET_LEN = "log.train_dataset_len"
"""Not a setting of the trainer's: how many samples the first dataset had that it loaded, which is the training's."""
_LINE_BYTES_MAX = 1024 * 1024
_LOG_BYTES_MAX = 256 * 1024 * 1024
_COMMAND_CHARS_MAX = 256 * 1024  # shlex copies a word with each of its characters
_CONFIG_CHARS_MAX = 1024 * 1024
_SOURCES_MAX = 8
_ENDS_CHARS = 4096
"""Of a longer line the beginning and the end are looked through for what is said in words: a progress bar may have
written hundreds of states before it. Patterns look at each character a bounded number of times."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07")
_RAY = re.compile(r"^\((?P<source>[A-Za-z_][^()]{0,200}? pid=[0-9]+(?:, ip=[^()]{1,100})?)\) ?")
_STEP = re.compile(r"(?<![\w:/.])step:(?P<step>[0-9]{1,12})(?P<rest>(?: - [^\r\n]*)?)")
_NUMBER = re.compile(
    r"(?:np\.)?(?:[a-z]+[0-9]+\()?(?P<number>[+-]?(?:[0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+|inf|nan))\)?"
)
_VALIDATION = re.compile(r"val(?:[-_/]|\Z)|test(?:[-_/]|\Z)|timing_s/testing|timing_s/val")
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)", re.DOTALL)
_ODD_FLOAT = re.compile(r"(?<=[:\[(,] )[+-]?(?:inf|nan)(?=[,\]})])")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a log says.

    Attributes:
        kind: `command` and `config` (`values`: settings; a start), `setting` (`values`), `resumed` (`step`, `epoch`,
            `path`, as far as this line says), `scratch` (it starts from nothing), `optimizer` (`step`), `offset` and
            `dataset` (`count`: samples), `no-dataloader` (the order of the data begins anew), `step` (`step`,
            `values`: metrics).
        line: its number, from 1; of several lines the first.
        explicit: of a command: the names that it gives.
        text: the line without colours and prefix.
    """

    kind: Kind
    line: int
    step: int | None = None
    epoch: int | None = None
    count: int | None = None
    path: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()
    text: str = ""


def plain(line: str) -> tuple[str, str]:
    """(source, text) of a line: Ray's prefix ("" = none), and what follows it, without colours and its end."""
    text = _ANSI.sub("", line).rstrip("\r\n")
    found = _RAY.match(text)
    return (found["source"], text[found.end() :]) if found is not None else ("", text)


def parse_step_line(line: str) -> tuple[int, dict[str, float]] | None:
    """The step and the metrics of a line `step:N - name:value - ...`; None for any other line.

    Validation before training logs such a line, too, with the number of the step resumed from: `is_training`.
    """
    _, text = plain(line)
    found = _STEP.search(text)
    if found is None:
        return None
    pairs = (item.rpartition(":") for item in found["rest"].split(" - ")[1:])
    metrics = {name: number for name, _, value in pairs if name and (number := _number(value)) is not None}
    return int(found["step"]), metrics


def _number(text: str) -> float | None:
    text = text.strip()
    if text in ("True", "False"):
        return float(text == "True")
    found = _NUMBER.fullmatch(text)
    return float(found["number"]) if found is not None else None


def is_training(metrics: Mapping[str, float]) -> bool:
    """Whether a logged step was trained, not only validated."""
    return any(_VALIDATION.match(name) is None for name in metrics)


# -- all of a log


@dataclass(frozen=True, slots=True)
class _Pattern:
    kind: Kind
    regex: re.Pattern[str]


_PATTERNS = (
    _Pattern("resumed", re.compile(r"Resuming from step (?P<step>[0-9]{1,12})(?:, epoch (?P<epoch>[0-9]{1,9}))?")),
    _Pattern("resumed", re.compile(r"Resuming from\s+(?P<path>\S.*), setting global step to (?P<step>[0-9]{1,12})")),
    _Pattern("resumed", re.compile(r"[Ss]etting global step to (?P<step>[0-9]{1,12})")),
    _Pattern("resumed", re.compile(r"Resuming from\s+(?P<path>\S.*)")),
    _Pattern("no-dataloader", re.compile(r"No dataloader state found")),
    _Pattern("scratch", re.compile(r"Training from scratch|Resume mode is disabled, starting from scratch")),
    _Pattern("optimizer", re.compile(r"Loaded actor optimizer with step (?P<step>[0-9]{1,12})")),
    _Pattern("offset", re.compile(r"Dataloader offset set to (?P<count>[0-9]{1,15})")),
    _Pattern("dataset", re.compile(r"(?<!filter )\bdataset len: (?P<count>[0-9]{1,15})")),
    _Pattern("dataset", re.compile(r"Loaded train dataset\D*(?P<count>[0-9]{1,15})?")),
)
_SETTING = re.compile(
    r"^[^{]*?(?<![\w.])(?P<name>actor_rollout_ref\.model\.path|learning_rate|manual_seed)"
    r"(?:\s*(?:[:=(]|\bset to\b|\bto\b)\s*(?P<value>'[^']*'|\"[^\"]*\"|[^\s,;)}\]]+)|\s+(?P<number>[0-9][0-9.eE+-]*))"
)
"""Not in a dict: Transformers prints the learning rate of the moment in one."""
_WORTH = (
    *("step:", "global step", "Resum", "scratch", "ataloader", "Loaded ", "dataset len", "model.path"),
    *("learning_rate", "manual_seed", "+ "),
)


def events(lines: Iterable[str]) -> Iterator[Event]:
    """What a log says, in its order. A configuration is told where it ends.

    Args:
        lines: as they are, with colours and prefixes.
    """
    open_dicts: dict[str, _Dict] = {}
    for number, line in enumerate(lines, 1):
        worth = any(word in line for word in _WORTH)
        if not worth and not open_dicts and "{'" not in line:
            continue  # nearly all of a log
        source, text = plain(line)
        began = open_dicts.get(source)
        if began is None and text.startswith("{'") and len(open_dicts) < _SOURCES_MAX:
            began = open_dicts[source] = _Dict(number)
        if began is not None:
            if began.add(text):
                continue
            del open_dicts[source]
            if (settings := began.settings()) is not None:
                yield Event("config", began.line, values=settings)
            if began.closed:
                continue
        if worth:
            yield from _events_of(number, text)


def _events_of(number: int, text: str) -> Iterator[Event]:
    if text.startswith("+ "):
        yield from _command(number, text[2:])
        return
    if (logged := parse_step_line(text)) is not None:
        yield Event("step", number, step=logged[0], values=logged[1], text=text)
        return
    text = _ends(text)
    for pattern in _PATTERNS:
        if (found := pattern.regex.search(text)) is not None:
            said = found.groupdict()
            step, epoch, count = (int(said[key]) if said.get(key) else None for key in ("step", "epoch", "count"))
            yield Event(pattern.kind, number, step, epoch, count, (said.get("path") or "").strip(), text=text)
            return
    if (found := _SETTING.search(text)) is not None:
        value = (found["value"] or found["number"]).strip("'\"")
        yield Event("setting", number, values={found["name"]: value}, text=text)


def _ends(text: str) -> str:
    return text if len(text) <= 2 * _ENDS_CHARS else f"{text[:_ENDS_CHARS]}\n{text[-_ENDS_CHARS:]}"


def _command(number: int, text: str) -> Iterator[Event]:
    if len(text) > _COMMAND_CHARS_MAX:
        return
    try:
        words = shlex.split(text)
    except ValueError:
        return
    if not any("=" in word or word.startswith("--") for word in words) or not any("python" in w for w in words[:8]):
        return
    found = parse_arguments(words)
    values = {name: known.value for name, known in found.values.items()}
    yield Event("command", number, values=values, explicit=found.explicit, text=text)


class _Dict:
    """The lines of a dict that `pprint` wrote, until its brackets are closed."""

    def __init__(self, line: int) -> None:
        self.line, self.closed = line, False
        self._lines: list[str] = []
        self._chars = self._depth = 0

    def add(self, text: str) -> bool:
        """Take a line; False = it was the last one, or no dict can become of it any more."""
        bare = _LITERAL.sub("", text)
        if self._chars + len(text) > _CONFIG_CHARS_MAX or (self._lines and not text.startswith(" ")):
            return False
        self._lines.append(text)
        self._chars += len(text)
        self._depth += sum(map(bare.count, "{[(")) - sum(map(bare.count, ")]}"))
        self.closed = self._depth <= 0
        return not self.closed

    def settings(self) -> dict[str, object] | None:
        """By dotted names; None = it is no configuration: one has sections."""
        if not self.closed:
            return None
        try:
            found = ast.literal_eval(_ODD_FLOAT.sub(lambda match: repr(match[0]), "\n".join(self._lines)))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        if not isinstance(found, dict) or not any(isinstance(value, dict) for value in found.values()):
            return None
        return flatten(found)


def read_lines(path: str) -> Iterator[str]:
    """The lines of a log, of one longer than 256 MiB the last ones. A line longer than 1 MiB is cut off.

    Raises:
        FileNotFoundError, CkptsyncError: it is not there, or cannot be read.
    """
    with (
        guarded("cannot read the train log", path),
        FileSource(path) as source,
        open(source.fd, "rb", closefd=False) as file,
    ):
        skip = file.seek(0, 2) - _LOG_BYTES_MAX
        file.seek(max(skip, 0))
        if skip > 0:
            file.readline(_LINE_BYTES_MAX)
        whole = True
        while data := file.readline(_LINE_BYTES_MAX):
            if whole:
                yield data.decode("utf-8", "replace")
            whole = data.endswith(b"\n")


# -- the settings of the training that wrote a step


def settings_of(path: str, step: int) -> Settings:
    """The settings of the start, of those in a log, that trained a step.

    A log may be of several starts, one after the other. Where more than one logged the step, only what they agree on
    is known; where none did, nothing.

    Args:
        path: of the log.
        step: its number.

    Raises:
        UsageError: it is not there.
        CkptsyncError: it cannot be read.
    """
    try:
        starts = list(_starts(events(read_lines(path))))
    except FileNotFoundError:
        remedy = "give --train-log the log of the training that wrote the step"
        raise UsageError("there is no such log", where=path, remedy=remedy) from None
    logs = any(start.first is not None for start in starts)
    known = [start.settings(path) for start in starts if start.trained(step, logs=logs)]
    if not known:
        return Settings()
    first, *others = known
    values = {
        name: value
        for name, value in first.values.items()
        if all((other := each.get(name)) is not None and same(value.value, other.value) for each in others)
    }
    explicit = first.explicit if all(each.explicit == first.explicit for each in others) else frozenset[str]()
    complete = all(each.complete for each in known) and len(values) == len(first.values)
    return Settings(values, explicit, complete=complete)


@dataclass(slots=True)
class _Start:
    """What a log says of one start."""

    events: list[Event] = field(default_factory=list)
    first: int | None = None
    last: int | None = None
    resumed: int | None = None

    def take(self, event: Event) -> None:
        if event.kind == "step":
            if event.step is not None and is_training(_numbers(event.values)):
                self.first = event.step if self.first is None else min(self.first, event.step)
                self.last = event.step if self.last is None else max(self.last, event.step)
        elif event.kind == "resumed" and event.step is not None:
            self.resumed = event.step
        else:
            self.events.append(event)

    def trained(self, step: int, *, logs: bool) -> bool:
        """Whether it came to this step: by the steps that it logged; in a log that has none, by where it began."""
        if logs:
            return self.first is not None and self.last is not None and self.first <= step <= self.last
        return (self.resumed or 0) < step and bool(self.events)

    def settings(self, path: str) -> Settings:
        """Its configuration, else its command, else single lines; how many samples the first dataset had."""
        values = self._lines()
        explicit: frozenset[str] = frozenset()
        complete = False
        for event in self.events:
            if event.kind == "dataset" and event.count is not None:
                values.setdefault(DATASET_LEN, event.count)
        for kind in ("command", "config"):  # the better source comes later
            for event in self.events:
                if event.kind == kind:
                    values.update(event.values)
                    explicit = event.explicit or explicit
                    complete = complete or kind == "config"
        return Settings({name: Known(value, path) for name, value in values.items()}, explicit, complete)

    def _lines(self) -> dict[str, object]:
        """Of the names that have lines of their own; one whose lines differ changes as the training goes on."""
        said: dict[str, set[str]] = {}
        for event in self.events:
            for name, value in event.values.items() if event.kind == "setting" else ():
                said.setdefault(name, set()).add(str(value))
        return {name: found.pop() for name, found in said.items() if len(found) == 1}


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _starts(found: Iterable[Event]) -> Iterator[_Start]:
    """A start begins with its command, or with its configuration where no command was shown just before."""
    start = _Start()
    for event in found:
        again = event.kind == "command" or (
            event.kind in ("config", "resumed", "scratch")
            and (start.first is not None or any(each.kind == event.kind for each in start.events))
        )
        if again and (start.events or start.first is not None or start.resumed is not None):
            yield start
            start = _Start()
        start.take(event)
    yield start
