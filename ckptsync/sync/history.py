"""What the decisions and marks of a run say against a save: a roll-back has left it, or its commit is bad."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ckptsync.errors import CorruptObject, KeyMissing
from ckptsync.model.lines import Turn, superseded
from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, canonical
from ckptsync.model.merge import Union
from ckptsync.model.parse import parse_canonical
from ckptsync.model.rounds import Decision, Place, parse_decision
from ckptsync.store import keys
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.commit import RulesOf, check_commit
from ckptsync.sync.documents import in_threads
from ckptsync.sync.remote import LATER_NS, Remote, StepIndex

__all__ = ["BY_SCRUB", "DECISION_BYTES_MAX", "History", "decision_at", "mark_bad", "marked_by_scrub", "read_decision"]

DECISION_BYTES_MAX = 1024 * 1024
BY_SCRUB = "scrub: "
"""What the reason of a scrub's mark begins with: only those are taken back when the bytes are right again."""
_MARK_BYTES_MAX = 64 * 1024
_DECISION = "decision.json"
_Content = Mapping[str, str]


@dataclass
class History:
    """The decisions of all attempts and the marks of bad commits, as of the last `refresh`.

    Args:
        remote: the run.
        layout_of: layout name -> its rules.
        window_ns: `commit.window`.

    Attributes:
        bad: digests of commits.
    """

    remote: Remote
    layout_of: RulesOf
    window_ns: int
    bad: frozenset[str] = frozenset()
    _put_ns: dict[str, int | None] = field(default_factory=dict)
    _read: dict[str, Decision | None] = field(default_factory=dict)
    _bad_content: dict[str, _Content | None] = field(default_factory=dict)

    def refresh(self, marks: Iterable[ObjectMeta] | None = None) -> History:
        """Look again, by two lists; decisions are read when they are needed. Returns itself.

        Args:
            marks: what is below the prefix of bad commits, if that was listed just now.

        Raises:
            StoreError: a list failed.
        """
        remote = self.remote
        wanted = (keys.attempts_prefix(remote.run), *(() if marks is not None else (keys.bad_prefix(remote.run),)))
        found, *listed = in_threads(lambda prefix: tuple(remote.store.list(prefix)), wanted)
        bad = marks if marks is not None else listed[0]
        self.bad = frozenset(meta.key.rpartition("/")[2] for meta in bad)
        self._put_ns = {meta.key: meta.modified_ns for meta in found if meta.key.endswith(f"/{_DECISION}")}
        return self

    @property
    def decisions(self) -> dict[str, Decision]:
        """All of them, by key.

        Raises:
            StoreError: one cannot be read. Who does not know what was left must not pick.
        """
        return self._since(0)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The decisions for a commit. Raises as `decisions`."""
        return _turns(self.decisions)

    def _since(self, made_ns: int) -> dict[str, Decision]:
        """Those that may have been made since then: older ones say nothing about a save that ended then.

        A decision is put after it was made. Its modification time only spares reading it; it does not decide.
        """
        wanted = [key for key, put_ns in self._put_ns.items() if put_ns is None or put_ns + LATER_NS >= made_ns]
        fresh = [key for key in wanted if key not in self._read]
        self._read.update(zip(fresh, in_threads(lambda key: read_decision(self.remote, key), fresh), strict=True))
        return {key: decision for key in wanted if (decision := self._read[key]) is not None}

    def decided_last(self, step: int) -> str:
        """The commit of a step that was decided for last; "" = none ever was."""
        made = [each for each in self.decisions.values() if each.outcome == "commit" and each.step == step]
        newest = max(made, key=lambda each: each.decided_ns, default=None)
        return newest.commit if newest is not None else ""

    def against(self, union: Union, index: StepIndex | None, *, forced: bool = False) -> str:
        """Why a whole save must not be picked; "" = nothing speaks against it.

        Args:
            union: the save.
            index: what the store holds of its step; None = nothing.
            forced: its step was asked for: a line that was left may be returned to.
        """
        digest = union.commit.digest
        if digest in self.bad:
            return "its commit is marked as bad"
        mine = _content(union)
        for other in sorted(self.bad.intersection(index.commits) if index is not None else ()):
            if self._content_of(index, other) == mine:
                return f"it holds what commit {other[:12]} holds, which is marked as bad"
        if not forced and superseded(union.end_ns, _turns(self._since(union.end_ns))):
            return "superseded: a roll-back has left it"
        return ""

    def _content_of(self, index: StepIndex | None, digest: str) -> _Content | None:
        if digest not in self._bad_content:
            assert index is not None, "it has this commit"
            condemned = self.remote.condemned()
            union, _ = check_commit(self.remote, index, digest, self.layout_of, condemned, window_ns=self.window_ns)
            self._bad_content[digest] = _content(union) if union is not None else None
        return self._bad_content[digest]


def decision_at(remote: Remote, key: str, place: Place) -> Decision:
    """Read a decision.

    Raises:
        KeyMissing: there is none.
        CorruptObject: it cannot be read; nobody may go on as if it were not there.
    """
    data = remote.store.get(key, max_size=DECISION_BYTES_MAX)
    try:
        return parse_decision(data, place)
    except ManifestError as error:
        where = f"{remote.store.url}/{key}"
        raise CorruptObject("cannot read a decision", where=where, why=str(error)) from None


def read_decision(remote: Remote, key: str) -> Decision | None:
    """The decision under a listed key; None for a foreign object. Raises as `decision_at`."""
    attempt, number = key.split("/")[-3:-1]
    found = keys.parse_number(number)
    try:
        name = keys.unquote_name(attempt)
    except ValueError:
        return None
    if not found or key != keys.decision_key(remote.run, name, found):
        return None
    return decision_at(remote, key, Place(remote.run, remote.run_id, name, found))


def mark_bad(remote: Remote, step: int, commit: str, *, node: str, why: str) -> None:
    """Mark a commit for all nodes; one that is marked stays marked. Raises StoreError."""
    document = {"kind": "bad", "format": [FORMAT_MAJOR, FORMAT_MINOR], "step": step, "node": node, "why": why}
    remote.store.put_new(keys.bad_key(remote.run, commit), canonical(document))


def marked_by_scrub(remote: Remote, marks: Iterable[ObjectMeta]) -> frozenset[str]:
    """The commits among those marked as bad that only a scrub found damaged: a node that has the bytes may heal them.

    Args:
        remote: the run.
        marks: what is below the prefix of bad commits.

    Raises:
        StoreError: a mark could not be read.
    """

    def why(meta: ObjectMeta) -> str:
        try:
            document = parse_canonical(remote.store.get(meta.key, max_size=_MARK_BYTES_MAX), "bad")
        except (KeyMissing, CorruptObject, ManifestError):
            return ""  # taken back, or not ours to judge
        return str(document.get("why", ""))

    found = list(marks)
    reasons = in_threads(why, found)
    digests = (meta.key.rpartition("/")[2] for meta in found)
    return frozenset(d for d, reason in zip(digests, reasons, strict=True) if reason.startswith(BY_SCRUB))


def _turns(decisions: Mapping[str, Decision]) -> tuple[Turn, ...]:
    found = decisions.values()
    return tuple(Turn(each.decided_ns, each.saved_ns) for each in found if each.outcome == "commit")


def _content(union: Union) -> _Content:
    return {path: entry.digest for path, (_, entry) in union.files.items()}
