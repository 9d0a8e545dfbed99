"""Which saves are kept, here and in the store, and why. Pure: facts and the time are arguments.

A save that any policy wants is kept. Floors hold whatever the policies say, and no configuration reaches below them;
`pressure.py` says what else goes when the disk fills up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ckptsync.model.policies import Policies, Reason, Saved, Weight, wishes_of
from ckptsync.model.step import LocalState

__all__ = ["LocalFacts", "RemoteFacts", "RemoteVerdicts", "Verdict", "condemned", "judge_local", "judge_remote"]

_NEWEST = 2
"""A save begins after the previous one has ended on every node: the second newest is whole everywhere."""
_S = TypeVar("_S", bound=Saved)
_UNJUDGED = frozenset({LocalState.GROWING, LocalState.SETTLING, LocalState.COMPLETE, LocalState.BROKEN})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one save.

    Attributes:
        keep: whether it stays.
        reasons: all of them, the heaviest first.
        loud: it goes although its upload is not done: people must be told.
    """

    keep: bool
    reasons: tuple[Reason, ...]
    loud: bool = False

    @property
    def weight(self) -> Weight:
        """Of the heaviest reason."""
        return max((reason.weight for reason in self.reasons), default=Weight.AGAINST)


RemoteVerdicts = Mapping[tuple[int, str], Verdict]
"""(step, digest of a commit) -> what becomes of it."""


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """A step directory (or what is staged of one that is gone) as retention sees it.

    Attributes:
        step: its number.
        save: the save's identity; the directory's name where it holds no verified save.
        end_ns: when it was saved; of what is not verified, when its newest file was written.
        state: ABSENT = the directory is gone, its links in staging are not.
        bytes: what its deletion gives back.
        metric, unread: see `Saved`.
        pin: its note if it is pinned, "" for a pin without one; None = not pinned.
        latest, tracker: whether these name it.
        resumed: the last resume that was decided started from it.
        due, committed, staged, uploading: how far its way to the store it is.
        collected: its commit has been collected since: this disk may hold the only copy.
        lost: the store no longer holds its commit undamaged, and no collection took it: as `collected`, and against
            everybody's will.
    """

    step: int
    save: str
    end_ns: int
    state: LocalState = LocalState.VERIFIED
    bytes: int = 0
    metric: float | None = None
    unread: bool = False
    pin: str | None = None
    latest: bool = False
    tracker: bool = False
    resumed: bool = False
    due: bool = False
    committed: bool = False
    collected: bool = False
    lost: bool = False
    staged: bool = False
    uploading: bool = False

    @property
    def stored(self) -> bool:
        """Whether the store has it, as far as this node knows."""
        return self.committed and not self.collected and not self.lost

    @property
    def whereabouts(self) -> str:
        """Where else it is, in words."""
        if self.collected:
            return "it has been collected in the store"
        if self.lost:
            return "the store no longer holds it undamaged"
        return "it is in the store" if self.committed else "it is not in the store"


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """A commit as retention sees it.

    Attributes:
        step, save, end_ns, metric, unread: see `Saved`; `save` is the commit's digest.
        files: how many; of two commits of one save, the fuller one stands.
        pin: as in `LocalFacts`.
        resumed: as in `LocalFacts`.
        bad: marked as bad: no resume picks it.
        damaged: only because a scrub found it damaged: a node that has the bytes may heal it.
        left: a roll-back has left its line: no resume picks it by itself.
        void: a collection has condemned it already.
        unsound: why it cannot be judged (its part is missing, a layout is unknown); "" = it can.
    """

    step: int
    save: str
    end_ns: int
    files: int = 0
    metric: float | None = None
    unread: bool = False
    pin: str | None = None
    resumed: bool = False
    bad: bool = False
    damaged: bool = False
    left: bool = False
    void: bool = False
    unsound: str = ""


# -- verdicts


def judge_local(steps: Sequence[LocalFacts], policies: Policies, now_ns: int) -> tuple[Verdict, ...]:
    """Judge what is on this disk; a verdict for each of `steps`, in their order. `now_ns`: in the saves' clock."""
    verified = _by_time(fact for fact in steps if fact.state in (LocalState.VERIFIED, LocalState.ABSENT))
    wishes = wishes_of(verified, policies, now_ns)
    in_place = [fact for fact in verified if fact.state is LocalState.VERIFIED]
    newest = {fact.save for fact in (*verified[-_NEWEST:], *in_place[-_NEWEST:])}
    writing = max(
        (fact for fact in steps if fact.state is not LocalState.PRUNED), key=lambda f: (f.end_ns, f.step), default=None
    )
    return tuple(
        _local_verdict(
            fact,
            [*_floors(fact, writing.step if writing else 0, newest=fact.save in newest), *wishes.get(fact.save, ())],
            policies,
            superseded_by=next((f for f in reversed(in_place) if f.end_ns > fact.end_ns), None),
        )
        for fact in steps
    )


def _local_verdict(
    fact: LocalFacts, reasons: list[Reason], policies: Policies, superseded_by: LocalFacts | None
) -> Verdict:
    husk = fact.state is LocalState.PRUNED
    if husk and superseded_by is None:
        reasons.append(Reason(Weight.FLOOR, "no newer step is verified"))
    if not policies.named and not any(reason.weight is Weight.FLOOR for reason in reasons):
        reasons.append(Reason(Weight.UNASKED, "no policy is set"))
    if reasons:
        return Verdict(True, _sorted(reasons))
    if husk and superseded_by is not None:
        why = ["pruned by the trainer", f"superseded by step {superseded_by.step}"]
    else:
        why = ["no policy keeps it", fact.whereabouts]
    return Verdict(False, tuple(Reason(Weight.AGAINST, text) for text in why))


def _floors(fact: LocalFacts, writing: int, *, newest: bool) -> list[Reason]:
    """What no configuration crosses; `writing` is the number of the newest save, whole or not."""
    floor = Weight.FLOOR
    found = [
        (fact.state in _UNJUDGED, floor, f"not verified: {fact.state.value}"),
        (newest and fact.state not in _UNJUDGED, floor, "one of the two newest"),
        (fact.latest, floor, "latest names it"),
        (fact.tracker, floor, "the trainer's tracker names it"),
        (fact.pin is not None, floor, _pinned(fact.pin)),
        (fact.resumed, floor, "the last resume started from it"),
        (fact.uploading, floor, "being uploaded"),
        # a trainer that makes its directory at this very moment must not lose it to us
        (fact.step > writing, floor, f"above the newest save ({writing}): the run will write this number again"),
        (fact.due and not fact.committed, Weight.UNSENT, "due, and not committed yet"),
        (fact.staged and not fact.committed, Weight.UNSENT, "staged for its upload"),
        (fact.lost, Weight.UNSENT, "the store no longer holds its commit undamaged"),
    ]
    return [Reason(weight, text) for holds, weight, text in found if holds]


def judge_remote(commits: Sequence[RemoteFacts], policies: Policies, now_ns: int) -> RemoteVerdicts:
    """Judge the commits of a run; `now_ns` is store time."""
    sound = [fact for fact in commits if not fact.void and not fact.unsound]
    standing = _standing([fact for fact in sound if not fact.bad] or sound)
    wishes = wishes_of(standing, policies, now_ns)
    # what can be healed takes nobody's place, and stays while it would be wanted
    hoped = wishes_of(_standing(fact for fact in sound if fact.damaged or not fact.bad), policies, now_ns)
    for fact in sound:
        if fact.damaged and fact.save in hoped and fact.save not in wishes:
            wishes[fact.save] = [Reason(Weight.UNASKED, "damaged, and a node may heal it"), *hoped[fact.save]]
    for newest in ([fact for fact in standing if not fact.left] or standing)[-1:]:
        wishes.setdefault(newest.save, []).append(Reason(Weight.FLOOR, "the newest in the store"))
    stands = {fact.save for fact in standing}
    return {
        (fact.step, fact.save): _remote_verdict(fact, wishes.get(fact.save, []), policies, fact.save in stands)
        for fact in commits
    }


def _standing(facts: Iterable[RemoteFacts]) -> list[RemoteFacts]:
    """Of each save the fullest commit, by time."""
    fullest: dict[tuple[int, int], RemoteFacts] = {}
    for fact in facts:
        held = fullest.get((fact.step, fact.end_ns))
        if held is None or (fact.files, fact.save) > (held.files, held.save):
            fullest[fact.step, fact.end_ns] = fact
    return _by_time(fullest.values())


def _remote_verdict(fact: RemoteFacts, wishes: list[Reason], policies: Policies, stands: bool) -> Verdict:
    reasons = list(wishes)
    if fact.unsound and not fact.void:
        reasons.append(Reason(Weight.FLOOR, f"cannot be judged: {fact.unsound}"))
    if fact.pin is not None:
        reasons.append(Reason(Weight.FLOOR, _pinned(fact.pin)))
    if fact.resumed:
        reasons.append(Reason(Weight.FLOOR, "the last resume started from it"))
    if not policies.named:
        reasons.append(Reason(Weight.UNASKED, "no policy is set"))
    if fact.void:
        return Verdict(False, (Reason(Weight.AGAINST, "a collection has condemned it"),))
    if reasons:
        return Verdict(True, _sorted(reasons))
    why = "no policy keeps it" if stands else "superseded by a fuller commit of the same save"
    if fact.bad and not stands:
        why = "marked as bad"
    return Verdict(False, (Reason(Weight.AGAINST, why),))


def condemned(verdicts: RemoteVerdicts) -> frozenset[str]:
    """The digests of the commits that are to be collected."""
    return frozenset(digest for (_, digest), verdict in verdicts.items() if not verdict.keep)


def _pinned(note: str | None) -> str:
    return f"pinned: {note}" if note else "pinned"


def _sorted(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    return tuple(sorted(reasons, key=lambda reason: -reason.weight))


def _by_time(facts: Iterable[_S]) -> list[_S]:
    return sorted(facts, key=lambda fact: (fact.end_ns, fact.step, fact.save))
