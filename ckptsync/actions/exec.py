"""Running the trainer as a job: from the step that it resumes from to the last push (docs/exec.md)."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

from ckptsync.actions.beside import DaemonBeside
from ckptsync.actions.flush import Flush, newest_verified
from ckptsync.actions.launching import ExecOptions, Finished, Start, only_one, resumes, signal_name
from ckptsync.actions.preflight import PreflightOptions, preflight
from ckptsync.actions.probe import ProbeOptions, probe
from ckptsync.actions.recording import Recording, Started
from ckptsync.actions.resuming import From, Terminal, pulled, step_here
from ckptsync.actions.starts import NotAgain, Starts, pause_s
from ckptsync.app import Node
from ckptsync.errors import CkptsyncError, NothingToResume, PreflightError, StoreError
from ckptsync.resume.outcome import Report
from ckptsync.resume.running.child import CannotStart, Child, Ended
from ckptsync.resume.running.guard import descendants, leave_stdin
from ckptsync.resume.running.rewriting import PLACE, has_place, is_script_of_a_shell, to_resume
from ckptsync.resume.running.signals import STOPPING, Signals, Stopped

__all__ = ["Job"]

_TICK_S = 1.0
_AGAIN_S = 1.0  # a second signal so soon is the same request (`timeout` sends one to the process, one to its group)
_POLL_S = 0.2
_ENDING_S = 10.0
_SHELL = 128


class Job:
    """One `ckptsync exec`. For the main thread.

    Args:
        open_node: opens this node; each thread gets one of its own.
        options: what to run.
        terminal: where to tell it.
    """

    def __init__(self, open_node: Callable[[], Node], options: ExecOptions, terminal: Terminal) -> None:
        self._open_node, self._options, self._terminal = open_node, options, terminal
        self._say = terminal.say
        self._signals = Signals()
        self._node = open_node()
        self._node.stopped = lambda: bool(self._signals.stopped)
        self._daemon = DaemonBeside(open_node(), options.daemon or (), os.environ, self._say)
        self._began = 0
        self._recordings: list[Recording] = []
        self._starts = Starts()
        self._gone = False
        self._asked_at: float | None = None
        self._until: float | None = None

    def run(self) -> Finished:
        """Do it all.

        Raises:
            CkptsyncError: nothing was started: another job is at work here, the pull, or a check, failed.
        """
        with self._only_one():
            return self._job()

    def _only_one(self) -> AbstractContextManager[object]:
        """What is no trainer (`ray start --block`) may run beside one, and has a share of its steps."""
        return only_one(self._node) if self._options.adds else contextlib.nullcontext()

    def _job(self) -> Finished:
        with self._signals:
            try:
                code = self._run()
            except Stopped as stopped:
                what = "not started again" if self._began else "nothing was started"
                self._say(f"stopped by {signal_name(stopped.number)}: {what}")
                code = _SHELL + stopped.number
            except CannotStart as error:
                self._say(str(error))
                code = error.exit_status
            if not self._began:
                self._daemon.stop(time.monotonic() + _ENDING_S, lambda: True)
                return Finished(code)
            clean = [self._flush(), *[recording.close() for recording in self._recordings]]
            self._signals.decide()
        if not all(clean):
            _kill(descendants(os.getpid()))
        return Finished(code, hard=not all(clean))

    def probe(self) -> Report:
        """Instead of it all: pull and check as before a start, then one step out of harm's way (actions.probe).

        Raises:
            NothingToResume: there is no step from which it could be tried.
            Stopped: it was asked to end.
            CkptsyncError: another job is at work here, the pull or a check failed, or a probe is not possible.
        """
        options = self._options
        with self._only_one(), self._signals:
            resumed = self.prepare().resumed
            if resumed is None:
                raise NothingToResume("nothing to resume from", why="a probe is one step after a resume")
            asked = ProbeOptions(
                words=options.words,
                arguments=resumed.arguments,
                step=resumed.step,
                cwd=options.cwd,
                env=options.env,
                train_log=options.train_log,
            )
            report = probe(self._node, asked, self._signals, self._say)
        self._tell(report)
        return report

    def _run(self) -> int:
        start = self.prepare()
        if self._options.daemon is not None:
            self._daemon.start()
        return self._train(start)

    # -- before the command

    def prepare(self) -> Start:
        """Find the step to resume from, and check. Raises CkptsyncError; Stopped."""
        wanted = self._options.wanted
        if self._options.pull:
            return self._checked(pulled(self._node, wanted, self._terminal))
        return self._checked(step_here(self._node, wanted, self._say))

    def _checked(self, resumed: From | None) -> Start:
        options = self._options
        if not options.adds:
            start = Start(options.words, resumed)
        else:
            start = Start(to_resume(options.words, resumed.arguments if resumed else ()), resumed)
            if is_script_of_a_shell(start.words) and not has_place(options.words):
                self._say(f"a resume needs {PLACE} in this shell script, after the trainer's own arguments")
        self._say(resumes(start, self._node, adds=options.adds))
        if options.preflight:
            self._preflight(start)
        return start

    def _preflight(self, start: Start) -> None:
        options = self._options
        asked = PreflightOptions(
            words=start.words,
            train_log=options.train_log,
            python=options.python,
            launch=options.launch,
            timeout_s=options.wanted.pulling.timeout_s,
            waiting=self._terminal.waiting,
        )
        report = preflight(self._node, asked, say=self._say)
        self._tell(report)
        elsewhere = [f"{', '.join(names)} on node {node}" for node, names in report.elsewhere]
        if not report.ok:
            raise PreflightError(
                "the checks before the start failed",
                why="; ".join([", ".join(report.failures), *elsewhere]).strip("; "),
                remedy="`ckptsync preflight -- CMD...` shows all of them",
            )
        skipped = [name for name, outcome in report.checks if outcome.status == "skip"]
        self._say(f"preflight: {report.line}" + (f" ({', '.join(skipped)})" if skipped and not report.begins else ""))

    def _tell(self, report: Report) -> None:
        """What somebody should look at."""
        for name, outcome in report.checks:
            if outcome.status in {"fail", "warn"}:
                remedy = f" ({outcome.remedy})" if outcome.remedy else ""
                self._say(f"{outcome.status} {name}: {outcome.message}{remedy}")

    # -- the command

    def _train(self, start: Start) -> int:
        code = self._once(start)
        for number in range(1, self._options.restart + 1):
            if code == 0 or self._signals.stopped:
                break
            try:
                start = self._again(start, number, code)
            except NotAgain as error:
                self._say(str(error))
                break
            except CkptsyncError as error:
                self._say(f"restart {number} of {self._options.restart}: {error}")
                continue
            code = self._once(start)
        return code

    def _once(self, start: Start) -> int:
        """Run the command once; returns its exit code, minus the signal that killed it. Raises CannotStart."""
        options, signals = self._options, self._signals
        signals.queue_them()
        if signals.stopped:
            raise Stopped(signals.stopped)
        self._starts.began_ns = time.time_ns()
        node = self._open_node()
        child = Child(start.words, env=options.env, cwd=options.cwd, others=lambda: self._daemon.pids)
        self._began += 1
        if options.adds:
            self._recordings.append(Recording(node, self._started(start, child), self._say))
        last = self._began > options.restart
        if last:
            leave_stdin()
        ended = self._attend(child)
        for recording in self._recordings[-1:]:
            recording.end(ended.shell_code)
        self._end_rest(child, ended, again=not last)
        self._gone = child.alone and any(recording.is_below for recording in self._recordings[-1:])
        return ended.code

    def _started(self, start: Start, child: Child) -> Started:
        options = self._options
        return Started(
            words=start.words,
            given=options.words if has_place(options.words) else (),
            cwd=options.cwd,
            env=options.env,
            python=options.python,
            attempt=options.launch.attempt,
            step=start.resumed.step if start.resumed else None,
            commit=start.resumed.commit if start.resumed else "",
            root=child.root,
            at_ns=self._starts.began_ns,
        )

    def _attend(self, child: Child) -> Ended:
        """Pass signals on until the command has ended."""
        while child.ended is None:
            self._listen(child)
            self._daemon.watch(again=not self._signals.stopped)
        return child.ended

    def _listen(self, child: Child) -> None:
        self._signals.wait(_TICK_S, child.fileno())
        for number in self._signals.take():
            child.pass_on(number)
            if number in STOPPING:
                self._asked_at = time.monotonic()
                self._until = self._until or self._asked_at + self._options.deadline_s
        child.look()

    def _end_rest(self, child: Child, ended: Ended, *, again: bool) -> None:
        """What the command has left running stays, as without us, unless the job was to end, or begins again."""
        stopped = self._signals.stopped
        again = again and ended.code != 0 and not stopped
        if not ended.alone and (stopped or again):
            child.pass_to_rest(stopped or signal.SIGTERM)
            for_s = self._options.deadline_s / 2 if stopped else _ENDING_S
            until = min(self._until or math.inf, time.monotonic() + for_s)
            while not child.alone and time.monotonic() < until:
                self._listen(child)
        if again:
            child.kill()
        else:
            child.leave()

    # -- again

    def _again(self, start: Start, number: int, code: int) -> Start:
        """After a crash: wait, pull, and check. Raises NotAgain, CkptsyncError; Stopped."""
        options, signals = self._options, self._signals
        signals.raise_them()
        how = f"exit code {code}" if code >= 0 else signal_name(-code)
        pause = pause_s(number)
        self._say(f"the command crashed ({how}): restart {number} of {options.restart} in {pause:.0f} s")
        newest = newest_verified(self._node, lambda: False)
        before = start.resumed
        if self._starts.crashed(before.step if before else None, newest.end_ns if newest else 0) and before:
            self._say(f"step {before.step} has failed to load twice: one step back")
        time.sleep(pause)
        resumed = self._pulled_again()
        if resumed is None and before is not None:
            why = "there is nothing to resume from any more, and it would begin from the start"
            raise NotAgain("not started again", why=why)
        return self._checked(resumed)

    def _pulled_again(self) -> From | None:
        """A fresh pull; whoever did not ask for one at the start goes on without the store."""
        options, starts = self._options, self._starts
        wanted, avoid = options.wanted, starts.avoid
        if starts.progressed:  # what was asked for was about the first start
            wanted = replace(wanted, step=None, max_step=None)
        else:
            avoid = (*wanted.pulling.avoid, *avoid)
        wanted = replace(wanted, pulling=replace(wanted.pulling, avoid=avoid))
        try:
            return pulled(self._node, wanted, self._terminal)
        except StoreError as error:
            if options.pull:
                raise
            self._say(f"without a pull: {error}")
            return step_here(self._node, wanted, self._say)

    # -- after it

    def _flush(self) -> bool:
        """The last push, and the end of our daemon. Returns whether all threads have ended; if not, leave hard."""
        self._signals.queue_them()
        until = self._until = self._until or time.monotonic() + self._options.deadline_s
        flush = Flush(self._open_node(), self._say, gone=lambda: self._gone)
        flush.before_push = lambda: self._daemon.stop(until, lambda: not flush.stopping)
        flush.start()
        if why := self._why_stopped(flush):
            self._say(f"the last push was stopped: {why}; the next push goes on with it")
        clean = flush.stop()
        if flush.error and not why:
            self._say(f"the last push failed: {flush.error}")
        self._daemon.stop(until, lambda: not why)
        return clean

    def _why_stopped(self, flush: Flush) -> str:
        """Wait for it; "" = it has ended by itself."""
        assert self._until is not None, "set before"
        while flush.running:
            self._signals.wait(_POLL_S)
            now = time.monotonic()
            if now >= self._until:
                return f"--deadline, {self._options.deadline_s:g} s, is over"
            for number in self._signals.take():
                if number not in STOPPING:
                    continue
                if self._asked_at is not None and now - self._asked_at > _AGAIN_S:
                    return f"{signal_name(number)} came again"
                if self._asked_at is None:
                    self._say(f"{signal_name(number)}: the last push goes on; once more stops it")
                self._asked_at = now
        return ""


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
