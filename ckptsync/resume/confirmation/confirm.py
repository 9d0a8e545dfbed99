"""After the resume: does the training go on where the step left it? Pure: lines of its log in, outcomes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ckptsync.resume.confirmation.continuity import Resumption, judge
from ckptsync.resume.confirmation.newest_start import Logged, NewestStart
from ckptsync.resume.outcome import Outcome, Report

__all__ = ["Confirmation", "Confirming", "Expected", "confirm", "steps_of"]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the newest start in a log should have done.

    Attributes:
        step: resumed from; None = whatever the log says.
        epoch, offset: that the step holds (layered: `epoch` and `train_dataset_offset` of trainer_state.json); None =
            not known.
        before: steps that other logs hold of the training before, oldest first.
        steps: how many steps must be logged before there is something to judge.
    """

    step: int | None = None
    epoch: int | None = None
    offset: int | None = None
    before: Sequence[Logged] = ()
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What a log says of its newest start.

    Attributes:
        checks: (name, outcome).
        step: resumed from; None = nobody knows.
        first: the first step that was logged since; None = none yet.
        pending: too few steps were logged to judge, and nothing has failed yet but that.
    """

    checks: tuple[tuple[str, Outcome], ...]
    step: int | None
    first: int | None
    pending: bool

    @property
    def report(self) -> Report:
        """As a preflight reports."""
        return Report(self.checks)

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return self.report.ok

    def to_json(self) -> dict[str, Any]:
        """`{ok, step, first, pending, checks: [{name, status, message, remedy}]}`."""
        report = self.report.to_json()
        said = {"ok": self.ok, "step": self.step, "first": self.first, "pending": self.pending}
        return {**said, "checks": report["checks"]}

    @property
    def line(self) -> str:
        """All of it in one line, the worst first."""
        if self.pending:
            return "no step has been logged yet since the newest start"
        bad = [outcome.message for _, outcome in self.checks if outcome.status == "fail"]
        bad += [outcome.message for _, outcome in self.checks if outcome.status == "warn"]
        from_step = "" if self.step is None else f" from step {self.step}"
        if not self.ok:
            return f"the training does not go on{from_step}: {'; '.join(bad)}"
        return f"the training goes on{from_step}" + (f", but: {'; '.join(bad)}" if bad else "")


class Confirming:
    """`confirm` for a log that grows.

    Attributes:
        expected: as it was given.
        starts: how many starts there were.
        trained: how many steps the newest one has logged, 64 at most.
        troubled: it has said something that ends in no step: memory, keys, from scratch.
        alive: it has told something since `mark`: what a log holds already may be a start of yesterday.
        resumes: it says that it resumes, or there are steps of earlier ones.
    """

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self._log = NewestStart(expected.before)
        self._marked = 0

    def feed(self, lines: Iterable[str]) -> None:
        """Take further lines."""
        self._log.feed(lines)

    @property
    def starts(self) -> int:  # noqa: D102 - above
        return self._log.starts

    @property
    def trained(self) -> int:  # noqa: D102 - above
        return len(self._log.start.trained)

    @property
    def troubled(self) -> bool:  # noqa: D102 - above
        start = self._log.start
        return start.scratch or bool(start.of("keys", "memory"))

    @property
    def alive(self) -> bool:  # noqa: D102 - above
        return self._log.told > self._marked

    def mark(self) -> None:
        """All that was there has been read; from now on the log grows."""
        self._marked = self._log.told

    @property
    def resumes(self) -> bool:  # noqa: D102 - above
        start = self._log.start
        return bool((start.said and not start.scratch) or start.validated or self._log.before)

    def result(self, *, epoch: int | None = None, offset: int | None = None) -> Confirmation:
        """What they say by now. `epoch` and `offset`: of the step, where `expected` did not know which it is."""
        expected, start = self.expected, self._log.start
        step = expected.step if expected.step is not None else start.origin
        epoch = expected.epoch if expected.epoch is not None else epoch
        offset = expected.offset if expected.offset is not None else offset
        checks = judge(Resumption(step, epoch, offset, start, self._log.before, self._log.last))
        failures = {name for name, outcome in checks if outcome.status == "fail"}
        few = len(start.trained) < max(expected.steps, 1)
        waiting = failures <= {"first_step"} if not start.trained else not failures
        first = start.trained[0].step if start.trained else None
        return Confirmation(checks, step, first, pending=few and waiting)


def confirm(log: Iterable[str], expected: Expected) -> Confirmation:
    """Judge the newest start in a log.

    Args:
        log: its lines, oldest first; with the steps of earlier starts, if it has them.
        expected: what should have been resumed.
    """
    confirming = Confirming(expected)
    confirming.feed(log)
    return confirming.result()


def steps_of(log: Iterable[str]) -> list[Logged]:
    """The trained steps that a log holds, one for each number, ascending: `Expected.before`."""
    found = NewestStart()
    found.feed(log)
    return found.everything
