"""`exec --probe`: one step from where the start would begin, out of harm's way, and then: did it go on?"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ckptsync.app import Node
from ckptsync.errors import UsageError
from ckptsync.resume.confirmation.confirm import Confirmation, Confirming, steps_of
from ckptsync.resume.confirmation.confirmed import expected_of, judge_log
from ckptsync.resume.confirmation.newest_start import Logged
from ckptsync.resume.confirmation.tail import Tail
from ckptsync.resume.outcome import Outcome, Report, failed, passed, warned
from ckptsync.resume.running.child import Child, Ended
from ckptsync.resume.running.rewriting import to_resume
from ckptsync.resume.running.signals import STOPPING, Signals, Stopped
from ckptsync.resume.sources.train_log import read_lines

__all__ = ["LOG", "ProbeOptions", "probe", "probe_arguments"]

LOG = "probe.log"
_TICK_S = 0.25
_ENDS_ITSELF_S = 60.0  # after the step: verl tears its workers down
_FAILS_S = 5.0  # a traceback comes after the line that tells
_TERMINATES_S = 20.0
_SCRATCH = "ckptsync-probe-"
_BENT = "learning_rate"


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What is tried.

    Attributes:
        words: the command as it was given, `{resume}` where the arguments go.
        arguments: the resume arguments.
        step: resumed from.
        cwd: where it is started.
        env: its environment.
        train_log: a log of the training before, to compare with; None = nothing to compare with.
        timeout_s: for how long it may run.
        echo: is given what the command prints; None = stdout.
        others: other children of this process, by now.
    """

    words: tuple[str, ...]
    arguments: tuple[str, ...]
    step: int
    cwd: str
    env: Mapping[str, str]
    train_log: str | None = None
    timeout_s: float = 3600.0
    echo: Callable[[str], object] | None = None
    others: Callable[[], Collection[int]] = tuple


def probe_arguments(layout: str, step: int, scratch: str) -> tuple[str, ...]:
    """What makes a start one step that leaves no trace.

    verl 0.9.1: `trainer.total_training_steps` ends the run, and `save_freq=-1` saves nothing (ppo/v1/trainer_base.py,
    sft_trainer.py); its step is printed by the logger `console`. Layered trainers end with `total_epochs`, and print
    with `debug` what they restore.

    Args:
        layout: its name.
        step: resumed from.
        scratch: an empty directory.

    Raises:
        UsageError: nobody knows how to do it with the trainer of this layout.
    """
    away = f"trainer.default_local_dir={scratch}"
    if layout == "verl":
        ends = (f"trainer.total_training_steps={step + 1}", "trainer.save_freq=-1", "trainer.test_freq=-1")
        return (*ends, away, "trainer.logger=[console]", "++trainer.val_before_train=False")
    if layout == "verl_layered":
        return ("trainer.total_epochs=1", "trainer.debug=True", away)
    raise UsageError(
        "a probe is not possible",
        where=f"layout {layout}",
        why="nobody knows how to make this trainer do one step",
        remedy="start it, and look with `ckptsync confirm --train-log FILE --follow`",
    )


def probe(node: Node, options: ProbeOptions, signals: Signals, say: Callable[[str], None]) -> Report:
    """Run one step, and judge it as `confirm` does. For the main thread; whatever the command starts has ended then.

    Args:
        node: its layout recognised.
        options: what is tried.
        signals: of this process; passed on to the command meanwhile.
        say: told what is run, and where its output is kept.

    Returns:
        The checks of `confirm`, and one called `command`: how it ended.

    Raises:
        UsageError: as `probe_arguments` and `to_resume`, or the train log is not there.
        CannotStart: there is no such command.
        Stopped: a signal asked to end, and the command has.
    """
    before = _before(options.train_log)
    layout = node.layout.name if node.layout is not None else "unknown"
    scratch = tempfile.mkdtemp(prefix=_SCRATCH)
    try:
        words = to_resume(options.words, (*options.arguments, *probe_arguments(layout, options.step, scratch)))
        running = _Probe(node, options, before, os.path.join(node.config.state_dir, LOG))
        say(f"probe: one step after step {options.step}; its output is kept in {running.log}")
        report = running.run(words, signals)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return report


def _before(path: str | None) -> list[Logged]:
    try:
        return [] if path is None else steps_of(read_lines(path))
    except FileNotFoundError:
        raise UsageError("there is no such log", where=path or "", remedy="name it with --train-log") from None


class _Probe:
    """One run of the command."""

    def __init__(self, node: Node, options: ProbeOptions, before: list[Logged], log: str) -> None:
        self.log = log
        self._node, self._options = node, options
        self._confirming = Confirming(expected_of(node, options.step, before=before))
        self._ending = False  # we have told it to end
        self._until = time.monotonic() + options.timeout_s
        self._late = False

    def run(self, words: tuple[str, ...], signals: Signals) -> Report:
        """Start it, look at what it prints, end it."""
        options = self._options
        env = {**options.env, "PYTHONUNBUFFERED": "1"}  # into a file, lines would come in blocks
        signals.queue_them()
        if signals.stopped:
            raise Stopped(signals.stopped)
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.log, 0)
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            child = Child(words, env=env, cwd=options.cwd, others=options.others, output=output)
        finally:
            os.close(output)
        tail = Tail(self.log)
        try:
            ended = self._attend(child, signals, tail)
        finally:
            child.kill()
        self._read(tail)
        self._take(tail.rest())
        signals.raise_them()
        if signals.stopped:
            raise Stopped(signals.stopped)
        return self._report(ended)

    def _attend(self, child: Child, signals: Signals, tail: Tail) -> Ended | None:
        """Until the command has ended; None = it would not end."""
        judged = False
        while child.ended is None:
            signals.wait(_TICK_S, child.fileno())
            for number in signals.take():
                child.pass_on(number)
                self._ending |= number in STOPPING
            child.look()
            self._read(tail)
            if not judged and not (found := self._confirming.result()).pending:
                more_s = _ENDS_ITSELF_S if found.first is not None else _FAILS_S
                judged, self._until = True, min(self._until, time.monotonic() + more_s)
            if time.monotonic() < self._until:
                continue
            if self._ending:
                return child.ended
            self._ending, self._late = True, not judged
            self._until = time.monotonic() + _TERMINATES_S
            child.pass_on(signal.SIGTERM)
        return child.ended

    def _read(self, tail: Tail) -> None:
        while lines := tail.read():
            self._take(lines)

    def _take(self, lines: list[str]) -> None:
        self._confirming.feed(lines)
        echo = self._options.echo or sys.stdout.write
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone
            for line in lines:
                echo(line)

    def _report(self, ended: Ended | None) -> Report:
        found = judge_log(self._node, self._confirming)
        checks = [(name, self._unbent(name, outcome)) for name, outcome in found.checks]
        return Report((("command", self._command(ended, found)), *checks))

    def _command(self, ended: Ended | None, found: Confirmation) -> Outcome:
        log = f"see {self.log}"
        if self._late:
            return failed(f"it had not logged a step after {self._options.timeout_s:g} s, and was ended", log)
        if found.first is None:
            how = "was ended" if ended is None else f"ended with exit code {ended.shell_code}"
            return failed(f"it {how} before it logged a step", log)
        if self._ending:
            return passed("it logged its step, and was ended then")
        if ended is not None and ended.code != 0:
            return warned(f"it logged its step, and ended with exit code {ended.shell_code}", log)
        return passed("it logged its step, and ended by itself")

    def _unbent(self, name: str, outcome: Outcome) -> Outcome:
        """A schedule is computed from the number of steps, of which a probe has one (verl 0.9.1: _init_dataloader)."""
        if name != _BENT or outcome.status != "fail":
            return outcome
        return warned(f"{outcome.message} (a probe's own number of steps bends a schedule)", outcome.remedy)
