"""What this node's step directories are, pass by pass: scan, settle, assess, verify. `look` reads no file's content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptsync.disk.assess import Around, Assessment, Timeline, Times, assess, look_around, seen_in, times_of
from ckptsync.disk.saves import Broken, Save, Saves
from ckptsync.disk.scan import list_step, scan
from ckptsync.disk.tracker import TrackerState, read_tracker
from ckptsync.errors import CheckpointError, StepChanged
from ckptsync.model.saves import BARRIER_SLACK_NS
from ckptsync.model.settle import Quiet, observe
from ckptsync.model.step import Listing, LocalState, Problem
from ckptsync.sync.setup import Setup

if TYPE_CHECKING:
    from ckptsync.sync.examine import Examined, Progress

__all__ = ["SAID_SETTLE_S", "LocalSteps", "StepView"]

SAID_SETTLE_S = 2.0

_DATA = (".pt", ".bin", ".safetensors")
"""Weights and states that are no rank's shard (Megatron's `common.pt`, an exported model)."""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step directory as this node sees it now.

    Attributes:
        step: number of the step.
        listing: its files.
        state: what it is.
        problems: why it is not VERIFIED.
        save: what was verified, and is still there.
        assessment: by names and times; None for what was pulled.
        previous_ns: when the run's previous save ended.
        quiet_s: for how long nothing has changed.
        warnings: of the verification that has just been made: what was passed over, without harm to the save.
    """

    step: int
    listing: Listing
    state: LocalState
    problems: tuple[Problem, ...] = ()
    save: Save | None = None
    assessment: Assessment | None = None
    previous_ns: int = 0
    quiet_s: float = 0.0
    warnings: tuple[Problem, ...] = ()

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.listing.name

    @property
    def end_ns(self) -> int:
        """When its save ended, as far as that is known; else 0."""
        if self.save is not None:
            return self.save.part.saved_ns
        return self.assessment.end_ns if self.assessment is not None else 0


class LocalSteps:
    """The steps of one output_dir. One instance lives as long as the daemon; it remembers quiet times and verdicts."""

    def __init__(self, setup: Setup, saves: Saves, broken: Broken) -> None:
        self.setup = setup
        self.saves = saves
        self.known: list[Save] = saves.load()
        self._broken = broken
        self.tracker: TrackerState | None = None
        self._whole_alone: dict[str, bool] = {}
        self._read_ns = saves.changed_ns()
        self._quiet: dict[str, Quiet] = {}
        self._said: dict[str, Listing | None] = {}
        self._times: dict[str, tuple[Listing, Times]] = {}
        self._judged: dict[str, tuple[Setup, Around, Listing, Assessment]] = {}
        self._wrote: dict[str, Mapping[tuple[str, str], int]] = {}

    def refresh(self) -> None:
        """Read again what another process (the daemon) has verified."""
        self._read_ns = self.saves.changed_ns()
        self.known = self.saves.load()
        self._broken.refresh()

    def catch_up(self) -> None:
        """`refresh`, if a pull or a push has added to it."""
        if self.saves.changed_ns() != self._read_ns:
            self.refresh()

    def said(self, name: str) -> None:
        """The trainer says that its save in the directory `name` is over: as it is at the next look, or not at all."""
        self._said[name] = None

    @property
    def spoken_of(self) -> AbstractSet[str]:
        """The directories for which what the trainer said still counts."""
        return self._said.keys()

    def settle_s(self, name: str) -> float:
        """Quiet time that a directory needs: less where the trainer has said that the save is over.

        Never less than two seconds: a change within the coarsest mtime that file systems keep leaves no trace.
        """
        return min(self.setup.settle_s, SAID_SETTLE_S) if name in self._said else self.setup.settle_s

    def _hold_to_what_was_said(self, listings: Iterable[Listing]) -> None:
        """What was said counts for the files that were there: with the first that changes, another save has begun."""
        now = {listing.name: listing for listing in listings}
        self._said = {
            name: before or now[name]
            for name, before in self._said.items()
            if name in now and (before is None or now[name].unchanged_since(before))
        }

    def look(self, now: float) -> tuple[StepView, ...]:
        """One scan; `now` is monotonic seconds. Ascending by step number."""
        self.catch_up()
        listings = scan(self.setup.output_dir, self.setup.layout)
        self._quiet = {x.name: observe(self._quiet.get(x.name), x, now) for x in listings}
        self._hold_to_what_was_said(listings)
        self.tracker = read_tracker(self.setup.output_dir, self.setup.layout)
        self._judged = {x.name: self._judged[x.name] for x in listings if x.name in self._judged}
        timeline, pulled_ns = Timeline(self._times_of(listings)), self.saves.pulled_ns()
        saves: dict[str, list[Save]] = {}
        for save in self.known:
            saves.setdefault(save.part.name, []).append(save)
        return tuple(
            self._view(listings, index, timeline, now, pulled_ns, saves.get(listing.name, ()))
            for index, listing in enumerate(listings)
        )

    def _view(
        self,
        listings: Sequence[Listing],
        index: int,
        timeline: Timeline,
        now: float,
        pulled_ns: int,
        saves: Sequence[Save],
    ) -> StepView:
        setup, listing = self.setup, listings[index]
        step = setup.layout.step_of(listing.name) or 0
        quiet_s = self._quiet[listing.name].seconds(now)
        save = next((save for save in reversed(saves) if save.still_there(listing)), None)
        if save is not None and save.commit:
            return StepView(step, listing, LocalState.VERIFIED, (), save, quiet_s=quiet_s)
        around = look_around(
            listings,
            index,
            setup.layout,
            seen=self._seen(listing.name),
            pulled_ns=pulled_ns,
            tracker=self.tracker,
            timeline=timeline,
        )
        verdict = self._judge(listing, around)
        if save is not None and tuple(f.path for f in save.part.files) == verdict.paths:
            return StepView(step, listing, LocalState.VERIFIED, (), save, verdict, quiet_s=quiet_s)
        if verdict.state is LocalState.COMPLETE:
            verdict = self._demand_closing_again(listing, verdict, around)
        state, problems = verdict.state, verdict.problems
        if state is LocalState.COMPLETE:
            found = self._broken.problems_of(listing)
            if found:
                state, problems = LocalState.BROKEN, found
            elif quiet_s < self.settle_s(listing.name):
                state = LocalState.SETTLING
        return StepView(step, listing, state, problems, None, verdict, around.previous_ns, quiet_s)

    def _times_of(self, listings: Sequence[Listing]) -> list[Times]:
        """As `times_of`; layouts read the names of unchanged files only once."""
        before, self._times = self._times, {}
        for listing in listings:
            known = before.get(listing.name)
            if known is None or known[0].files != listing.files:
                known = (listing, times_of([listing], self.setup.layout)[0])
            self._times[listing.name] = known
        return [times for _, times in self._times.values()]

    def _judge(self, listing: Listing, around: Around) -> Assessment:
        """Its assessment, the one before while nothing has changed that it follows from."""
        known = self._judged.get(listing.name)
        if known is not None and known[:2] == (self.setup, around) and known[2].files == listing.files:
            return known[3]
        verdict = assess(listing, self.setup.layout, around, window_ns=self.setup.window_ns)
        if verdict.state is LocalState.COMPLETE and self.setup.alone:
            verdict = self._demand_whole(listing, verdict, around)
        self._judged[listing.name] = (self.setup, around, listing, verdict)
        return verdict

    def _demand_whole(self, listing: Listing, verdict: Assessment, around: Around) -> Assessment:
        lacking = self.setup.layout.missing({path: listing.files[path].size for path in verdict.paths})
        if not lacking:
            return verdict
        hint = Problem("", "alone", self.setup.alone)
        return replace(verdict, state=around.incomplete, problems=(*lacking, hint))

    def _demand_closing_again(self, listing: Listing, verdict: Assessment, around: Around) -> Assessment:
        """A save that was closed and verified is over: where its data has been rewritten since, another one has begun.

        That one is over when it has written again all that closed the first. Times alone cannot tell: with async_save
        a trainer's markers come long after its closing file, and here new markers stand beside the old one.
        """
        layout, paths = self.setup.layout, verdict.paths
        before = self._last_of(listing.name)
        if before is None or not before.part.closed:
            return verdict
        changed = {p for p in paths if p in before.stats and not listing.files[p].same_bytes(before.stats[p])}
        slack = BARRIER_SLACK_NS if layout.has_barrier(paths) else self.setup.window_ns
        begun = before.part.saved_ns + slack
        closing = layout.closing(paths)
        if not any(
            listing.files[p].mtime_ns > begun and (p in closing or p.endswith(_DATA) or layout.shard(p) is not None)
            for p in changed
        ):
            return verdict
        why = "another save has begun here, and has not written this again"
        lacking = tuple(Problem(p, "late", why) for p in sorted((closing & before.stats.keys()) - changed))
        if not lacking:
            return verdict
        return replace(verdict, state=around.incomplete, problems=lacking)

    def take(
        self,
        view: StepView,
        *,
        root: str | None = None,
        stop: Callable[[], bool] = lambda: False,
        progress: Progress | None = None,
    ) -> StepView:
        """Verify a COMPLETE step; the view that follows is VERIFIED, BROKEN, or SETTLING if it moved meanwhile.

        Args:
            view: from `look`.
            root: the staged copy to read, if there is one.
            stop: true = Interrupted.
            progress: told the bytes read.
        """
        assert view.assessment is not None, "only an assessed step can be taken"
        try:
            outcome = self._examine(view, view.assessment, root, stop, progress)
        except StepChanged:
            self._quiet.pop(view.name, None)
            return replace(view, state=LocalState.SETTLING)
        warnings = outcome.warnings
        if outcome.save is None:
            self._broken.add(view.listing, outcome.problems)
            return replace(view, state=LocalState.BROKEN, problems=outcome.problems, warnings=warnings)
        self.saves.add(outcome.save)
        self.known.append(outcome.save)
        self.known.sort(key=lambda save: (save.part.saved_ns, save.name))
        return replace(view, state=LocalState.VERIFIED, problems=(), save=outcome.save, warnings=warnings)

    def _examine(
        self,
        view: StepView,
        assessment: Assessment,
        root: str | None,
        stop: Callable[[], bool],
        progress: Progress | None,
    ) -> Examined:
        from ckptsync.sync.examine import Examined, examine, lacking_alone  # noqa: PLC0415 - every format: not for `status`

        setup = self.setup
        outcome = examine(
            view.listing,
            assessment,
            setup.layout,
            setup.identity,
            level=setup.level,
            previous_ns=view.previous_ns,
            deep=setup.deep,
            root=root,
            stop=stop,
            progress=progress,
        )
        if outcome.save is not None and setup.alone:
            lacking = lacking_alone(outcome.save, setup.layout, setup.window_ns)
            if lacking:
                return Examined(None, lacking, outcome.warnings)
        return outcome

    def restat(self, save: Save) -> None:
        """Our own staging links move ctime and the link count: remember a save's files as they are, if that is all."""
        try:
            listing = list_step(os.path.join(self.setup.output_dir, save.part.name))
        except (StepChanged, CheckpointError):
            return
        if all(path in listing.files and listing.files[path].same_bytes(stat) for path, stat in save.stats.items()):
            now = replace(save, stats={path: listing.files[path] for path in save.stats})
            self.saves.add(now)
            self.known = [now if other.name == save.name else other for other in self.known]

    def restat_broken(self, view: StepView) -> StepView:
        """The same for a step that was found broken and is staged no more: it must not be read again for that."""
        try:
            listing = list_step(view.listing.path, ignored=self.setup.layout.ignored)
        except (StepChanged, CheckpointError):
            return view
        before = view.listing.files
        same = listing.files.keys() == before.keys() and all(listing.files[p].same_bytes(before[p]) for p in before)
        if view.state is not LocalState.BROKEN or not same:
            return view
        self._broken.add(listing, view.problems)
        return replace(view, listing=listing)

    def condemn(self, view: StepView, why: str) -> StepView:
        """The disk lost data of a verified step: it is broken until its files are written again."""
        problems = (Problem("", "lost", why),)
        self._broken.add(view.listing, problems)
        if view.save is not None:
            self.forget(view.save)
        return self.restat_broken(replace(view, state=LocalState.BROKEN, problems=problems, save=None))

    def whole(self, save: Save) -> bool:
        """Whether `latest` may name it: whole alone or with other nodes' parts, or vouched for by its closing file."""
        setup = self.setup
        return (
            bool(save.commit)
            or self.alone(save)
            or self.saves.mark_of(save, "whole") is not None
            or (setup.many and save.part.closed)
        )

    def alone(self, save: Save) -> bool:
        """Whether it is whole by itself: decided once, since a save never changes."""
        from ckptsync.sync.examine import lacking_alone  # noqa: PLC0415 - as above

        if save.name not in self._whole_alone:
            self._whole_alone[save.name] = not lacking_alone(save, self.setup.layout, self.setup.window_ns)
        return self._whole_alone[save.name]

    def forget(self, save: Save) -> None:
        """Drop a save whose bytes turned out to be others: its directory is verified again, if it is there."""
        self.saves.drop(save)
        self.known = [other for other in self.known if other.name != save.name]

    def forget_gone(self, views: Iterable[StepView], keep: Callable[[Save], bool]) -> None:
        """Drop saves whose directory no longer holds them, unless `keep` needs them (staged, not pushed yet).

        The last one of a directory that is being written again stays: it tells when the next one is over.
        """
        views = tuple(views)
        there = {view.save.name for view in views if view.save is not None}
        there |= {save.name for view in views if view.save is None and (save := self._last_of(view.name)) is not None}
        for save in [save for save in self.known if save.name not in there and not keep(save)]:
            # the newest tells what the next save should bring, the others what is safe, and what is due next
            if save is not self.known[-1] and save not in (self.committed(), self._newest_due()):
                self.forget(save)

    def _last_of(self, name: str) -> Save | None:
        return next((save for save in reversed(self.known) if save.part.name == name), None)

    def committed(self) -> Save | None:
        """The newest save that is in the store, as far as this node knows."""
        marked = self.saves.mark_of
        return next((s for s in reversed(self.known) if s.commit or marked(s, "commit") is not None), None)

    def _newest_due(self) -> Save | None:
        return next((save for save in reversed(self.known) if self.saves.mark_of(save, "due") is not None), None)

    def _seen(self, name: str) -> Mapping[tuple[str, str], int]:
        """What this node wrote in its newest verified save of another directory."""
        save = next((save for save in reversed(self.known) if save.part.name != name and not save.commit), None)
        if save is None:
            return {}
        if save.name not in self._wrote:
            self._wrote = {save.name: seen_in([file.path for file in save.part.files], self.setup.layout)}
        return self._wrote[save.name]
