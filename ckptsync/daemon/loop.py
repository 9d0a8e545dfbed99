"""The daemon: one tick is one pass over every stage, and nothing happens outside a tick but uploads."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from ckptsync.app import Node
from ckptsync.daemon.collector import Collector
from ckptsync.daemon.retention import Retention
from ckptsync.daemon.status import write_status
from ckptsync.daemon.uploader import Job, Uploader
from ckptsync.daemon.uploads import Uploads
from ckptsync.disk.lock import RunLock
from ckptsync.disk.promote import Pointer, promote
from ckptsync.disk.saves import Save
from ckptsync.disk.stage import Protection, Staged
from ckptsync.errors import CheckpointError, CkptsyncError, ConflictError, Interrupted, NoSpaceError, StepChanged
from ckptsync.layouts import registry
from ckptsync.model.due import SavePoint, due
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
_UNSETTLED = (LocalState.SETTLING, LocalState.COMPLETE)


class Daemon:
    """One node's daemon for one run.

    Args:
        node: opened.
        wake: called by the uploader after each job, to shorten the wait for the next tick.
        beat: called while something goes forward (the watchdog's proof of life).
        asked: true = asked to stop: verification ends early.

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
    ) -> None:
        self.node = node
        self._asked = asked
        self.views: tuple[StepView, ...] = ()
        self._beat = beat
        self._uploads = Uploads(node, self._root)
        self._uploader = Uploader(self._uploads.do, wake)
        self._retention = Retention(node, wake)
        self._collector = Collector(node)
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
            self._withdraw_from_nothing()
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
        old, new = self.node.pointer(before, self.node.staging, self.node.output_dir), self._pointer()
        if old is not None and (new is None or new.path != old.path) and old.obstacle() is None:
            old.withdraw()  # nobody looks after it any more

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
            if (pointer := self._pointer()) is not None:
                pointer.repair()
            self._repaired = True

    def _pass(self, local: LocalSteps) -> str | None:
        local.catch_up()
        self._unstage(local)
        running = self._uploader.current
        views = self._retention.run(local, local.look(time.monotonic()), running.save if running else None)
        self._problems += [*self._retention.problems, *self._collector.tick()]
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
        self._mark_due(local)
        for view in self.views:
            self._tell(view)
        if problem := tracker_problem(local.setup.layout, local.tracker, self.views):
            self._problems.append(problem)
        return self._point(local)

    def _take(self, local: LocalSteps, view: StepView) -> StepView:
        reason = self._due_if_verified(local, view)
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

    # -- latest

    def _pointer(self) -> Pointer | None:
        assert self.node.layout is not None, "recognised before"
        return self.node.pointer(self.node.layout, self.node.staging, self.node.output_dir)

    def _withdraw_from_nothing(self) -> None:
        """No step directory is left: `latest` names nothing then, wherever the layout of the last save has it."""
        for save in self.node.saves.load()[-1:]:
            layout = registry.load(save.part.layout)
            pointer = self.node.pointer(layout, self.node.staging, self.node.output_dir)
            if pointer is not None and pointer.obstacle() is None and pointer.current() is not None:
                pointer.withdraw()
                _log.warning("latest named a step that is gone: link removed")

    def _point(self, local: LocalSteps) -> str | None:
        """Move `latest` to the newest verified whole step, or take it back from one that no longer is."""
        pointer = self._pointer()
        if pointer is None:
            return None
        try:
            current = pointer.current()
        except CkptsyncError as error:
            self._problems.append(f"promotion is off: {error}")
            return None
        candidates = [view for view in self.views if view.save is not None and local.whole(view.save)]
        best = max(candidates, key=lambda view: view.end_ns, default=None)
        if best is not None and best.name != current:
            return best.name if self._promote(local, best, pointer) else current
        if best is None and current is not None and not self._undecided(current):
            pointer.withdraw()
            _log.warning("latest no longer names a verified step: link to %s removed", current)
            return None
        return current

    def _promote(self, local: LocalSteps, view: StepView, pointer: Pointer) -> bool:
        _ = self.node.staging.temp_dir  # made by being asked for; the pointer only knows its path
        try:
            promote(view.listing, pointer, beat=self._beat)
        except StepChanged as error:
            _log.info("latest stays: %s", error)  # the next scan sees what became of the step
            return False
        except CheckpointError as error:
            # not to be tried again: the kernel tells once that it lost the pages, and then takes them for clean
            staged = local.saves.mark_of(view.save, "staged") if view.save is not None else None
            if staged is not None:
                self.node.staging.release(staged)
            broken = local.condemn(view, str(error))
            self.views = tuple(broken if other is view else other for other in self.views)
            self._problems.append(str(error))
            return False
        _log.info("latest -> %s", view.name)
        return True

    def _undecided(self, name: str) -> bool:
        """Nothing speaks against a step that this process has not verified yet (the cache was deleted, say)."""
        view = next((view for view in self.views if view.name == name), None)
        remembered = any(save.part.name == name for save in (self.node.local.known if self.node.local else ()))
        return view is not None and view.state in _UNSETTLED and not remembered

    # -- uploads

    def _points(self, saves: Sequence[Save]) -> list[SavePoint]:
        marks = self.node.saves.mark_of
        return [SavePoint(s.part.step, s.part.saved_ns, marks(s, "due") is not None) for s in saves]

    def _due_if_verified(self, local: LocalSteps, view: StepView) -> str:
        """Why the step would be due, so that it can be staged before it is read; "" = it would not."""
        own = [save for save in local.known if not save.commit]
        points = sorted([*self._points(own), SavePoint(view.step, view.end_ns)], key=lambda p: p.end_ns)
        found = due(points, self.node.cadence, time.time_ns())
        return next(
            (reason for i, reason in found.items() if points[i].step == view.step and points[i].end_ns == view.end_ns),
            "",
        )

    def _mark_due(self, local: LocalSteps, *, stopping: bool = False) -> None:
        own = [save for save in local.known if not save.commit]
        for index, reason in due(self._points(own), self.node.cadence, time.time_ns(), stopping=stopping).items():
            if local.saves.mark_of(own[index], "due") is None:
                local.saves.mark(own[index], "due", reason)

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
        return any(view.state in _UNSETTLED for view in self.views)

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
        self._mark_due(local, stopping=True)
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
