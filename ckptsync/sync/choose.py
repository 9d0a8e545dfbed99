"""Which step to restore on one node: the newest by save time that is valid, in the store or whole on this disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ckptsync.disk.saves import Save
from ckptsync.errors import NothingToResume
from ckptsync.layouts.base import Layout
from ckptsync.model.merge import Union, unite
from ckptsync.model.step import Listing
from ckptsync.sync.commit import check_commit
from ckptsync.sync.remote import Remote, StepIndex

__all__ = ["Choice", "choose", "local_unions"]

_LATER_NS = 2 * 10**9
"""LastModified has whole seconds in some stores."""


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
) -> Choice:
    """Choose a step.

    Args:
        remote: the store, or None for a local choice.
        local: see `local_unions`.
        layout_of: layout name -> layout, for judging commits.
        step: this step and no other.
        max_step: no step above it.
        window_ns: `commit.window`.

    Raises:
        NothingToResume: no step qualifies; the message says what was skipped and why.
        StoreError: the store cannot be listed. That is never "no checkpoints".
    """

    def wanted(number: int) -> bool:
        return (step is None or number == step) and (max_step is None or number <= max_step)

    skipped: list[tuple[int, str]] = []
    best: Choice | None = None
    if remote is not None:
        indexes = {number: index for number, index in remote.index_all().items() if wanted(number)}
        skipped += [(n, _why_partial(index)) for n, index in indexes.items() if not index.commits]
        best = _newest_commit(remote, indexes, layout_of, skipped, window_ns)
    for union in local:
        if wanted(union.step) and (best is None or union.end_ns > best.union.end_ns):
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


def _newest_commit(
    remote: Remote,
    indexes: Mapping[int, StepIndex],
    layout_of: Mapping[str, Layout],
    skipped: list[tuple[int, str]],
    window_ns: int,
) -> Choice | None:
    """Look at commits in the order they were written, and stop where no earlier one can be newer.

    A commit is written after its save ended, so its LastModified bounds the save time from above. It never decides.
    """
    condemned = remote.condemned()
    written = [(index.commits[d] or 2**63, n, d) for n, index in indexes.items() for d in index.commits]
    best: Choice | None = None
    for modified_ns, number, digest in sorted(written, reverse=True):
        if best is not None and modified_ns + _LATER_NS < best.union.end_ns:
            break
        union, why = check_commit(remote, indexes[number], digest, layout_of, condemned, window_ns=window_ns)
        if union is None:
            skipped.append((number, why))
        elif best is None or _rank(union, digest) > _rank(best.union, best.commit):
            best = Choice(union, digest)
    return best


def _rank(union: Union, digest: str) -> tuple[int, int, str]:
    """Newest first; of two commits of one save the fuller one, then by digest: the same everywhere."""
    return union.end_ns, len(union.files), digest
