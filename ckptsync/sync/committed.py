"""The commits of a run from which a strategy selects: read from the newest on, and no more of them than it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ckptsync.errors import CorruptObject, KeyMissing
from ckptsync.model.merge import Union
from ckptsync.model.selection import Strategy
from ckptsync.sync.commit import check_commit
from ckptsync.sync.documents import in_threads
from ckptsync.sync.history import History
from ckptsync.sync.remote import LATER_NS, READERS, StepIndex
from ckptsync.sync.values import Values

__all__ = ["Found", "commits_for", "newest_commit"]

_UNKNOWN_NS = 2**63
_Checked = tuple[Union | None, str]


class Found(NamedTuple):
    """A commit that may be restored: its files, its digest, and the metric that is asked for, if it is known."""

    union: Union
    commit: str
    value: float | None


def commits_for(
    history: History,
    indexes: Mapping[int, StepIndex],
    strategy: Strategy,
    values: Values,
    skipped: list[tuple[int, str]],
    *,
    forced: bool,
) -> Iterator[Found]:
    """The commits among which a strategy selects: of most the newest alone, for `best` all that may be restored.

    Args:
        history: refreshed.
        indexes: of the steps that may be chosen.
        strategy: what is asked for.
        values: of its metric, refreshed.
        skipped: what is not chosen is added, with the reason.
        forced: see `History.against`.
    """
    if strategy.kind == "best":
        yield from _all_commits(history, indexes, values, skipped, forced=forced)
    elif (best := newest_commit(history, indexes, skipped, forced=forced)) is not None:
        yield best


def _all_commits(
    history: History,
    indexes: Mapping[int, StepIndex],
    values: Values,
    skipped: list[tuple[int, str]],
    *,
    forced: bool,
) -> Iterator[Found]:
    condemned = history.remote.condemned()

    def read(commit: _Written) -> tuple[Union | None, str, float | None]:
        union, why = check_commit(
            history.remote,
            indexes[commit.step],
            commit.digest,
            history.layout_of,
            condemned,
            window_ns=history.window_ns,
        )
        if union is None:
            return None, why, None
        try:
            return union, "", values.of_commit(history.remote, union, commit.digest)
        except (KeyMissing, CorruptObject) as error:
            return None, str(error), None

    written = _by_modification(indexes)
    for commit, (union, why, value) in zip(written, in_threads(read, written), strict=True):
        against = why if union is None else history.against(union, indexes[commit.step], forced=forced)
        if union is None or against:
            skipped.append((commit.step, against))
        else:
            yield Found(union, commit.digest, value)


@dataclass(frozen=True, slots=True)
class _Written:
    """A commit as a list shows it."""

    modified_ns: int
    step: int
    digest: str
    readers: int  # its step's parts


def newest_commit(
    history: History, indexes: Mapping[int, StepIndex], skipped: list[tuple[int, str]], *, forced: bool = False
) -> Found | None:
    """Look at commits from the one written last, and stop where no other one can be newer (docs/design.md, Pulling).

    A commit is written after its save ended, so its modification time bounds the save time from above. It never
    decides: where one commit shows that the bound does not hold, all are read.

    Args:
        history: refreshed.
        indexes: of the steps that may be chosen.
        skipped: what is not chosen is added, with the reason.
        forced: see `History.against`.
    """
    best: Found | None = None
    bounded = True
    commits = _by_modification(indexes)
    condemned = history.remote.condemned()
    check = partial(
        check_commit, history.remote, rules_of=history.layout_of, condemned=condemned, window_ns=history.window_ns
    )
    with closing(_read_ahead(lambda commit: check(indexes[commit.step], commit.digest), commits)) as checked:
        for commit in commits:
            if best is not None and bounded and commit.modified_ns + LATER_NS < best.union.end_ns:
                break
            union, why = next(checked)
            if union is None:
                skipped.append((commit.step, why))
                continue
            bounded = bounded and union.end_ns <= commit.modified_ns + LATER_NS
            if best is None or _rank(union, commit.digest) > _rank(best.union, best.commit):
                if why := history.against(union, indexes[commit.step], forced=forced):
                    skipped.append((commit.step, why))
                else:
                    best = Found(union, commit.digest, None)
    return best


def _by_modification(indexes: Mapping[int, StepIndex]) -> list[_Written]:
    """The one written last comes first, before it those whose time the store does not give."""
    found = [
        _Written(modified_ns or _UNKNOWN_NS, number, digest, len(index.parts))
        for number, index in indexes.items()
        for digest, modified_ns in index.commits.items()
    ]
    return sorted(found, key=lambda commit: (commit.modified_ns, commit.step, commit.digest), reverse=True)


def _read_ahead(check: Callable[[_Written], _Checked], commits: Sequence[_Written]) -> Generator[_Checked]:
    """What `check` says of each commit, in their order, looking at no more ahead than have been asked for before.

    Mostly the first commit decides, and is the only one read. Of a copied bucket, all of whose times are new, many
    are, and side by side.
    """
    started: deque[Future[_Checked]] = deque()
    ahead = 0  # commits started so far
    with ThreadPoolExecutor(READERS) as pool:
        try:
            for number, commit in enumerate(commits):
                most = max(1, READERS // max(commit.readers, 1))  # each reads so many parts at once
                until = number + 1 + min(number, most - 1)
                started.extend(pool.submit(check, each) for each in commits[ahead:until])
                ahead = max(ahead, until)
                yield started.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _rank(union: Union, digest: str) -> tuple[int, int, str]:
    """Newest first; of two commits of one save the fuller one, then by digest: the same everywhere."""
    return union.end_ns, len(union.files), digest
