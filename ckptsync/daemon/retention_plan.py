"""Retention on this node: what the disk holds, and the verdicts on it. Deletes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckptsync.app import Node
from ckptsync.disk.saves import Save
from ckptsync.disk.space import disk_of, given_back
from ckptsync.model.policies import Weight
from ckptsync.model.pressure import Limits, Shortage, Space, fits, give_way, next_save, shortage
from ckptsync.model.retention import LocalFacts, Verdict, judge_local
from ckptsync.model.step import FileStat, LocalState
from ckptsync.sync.local import LocalSteps, StepView
from ckptsync.sync.metrics import metric_files, metric_of_listing
from ckptsync.sync.notes import Note, Said, Waiting, identity
from ckptsync.sync.retain import Answer, Asked, policies_of

__all__ = ["LocalPlan", "LocalRow", "Planner", "commit_of", "digests_of"]


@dataclass(frozen=True, slots=True)
class LocalRow:
    """A step directory, or what is staged of one that is gone, and what becomes of it.

    Attributes:
        view: the directory; None if it is gone.
        save: the verified save; None if there is none.
        facts: what was judged.
        policy: what the policies alone say.
        verdict: what the disk's shortage makes of that.
    """

    view: StepView | None
    save: Save | None
    facts: LocalFacts
    policy: Verdict
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """The verdicts on everything here.

    Attributes:
        rows: ascending by step number.
        space: of the disk.
        short: what must go for the limits.
        delete: whether the configuration lets anything go.
    """

    rows: tuple[LocalRow, ...]
    space: Space
    short: Shortage
    delete: bool

    @property
    def going(self) -> tuple[LocalRow, ...]:
        """What goes: the least useful first."""
        return tuple(row for row in self.rows if not row.verdict.keep)

    @property
    def pressed(self) -> bool:
        """Whether a limit is about to be broken: then nothing waits for the store."""
        return self.short != Shortage()

    def still_short(self, freed: int) -> bool:
        """Whether a limit needs more than `freed` bytes: only that much goes before the store has answered."""
        return freed < max(self.short.free, self.short.size)

    @property
    def freed(self) -> int:
        """Bytes that come back when all of it is gone."""
        return sum(row.facts.bytes for row in self.going)

    @property
    def problems(self) -> list[str]:
        """What people should know of the disk; the same words as long as it is the same."""
        found = []
        space, coming = self.space, self.freed if self.delete else 0
        if space.next_save and not fits(space, coming):
            remedy = "free some space"
            if not self.delete and fits(space, self.freed):
                remedy = "`ckptsync retain` shows what could go; [retention.local] delete = true lets it go"
            found.append(f"the next save of about {space.next_save} bytes will not fit on the disk ({remedy})")
        if self.delete and self.freed < self.short.free:
            found.append("min_free cannot be kept: everything else here is protected")
        return found + [
            f"step {row.facts.step} stays: the store no longer holds its commit undamaged "
            f"(`ckptsync push --step {row.facts.step}` puts it there again)"
            for row in self.rows
            if row.facts.lost and row.verdict.keep and row.verdict.weight is Weight.UNSENT
        ]


def commit_of(node: Node, save: Save) -> str:
    """The digest of the commit that a local save is in, as far as this node knows; "" = none."""
    return save.commit or node.saves.mark_of(save, "commit") or ""


class Planner:
    """Judges what is on this node's disk. Keeps what is costly to find out again.

    Args:
        node: opened, and its layout recognised.
        measure: find out what each deletion gives back, also where nothing could ever go.
    """

    def __init__(self, node: Node, *, measure: bool = False) -> None:
        table = node.config.retention.local
        self._node, self._measure = node, measure
        self.policies = policies_of(table)
        self.limits = Limits(table.min_free, table.max_size)
        self.delete = table.delete
        self.metric = table.keep_best.metric if table.keep_best else ""
        self.waiting = Waiting(node.config.state_dir)
        self._sizes: dict[str, tuple[Mapping[str, FileStat], tuple[str, ...], int]] = {}
        self._values: dict[str, float | None] = {}
        self._identities: dict[str, str] = {}

    @property
    def active(self) -> bool:
        """Whether anything could ever go."""
        return self.policies.named or self.limits != Limits()

    def plan(
        self,
        local: LocalSteps,
        views: Sequence[StepView],
        answer: Answer | None,
        *,
        now_ns: int,
        uploading: str = "",
        returning: int = 0,
    ) -> LocalPlan:
        """Judge everything; deletes nothing.

        Args:
            local: of the node.
            views: what is there now.
            answer: what the store said last; None = it was never asked.
            now_ns: this node's clock.
            uploading: name of the save that is being uploaded.
            returning: bytes in the trash.

        Raises:
            CkptsyncError: the disk does not answer.
        """
        facts = _Facts(self, self._node, local, answer, uploading)
        found = [*(facts.of_view(view) for view in views), *facts.of_staged(views)]
        steps = [fact for _, _, fact in found]
        sizes = [view.listing.size if view is not None else 0 for view, _, _ in found]
        policy = judge_local(steps, self.policies, now_ns)
        disk = disk_of(self._node.output_dir)
        space = Space(disk.free, disk.total, returning, sum(s.bytes for s in steps), next_save(steps, sizes))
        short = shortage(space, self.limits)
        verdicts = give_way(steps, policy, short)
        rows = [LocalRow(*three, *two) for three, two in zip(found, zip(policy, verdicts, strict=True), strict=True)]
        rows.sort(key=lambda row: (row.facts.step, row.facts.end_ns))
        return LocalPlan(tuple(rows), space, short, self.delete)

    def questions(self, plan: LocalPlan) -> Asked:
        """What the store must say before any of it is deleted."""
        commits = [(row.facts.step, commit_of(self._node, row.save)) for row in plan.rows if row.save is not None]
        unread = {commit_of(self._node, row.save) for row in plan.rows if row.save is not None and row.facts.unread}
        return Asked([(step, digest) for step, digest in commits if digest], unread)

    def note_of(self, save: Save) -> Note | None:
        """What was said of a save on this node, and waits for its commit."""
        if save.name not in self._identities:
            self._identities[save.name] = identity(save.part)
        return self.waiting.get(self._identities[save.name])

    def bytes_of(self, view: StepView, staged: str | None) -> int:
        """What deleting a step directory (and its staged links) gives back; looked at again when it changes."""
        if not (self._measure or self.active):
            return 0
        roots = (view.listing.path, *((staged,) if staged else ()))
        held = self._sizes.get(view.name)
        if held is None or held[:2] != (view.listing.files, roots):
            held = self._sizes[view.name] = (view.listing.files, roots, given_back(roots))
        return held[2]

    def value_of(self, save: Save, view: StepView | None, answer: Answer | None) -> tuple[float | None, bool]:
        """A save's metric, and whether it could not be found out."""
        note = self.note_of(save)
        if note is not None and self.metric in note.tags:
            return note.tags[self.metric], False
        commit = commit_of(self._node, save)
        said = answer.said if answer is not None else Said()
        if (tagged := said.tag_of(self.metric, digests_of(self._node, save, commit))) is not None:
            return tagged, False
        if save.name not in self._values and view is not None:
            self._values[save.name] = metric_of_listing(view.listing, self.metric, save.part.step)
        value = self._values.get(save.name)
        if value is not None or not commit or metric_files(self.metric, (file.path for file in save.part.files)):
            return value, False
        # another node may have the file: the commit tells
        values = answer.values if answer is not None else {}
        return values.get(commit), commit not in values


def digests_of(node: Node, save: Save, commit: str) -> list[str]:
    """What the store may know a save by: its commit, and its part once that has been put."""
    marks = (node.saves.mark_of(save, mark) for mark in ("put", "ready"))
    return [digest for digest in (commit, *((mark or "").rpartition("@")[2] for mark in marks)) if digest]


class _Facts:
    """Gathers the facts of one pass."""

    def __init__(self, planner: Planner, node: Node, local: LocalSteps, answer: Answer | None, uploading: str) -> None:
        self._planner, self._node, self._local = planner, node, local
        self._answer, self._uploading = answer, uploading
        self._latest, self._resumed = node.latest_name(), node.saves.pulled_step()
        self._staged = set(node.staging.staged())

    def of_view(self, view: StepView) -> tuple[StepView, Save | None, LocalFacts]:
        """A step directory."""
        save, tracker = view.save, self._local.tracker
        named = {
            "latest": view.name == self._latest,
            "tracker": tracker is not None and tracker.step == view.step,
            "resumed": view.step == self._resumed,
        }
        if save is None:
            written_ns = view.listing.newest_ns
            # of a save in place over an old one, the old one's end says nothing
            end_ns = view.end_ns or written_ns if view.state is LocalState.BROKEN else written_ns
            pin = self._pin(view.step, end_ns, ())
            size = self._planner.bytes_of(view, None)
            return view, None, LocalFacts(view.step, view.name, end_ns, view.state, size, pin=pin, **named)
        return view, save, self._verified(save, view, **named)

    def of_staged(self, views: Iterable[StepView]) -> Iterable[tuple[None, Save, LocalFacts]]:
        """What is staged of steps whose directory is gone, or holds another save."""
        there = {view.save.name for view in views if view.save is not None}
        for save in self._local.known:
            if save.name not in there and self._key(save) is not None:
                yield None, save, self._verified(save, None)

    def _verified(self, save: Save, view: StepView | None, **named: bool) -> LocalFacts:
        node, key, commit = self._node, self._key(save), commit_of(self._node, save)
        staged = node.staging.path_of(key) if key is not None else None
        planner = self._planner
        metric, unread = planner.value_of(save, view, self._answer) if planner.metric else (None, False)
        note = planner.note_of(save)
        if commit and self._answer is not None and commit == self._answer.decided:
            named["resumed"] = True
        pin = note.pin if note is not None and note.pin is not None else None
        if pin is None:
            pin = self._pin(save.part.step, save.part.saved_ns, digests_of(node, save, commit))
        return LocalFacts(
            step=save.part.step,
            save=save.name,
            end_ns=save.part.saved_ns,
            state=LocalState.VERIFIED if view is not None else LocalState.ABSENT,
            bytes=planner.bytes_of(view, staged) if view is not None else given_back([staged or ""]),
            metric=metric,
            unread=unread,
            pin=pin,
            due=node.saves.mark_of(save, "due") is not None,
            committed=bool(commit),
            collected=self._answer is not None and commit in self._answer.collected,
            lost=self._answer is not None and commit in self._answer.lost,
            staged=staged is not None,
            uploading=save.name == self._uploading,
            **named,
        )

    def _key(self, save: Save) -> str | None:
        key = self._node.saves.mark_of(save, "staged")
        return key if key in self._staged else None

    def _pin(self, step: int, end_ns: int, digests: Iterable[str]) -> str | None:
        said = self._answer.said if self._answer is not None else Said()
        return said.pin_of(digests, step, end_ns, self._node.window_ns)
