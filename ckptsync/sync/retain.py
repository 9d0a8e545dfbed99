"""What retention needs to know of the store, and its verdicts on the commits of a run."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ckptsync.config_tables import LocalRetentionTable, RemoteRetentionTable
from ckptsync.model.lines import Turn, superseded
from ckptsync.model.merge import Union
from ckptsync.model.policies import Best, Policies
from ckptsync.model.retention import RemoteFacts, RemoteVerdicts, judge_remote
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.collect_lists import Condemned, condemned_by
from ckptsync.sync.collect_survey import Survey
from ckptsync.sync.commit import RulesOf, check_commit
from ckptsync.sync.documents import in_threads
from ckptsync.sync.history import History, marked_by_scrub
from ckptsync.sync.metrics import metric_of_commit
from ckptsync.sync.notes import Said, read_said
from ckptsync.sync.remote import Remote, StepIndex

__all__ = [
    "Answer",
    "Asked",
    "Commits",
    "Told",
    "Values",
    "ask",
    "look",
    "policies_of",
    "read_commits",
    "remote_verdicts",
]

Values = dict[str, float | None]
"""Digest of a commit -> the metric that its files tell (None = none): it never changes."""


def policies_of(table: LocalRetentionTable | RemoteRetentionTable) -> Policies:
    """The policies of a table of the configuration."""
    best = table.keep_best
    return Policies(
        table.keep_last,
        table.keep_every,
        table.keep_within,
        None if best is None else Best(best.metric, best.mode, best.count),
    )


# -- the commits of a run


@dataclass
class Commits:
    """The commits of a run with their facts, and which chunks each refers to: rows of a table, four bytes for each.

    Attributes:
        facts: in the order of their steps.
    """

    facts: list[RemoteFacts] = field(default_factory=list)
    _chunks: list[array[int]] = field(default_factory=list)
    _rows: dict[str, int] = field(default_factory=dict)

    def add(self, facts: RemoteFacts, chunks: Collection[str]) -> None:
        """One more, with the keys of the chunks that it refers to."""
        self.facts.append(facts)
        self._chunks.append(array("I", sorted(self._rows.setdefault(key, len(self._rows)) for key in chunks)))

    def bytes_of(self, remote: Remote, keep: Collection[str]) -> list[int]:
        """Stored bytes that each gives back, by one list of the chunks.

        Those not in `keep` (digests of commits) go together: a chunk counts for the first of them. For each that is
        kept: what no other commit refers to. Chunks that uncommitted parts share are not known here.

        Raises:
            StoreError: the chunks cannot be listed.
        """
        sizes = array("Q", bytes(8 * len(self._rows)))
        for meta in remote.store.list(keys.chunks_prefix(remote.run)):
            row = self._rows.get(meta.key.rpartition("/")[2])
            if row is not None:
                sizes[row] = meta.size
        users = array("I", bytes(4 * len(self._rows)))
        held = bytearray(len(self._rows))
        for facts, rows in zip(self.facts, self._chunks, strict=True):
            for row in rows:
                users[row] += 1
                held[row] |= facts.save in keep
        found = []
        for facts, rows in zip(self.facts, self._chunks, strict=True):
            if facts.save in keep:
                found.append(sum(sizes[row] for row in rows if users[row] == 1))
                continue
            found.append(sum(sizes[row] for row in rows if not held[row]))
            for row in rows:
                held[row] = True
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """What the store tells of its commits beside their content.

    Attributes:
        said: pins and tags.
        condemned: by collections.
        bad: digests of commits that are marked as bad.
        damaged: those of them that only a scrub has marked.
        turns: of the run.
        decided: digest of the commit that the nodes decided for last; "" = none.
    """

    said: Said
    condemned: Condemned
    bad: frozenset[str]
    damaged: frozenset[str]
    turns: tuple[Turn, ...]
    decided: str


def look(
    remote: Remote,
    rules_of: RulesOf,
    *,
    window_ns: int,
    metrics: Collection[str] = (),
    before: dict[ObjectMeta, bytes] | None = None,
    seen: Survey | None = None,
) -> Told:
    """Ask the store, by one list of each prefix.

    Args:
        remote: the run.
        rules_of: layout name -> its rules.
        window_ns: `commit.window`.
        metrics: names of the tags that are wanted; "" is none.
        before: see `read_said`.
        seen: what a collector has listed already.

    Raises:
        StoreError: something could not be read. Nobody may judge by half of it.
    """
    said = read_said(remote, {name for name in metrics if name}, before, None if seen is None else seen.pins)
    condemned = remote.condemned() if seen is None else condemned_by(seen.collections)
    marks = tuple(remote.store.list(keys.bad_prefix(remote.run))) if seen is None else seen.bad
    history = History(remote, rules_of, window_ns).refresh(marks)
    made = (each for each in history.decisions.values() if each.outcome == "commit")
    newest = max(made, key=lambda each: each.decided_ns, default=None)
    decided = newest.commit if newest is not None else ""
    return Told(said, condemned, history.bad, marked_by_scrub(remote, marks), history.turns, decided)


def read_commits(
    remote: Remote,
    rules_of: RulesOf,
    told: Told,
    *,
    window_ns: int,
    metric: str = "",
    values: Values | None = None,
    resumed: Collection[str] = (),
    indexes: Mapping[int, StepIndex] | None = None,
) -> Commits:
    """Read every commit of a run, and its metric. The steps are listed once, one is held at a time.

    Args:
        remote: the run.
        rules_of: layout name -> its rules.
        told: what the store tells of them; `metric` was wanted.
        window_ns: `commit.window`.
        metric: of keep_best; "" = none.
        values: what files told before; filled.
        resumed: digests of the commits that the last resumes started from.
        indexes: of each step, where the steps have been listed already.

    Raises:
        StoreError: something could not be read. Nobody may judge by half of it.
    """
    reader = _Reader(remote, rules_of, told, window_ns, metric, {} if values is None else values, resumed)
    steps = remote.index_all() if indexes is None else indexes
    found = Commits()
    for step in in_threads(reader.read, (index for index in steps.values() if index.commits)):
        for facts, chunks in step:
            found.add(facts, chunks)
    return found


class _Reader:
    """Reads the commits of one step after the other, from several threads."""

    def __init__(
        self,
        remote: Remote,
        rules_of: RulesOf,
        told: Told,
        window_ns: int,
        metric: str,
        values: Values,
        resumed: Collection[str],
    ) -> None:
        self._remote, self._rules_of, self._told, self._window_ns = remote, rules_of, told, window_ns
        self._metric, self._values, self._resumed = metric, values, {*resumed, told.decided}

    def read(self, index: StepIndex) -> list[tuple[RemoteFacts, frozenset[str]]]:
        """The facts of a step's commits, and the keys of their chunks."""
        return [self._one(index, digest) for digest in sorted(index.commits)]

    def _one(self, index: StepIndex, digest: str) -> tuple[RemoteFacts, frozenset[str]]:
        remote, told, resumed = self._remote, self._told, digest in self._resumed
        union, why = check_commit(remote, index, digest, self._rules_of, told.condemned, window_ns=self._window_ns)
        if union is None:
            void = keys.commit_key(remote.run, index.step, digest) in told.condemned.void
            written_ns = index.commits[digest] or 0
            pin = told.said.pin_of([digest], index.step, written_ns, 0)
            return RemoteFacts(
                index.step, digest, written_ns, pin=pin, resumed=resumed, void=void, unsound=why
            ), frozenset()
        digests = [digest, *(part.digest for part in union.parts)]
        facts = RemoteFacts(
            index.step,
            digest,
            union.end_ns,
            files=len(union.files),
            metric=self._value(union, digests),
            pin=told.said.pin_of(digests, index.step, union.end_ns, self._window_ns),
            resumed=resumed,
            bad=digest in told.bad,
            damaged=digest in told.damaged,
            left=superseded(union.end_ns, told.turns),
        )
        return facts, frozenset(chunk.key for part in union.parts.values() for chunk in part.chunks)

    def _value(self, union: Union, digests: Sequence[str]) -> float | None:
        value = self._told.said.tag_of(self._metric, digests)
        if value is not None or not self._metric:
            return value
        if digests[0] not in self._values:
            self._values[digests[0]] = metric_of_commit(self._remote, union, self._metric)
        return self._values[digests[0]]


def remote_verdicts(commits: Commits, policies: Policies, now_ns: int) -> RemoteVerdicts:
    """What becomes of each commit; `condemned` of model/retention.py gives those that a collection may take."""
    return judge_remote(commits.facts, policies, now_ns)


# -- what a node asks before it deletes here


@dataclass(frozen=True, slots=True)
class Asked:
    """What to ask: commits (step, digest) that local saves rely on, and of which of them the metric is wanted."""

    commits: Sequence[tuple[int, str]]
    valued: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store said.

    Attributes:
        said: pins and tags.
        there: digests of the commits that it holds undamaged, or that a collection has taken on purpose.
        collected: those of them that a collection has taken.
        lost: digests of the commits that it was asked for, and of which neither is true.
        values: see `Values`.
        decided: digest of the commit that the nodes decided for last; "" = none.
    """

    said: Said = field(default_factory=Said)
    there: frozenset[str] = frozenset()
    collected: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    values: Mapping[str, float | None] = field(default_factory=dict)
    decided: str = ""


def ask(
    remote: Remote,
    asked: Asked,
    rules_of: RulesOf,
    told: Told,
    *,
    window_ns: int,
    metric: str,
    values: Values,
    indexes: Mapping[int, StepIndex] | None = None,
) -> Answer:
    """Ask the store before anything is deleted here.

    Args:
        remote: the run.
        asked: see there.
        rules_of: layout name -> its rules.
        told: what the store tells now; `metric` was wanted.
        window_ns: `commit.window`.
        metric: of keep_best; "" = none.
        values: filled.
        indexes: of each step, where the steps have been listed already.

    Raises:
        StoreError: it does not answer; then nothing may be deleted for a policy's sake.
    """
    condemned = told.condemned

    def there(step: int, digest: str) -> bool:
        key = keys.commit_key(remote.run, step, digest)
        if digest in told.damaged:
            return False  # here may be the only bytes that can heal it
        return key in condemned.listed or remote.store.head(key) is not None

    present = frozenset(digest for step, digest in asked.commits if there(step, digest))
    for step, digest in asked.commits:
        if digest in asked.valued and digest not in values:
            index = remote.index(step) if indexes is None else indexes.get(step, StepIndex(step))
            union, _ = check_commit(remote, index, digest, rules_of, condemned, window_ns=window_ns)
            values[digest] = metric_of_commit(remote, union, metric) if union is not None else None
    collected = frozenset(d for step, d in asked.commits if keys.commit_key(remote.run, step, d) in condemned.void)
    lost = frozenset(digest for _, digest in asked.commits) - present
    return Answer(told.said, present, collected, lost, dict(values), told.decided)
