"""The daemon: one tick is one pass over every stage, and nothing happens outside a tick but uploads."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable

from ckptsync.app import Node
from ckptsync.daemon.cadence import due_if_verified, mark_due
from ckptsync.daemon.collector import Collector
from ckptsync.daemon.control import Hint, name_of
from ckptsync.daemon.latest import UNSETTLED, Latest
from ckptsync.daemon.retention import Retention
from ckptsync.daemon.status import write_status
from ckptsync.daemon.uploader import Job, Uploader
from ckptsync.daemon.uploads import Uploads
from ckptsync.disk.lock import RunLock
from ckptsync.disk.saves import Save
from ckptsync.disk.stage import Protection, Staged
from ckptsync.errors import CkptsyncError, ConflictError, Interrupted, NoSpaceError, StepChanged
from ckptsync.model.step import Listing, LocalState, Problem
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.restart import tracker_problem

__all__ = ["Daemon"]

_log = logging.getLogger("ckptsync")
_STAGED_MAX = 2
_PAUSE_S = 0.05
_REASONS = 3
_FUTURE_NS = 60 * 10**9
_PATIENCE_S = 2.0


class Daemon:
    """One node's daemon for one run.

    Args:
        node: opened.
        wake: called by the uploader after each job, to shorten the wait for the next tick.
        beat: called while something goes forward (the watchdog's proof of life).
        asked: true = asked to stop: verification ends early.
        hints: what the trainer has said since the last pass.
        resume: what is wrong with the newest resume; "" = nothing.

    Attributes:
        views: the steps as the last pass saw them.
    """

    def __init__(
        self,
        node: Node,
        *,
        wake: Callable[[], None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
        asked: Callable[[], bool] = lambda: False,
        hints: Callable[[], Iterable[Hint]] = tuple,
        resume: Callable[[], str] = str,
    ) -> None:
        self.node = node
        self._resume = resume
        self._hints = hints
        self._said: set[str] = set()
        self._asked = asked
        self.views: tuple[StepView, ...] = ()
        self._beat = beat
        self._uploads = Uploads(node, self._root)
        self._uploader = Uploader(self._uploads.do, wake)
        self._retention = Retention(node, wake)
        self._collector = Collector(node)
        self._latest = Latest(node, beat)
        node.stopped = self._uploader.stopping
        self._problems: list[str] = []
        self._told: set[str] = set()
        self._warned: set[tuple[str, Problem]] = set()
        self._repaired = False

    def start(self) -> None:
        """Start uploading in the background."""
        self._uploader.start()

    # -- one pass

    def tick(self) -> None:
        """Scan, verify, promote, offer uploads, report.

        Raises:
            ConfigError: output_dir is missing or unreadable, or this user may not do what has to be done.
            Interrupted: asked to stop while verifying.
        """
        self._problems = []
        self._recognise_again()
        local = self.node.recognise()
        if local is None:
            self._latest.withdraw_from_nothing()
            self._report(None)
            return
        lock = self._locked()
        try:
            self._repair_once()
            latest = self._pass(local)
        finally:
            lock.release()
        self._offer(local)
        self._report(latest)

    def _recognise_again(self) -> None:
        """What came first may have been no step at all (`epoch_1` with logs in it): the trainer's own count."""
        before = self.node.recognise_again()
        if before is None or self.node.layout is None:
            return
        _log.warning("the layout is %s now, not %s: by the directories that came", self.node.layout.name, before.name)
        self._latest.leave(before)

    def _locked(self) -> RunLock:
        """The run's lock; a pull may hold it for long, and waiting for it is neither deaf nor dead."""
        lock, waiting = self.node.lock(), _log.info
        while True:
            with contextlib.suppress(ConflictError):
                lock.acquire(_PATIENCE_S, waiting=waiting)
                return lock
            if self._asked():
                raise Interrupted("stopped", why="while waiting for the run's lock")
            self._beat()
            waiting = _log.debug

    def _repair_once(self) -> None:
        if not self._repaired:
            self.node.staging.repair()
            self._latest.repair()
            self._repaired = True

    def _pass(self, local: LocalSteps) -> str | None:
        local.catch_up()
        self._listen(local)
        self._unstage(local)
        running = self._uploader.current
        views = self._retention.run(local, local.look(time.monotonic()), running.save if running else None)
        self._problems += [*self._retention.problems, *self._collector.tick()]
        self._tell_what_was_said(local)
        pointed = False
        for index in sorted(range(len(views)), key=lambda i: views[i].end_ns, reverse=True):
            if views[index].state is LocalState.COMPLETE:
                views[index] = self._take(local, views[index])
                if not pointed and views[index].save is not None:
                    self.views = tuple(views)
                    self._point(local)  # a first start beside many old steps must not wait for all of them
                    views = list(self.views)
                    pointed = True
        self.views = tuple(views)
        mark_due(self.node, local)
        for view in self.views:
            self._tell(view)
        setup, now_ns = local.setup, time.time_ns()
        if problem := tracker_problem(setup.layout, local.tracker, self.views, now_ns=now_ns, settle_s=setup.settle_s):
            self._problems.append(problem)
        return self._point(local)

    def _listen(self, local: LocalSteps) -> None:
        for hint in self._hints():
            if hint.settled and (name := name_of(hint, self.node)) is not None:
                local.said(name)

    def _tell_what_was_said(self, local: LocalSteps) -> None:
        for name in local.spoken_of - self._said:
            _log.info("%s is complete, says the trainer", name)
        self._said = set(local.spoken_of)

    @property
    def soon_s(self) -> float:
        """In how many seconds a step could be taken that the trainer has said is complete; inf = there is none."""
        local = self.node.local
        waits = [
            local.settle_s(view.name) - view.quiet_s
            for view in self.views
            if local is not None and view.state is LocalState.SETTLING and view.name in local.spoken_of
        ]
        return max(min(waits, default=math.inf), _PAUSE_S)

    def _point(self, local: LocalSteps) -> str | None:
        name, self.views = self._latest.point(local, self.views)
        self._problems += self._latest.problems
        return name

    def _take(self, local: LocalSteps, view: StepView) -> StepView:
        reason = due_if_verified(self.node, local, view)
        staged = self._stage(view.listing) if reason else None
        started = time.monotonic()
        taken = local.take(
            view, root=staged.listing.path if staged else None, stop=self._asked, progress=lambda _: self._beat()
        )
        self._warn(taken)
        if taken.save is not None:
            size = taken.save.part.size
            _log.info(
                "step %d verified: %d files, %d bytes, %.1f s",
                view.step,
                len(taken.save.stats),
                size,
                time.monotonic() - started,
            )
            if reason:
                local.saves.mark(taken.save, "due", reason)
            if staged:
                local.saves.mark(taken.save, "staged", staged.key)
                if staged.protection is not Protection.LINKED:
                    local.saves.mark(taken.save, "held", staged.why)
                local.restat(taken.save)
        elif staged:
            self.node.staging.release(staged.key)
            taken = local.restat_broken(taken)
        return taken

    def _stage(self, listing: Listing) -> Staged | None:
        """Take a due step out of the trainer's reach; None while two are staged already."""
        staging = self.node.staging
        if len(staging.staged()) >= _STAGED_MAX:
            return None
        try:
            return staging.stage(listing)
        except StepChanged:
            return None  # the verification that follows finds out for itself

    def _unstage(self, local: LocalSteps) -> None:
        """Give up the links of what is in the store, and forget a save whose bytes are others now: it is taken again.

        Also those that belong to no save: a step moved while it was staged, or a process was killed before it said so.
        """
        referenced = {local.saves.mark_of(save, "staged") for save in local.known}
        for stray in set(self.node.staging.staged()) - referenced:
            self.node.staging.release(stray)
        for save in list(local.known):
            key, torn = local.saves.mark_of(save, "staged"), local.saves.mark_of(save, "torn") is not None
            sent = any(local.saves.mark_of(save, mark) is not None for mark in ("ready", "commit"))
            if key and (sent or torn):
                self.node.staging.release(key)
                local.saves.unmark(save, "staged")
                local.restat(save)
            elif key and (why := local.saves.mark_of(save, "held")):
                self._problems.append(f"step {save.part.step} is held open while it is uploaded, not linked: {why}")
            if torn:
                local.forget(save)

    # -- uploads

    def _offer(self, local: LocalSteps) -> None:
        now = time.monotonic()
        jobs = []
        for save in reversed(local.known):
            if save.commit or local.saves.mark_of(save, "commit") is not None:
                continue
            reason = local.saves.mark_of(save, "due")
            ready = local.saves.mark_of(save, "ready") is not None
            if self._uploads.again_at.get(save.name, 0.0) > now or (self._root(save) is None and not ready):
                continue
            if reason is not None:
                jobs.append(Job(save, push=True, reason=reason))
            elif self._uploads.asks(local, save):
                jobs.append(Job(save, push=False))
        self._uploader.offer(jobs)
        self._problems += [str(error) for error in self._uploader.errors()]
        running = self._uploader.current
        local.forget_gone(
            self.views, lambda save: self.node.needed(save) or (running is not None and running.save.name == save.name)
        )

    def _root(self, save: Save) -> str | None:
        """Where the bytes of a save are now: staged, or still in place."""
        staging, key = self.node.staging, self.node.saves.mark_of(save, "staged")
        if key is not None and key in staging.staged():
            return staging.path_of(key)
        view = next((view for view in self.views if view.save is not None and view.save.name == save.name), None)
        return view.listing.path if view is not None else None

    # -- reports

    def _tell(self, view: StepView) -> None:
        """A broken step, or one that has been waiting for more files than a running save explains."""
        if view.save is not None and view.save.part.saved_ns > time.time_ns() + _FUTURE_NS:
            self._problems.append(f"step {view.step} was saved in the future: newest until then (is the clock right?)")
        stuck = view.state is LocalState.GROWING and view.quiet_s >= self.node.config.watch.settle
        if stuck or view.state is LocalState.BROKEN:
            reasons = [str(problem) for problem in view.problems]
            more = f" (and {len(reasons) - _REASONS} more)" if len(reasons) > _REASONS else ""
            self._problems.append(f"step {view.step} is {view.state.value}: {'; '.join(reasons[:_REASONS])}{more}")

    def _warn(self, taken: StepView) -> None:
        """What a verification passed over, told once for as long as the step is there, however often it is taken."""
        there = {view.name for view in self.views} | {taken.name}
        self._warned = {each for each in self._warned if each[0] in there}
        for warning in taken.warnings:
            if (taken.name, warning) not in self._warned:
                self._warned.add((taken.name, warning))
                _log.warning("step %d: %s", taken.step, warning)

    def _report(self, latest: str | None) -> None:
        self._problems += filter(None, [self._resume()])
        for problem in dict.fromkeys(self._problems):
            if problem not in self._told:
                _log.warning("%s", problem)
        self._told = set(self._problems)  # what went away is told when it comes again
        try:
            write_status(self.node.config.state_dir, self.views, latest, self._problems)
        except NoSpaceError as error:  # what makes room must go on
            _log.warning("%s", error)
        self._beat()

    # -- ends

    @property
    def quiet(self) -> bool:
        """Nothing is settling, and every upload that can be done now is done."""
        return not (self._uploader.busy or self._retention.busy or self.settling)

    @property
    def settling(self) -> bool:
        """Whether a step may still become ready by itself."""
        return any(view.state in UNSETTLED for view in self.views)

    def errors(self) -> list[CkptsyncError]:
        """Uploads that failed last time."""
        return self._uploader.errors()

    def fault(self, error: CkptsyncError) -> None:
        """A pass failed: tell, and try again with the next one."""
        self._problems = list(dict.fromkeys([*self._problems, str(error)]))
        self._report(None)

    def flush(self, timeout_s: float) -> None:
        """The daemon stops: the newest verified step is due, and uploads have until `timeout_s` from now."""
        local = self.node.local
        if local is None:
            return
        deadline = time.monotonic() + timeout_s
        mark_due(self.node, local, stopping=True)
        self._uploads.again_at.clear()  # now or never
        self._offer(local)
        while self._uploader.busy and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            self._beat()

    def end(self, timeout_s: float) -> bool:
        """End the uploader; an upload in flight is abandoned, and goes on at the next start.

        Returns:
            Whether its threads have ended; if not, they may be killed at any moment.
        """
        ended = self._uploader.stop(timeout_s)
        if not ended:
            _log.warning("an upload is abandoned; it goes on at the next start")
        return self._collector.stop(_PAUSE_S) and ended
