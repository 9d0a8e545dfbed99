"""Which step to restore on one node: the newest by save time that is valid, in the store or whole on this disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from ckptsync.disk.saves import Save
from ckptsync.errors import NothingToResume
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import Union, unite
from ckptsync.model.step import Listing
from ckptsync.store import keys
from ckptsync.sync.commit import check_commit
from ckptsync.sync.history import History
from ckptsync.sync.remote import LATER_NS, READERS, Remote, StepIndex

__all__ = ["Choice", "choose", "local_unions", "newest_commit", "wanted_indexes"]

_UNKNOWN_NS = 2**63
_Checked = tuple[Union | None, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """What will be restored.

    Attributes:
        union: its files.
        commit: digest of its commit; "" for a local step that is newer than every commit.
        skipped: (step, why it was not chosen), for people; newest first.
    """

    union: Union
    commit: str
    skipped: tuple[tuple[int, str], ...] = ()


def local_unions(
    saves: Iterable[Save], listings: Mapping[int, Listing], layout: Layout, *, window_ns: int, offset_ns: int
) -> list[Union]:
    """The verified local saves that are whole by themselves and still on disk, unchanged; in store time.

    `offset_ns` is store time minus this node's: a node whose clock is slow must not take its own save for old.
    """
    found = []
    for save in saves:
        listing = listings.get(save.part.step)
        if listing is None or listing.name != save.part.name or not save.still_there(listing):
            continue
        union = unite([save.part], save.part.saved_ns, layout, window_ns=window_ns)
        if union.whole or save.commit:
            found.append(replace(union, end_ns=union.end_ns + offset_ns))
    return found


def choose(
    remote: Remote | None,
    local: Sequence[Union],
    layout_of: Mapping[str, Layout],
    *,
    step: int | None,
    max_step: int | None = None,
    window_ns: int,
    avoid: Collection[int] = (),
) -> Choice:
    """Choose a step for this node alone.

    Args:
        remote: the store, or None for a local choice.
        local: see `local_unions`.
        layout_of: layout name -> layout, for judging commits.
        step: this step and no other.
        max_step: no step above it.
        window_ns: `commit.window`.
        avoid: steps whose local saves are not wanted.

    Raises:
        NothingToResume: no step qualifies; the message says what was skipped and why.
        StoreError: the store cannot be listed. That is never "no checkpoints".
    """

    def wanted(number: int) -> bool:
        return (step is None or number == step) and (max_step is None or number <= max_step)

    skipped: list[tuple[int, str]] = []
    best: Choice | None = None
    history: History | None = None
    indexes: dict[int, StepIndex] = {}
    if remote is not None:
        indexes = wanted_indexes(remote, step, max_step)
        history = History(remote, layout_of, window_ns).refresh()
        skipped += [(n, _why_partial(index)) for n, index in indexes.items() if not index.commits]
        best = newest_commit(history, indexes, skipped, forced=step is not None)
    for union in local:
        if wanted(union.step) and union.step not in avoid and (best is None or union.end_ns > best.union.end_ns):
            why = history.against(union, indexes.get(union.step), forced=step is not None) if history else ""
            if why:
                skipped.append((union.step, why))
            else:
                best = Choice(union, "")
    skipped.sort(reverse=True)
    if best is None:
        what = "nothing to resume from" if step is None else f"step {step} cannot be restored"
        why = "; ".join(f"step {n}: {reason}" for n, reason in skipped[:3])
        remedy = "`ckptsync steps` shows what is there" if skipped else "the store and the disk hold no verified step"
        raise NothingToResume(what, where=remote.store.url if remote else "", why=why, remedy=remedy)
    return Choice(best.union, best.commit, tuple(skipped))


def _why_partial(index: StepIndex) -> str:
    return f"not committed ({len(index.ready)} of {len(index.parts)} known parts are ready)"


def wanted_indexes(remote: Remote, step: int | None, max_step: int | None) -> dict[int, StepIndex]:
    """What the store holds of the steps that are asked for, by one list."""
    if step is None:
        return {n: index for n, index in remote.index_all().items() if max_step is None or n <= max_step}
    if keys.parse_step(f"{step:012d}") is None or (max_step is not None and step > max_step):
        return {}
    index = remote.index(step)
    return {step: index} if index.parts or index.ready or index.commits else {}


@dataclass(frozen=True, slots=True)
class _Written:
    """A commit as a list shows it."""

    modified_ns: int
    step: int
    digest: str
    readers: int  # its step's parts


def newest_commit(
    history: History, indexes: Mapping[int, StepIndex], skipped: list[tuple[int, str]], *, forced: bool = False
) -> Choice | None:
    """Look at commits from the one written last, and stop where no other one can be newer (docs/design.md, Pulling).

    A commit is written after its save ended, so its modification time bounds the save time from above. It never
    decides: where one commit shows that the bound does not hold, all are read.

    Args:
        history: refreshed.
        indexes: of the steps that may be chosen.
        skipped: what is not chosen is added, with the reason.
        forced: see `History.against`.
    """
    best: Choice | None = None
    bounded = True
    condemned = history.remote.condemned()
    check = partial(
        check_commit, history.remote, rules_of=history.layout_of, condemned=condemned, window_ns=history.window_ns
    )
    for block in _blocks(_by_modification(indexes)):
        if best is not None and bounded and block[0].modified_ns + LATER_NS < best.union.end_ns:
            break
        for commit, (union, why) in zip(block, _at_once(check, indexes, block), strict=True):
            if union is None:
                skipped.append((commit.step, why))
                continue
            bounded = bounded and union.end_ns <= commit.modified_ns + LATER_NS
            if best is None or _rank(union, commit.digest) > _rank(best.union, best.commit):
                if why := history.against(union, indexes[commit.step], forced=forced):
                    skipped.append((commit.step, why))
                else:
                    best = Choice(union, commit.digest)
    return best


def _by_modification(indexes: Mapping[int, StepIndex]) -> list[_Written]:
    """The one written last comes first, before it those whose time the store does not give."""
    found = [
        _Written(modified_ns or _UNKNOWN_NS, number, digest, len(index.parts))
        for number, index in indexes.items()
        for digest, modified_ns in index.commits.items()
    ]
    return sorted(found, key=lambda commit: (commit.modified_ns, commit.step, commit.digest), reverse=True)


def _blocks(commits: Sequence[_Written]) -> Iterator[Sequence[_Written]]:
    """Mostly the first commit decides. A copied bucket, all of whose times are new, is read many commits at a time."""
    start, size = 0, 1
    while start < len(commits):
        most = max(commit.readers for commit in commits[start : start + size])
        size = max(1, min(size, READERS // max(most, 1)))
        yield commits[start : start + size]
        start, size = start + size, size * 2


def _at_once(
    check: Callable[[StepIndex, str], _Checked], indexes: Mapping[int, StepIndex], block: Sequence[_Written]
) -> list[_Checked]:
    wanted = [(indexes[commit.step], commit.digest) for commit in block]
    if len(wanted) == 1:
        return [check(*wanted[0])]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda each: check(*each), wanted))


def _rank(union: Union, digest: str) -> tuple[int, int, str]:
    """Newest first; of two commits of one save the fuller one, then by digest: the same everywhere."""
    return union.end_ns, len(union.files), digest
