"""What a collection condemns, and what its second look spares. Pure: everything is named by its full key.

docs/design.md, Collecting, says why this is safe, and in which order it is asked and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ckptsync.errors import UsageError
from ckptsync.sync.collect_lists import Collection

__all__ = [
    "Cut",
    "Head",
    "Tree",
    "bounded",
    "cut_list",
    "cut_sweep",
    "digest_in",
    "end_of",
    "is_disturbed",
    "missing",
    "restorable",
    "standing",
    "step_in",
    "swept",
    "void",
]

_NOTHING: frozenset[str] = frozenset()
_HEX = 64


@dataclass(frozen=True, slots=True)
class Tree:
    """What lies below the steps of a run, as one list of the store shows it.

    Attributes:
        commits: commit -> its parts; None = the commit cannot be read.
        parts: part -> when it was put, by the store's clock (ns); None = the store does not say.
        ready: the marks of parts.
        pinned: digests of commits and parts that must stay.
        bad: digests of commits that cannot be restored.
    """

    commits: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    parts: Mapping[str, int | None] = field(default_factory=dict)
    ready: frozenset[str] = _NOTHING
    pinned: frozenset[str] = _NOTHING
    bad: frozenset[str] = _NOTHING


@dataclass(frozen=True, slots=True)
class Head:
    """What decides over a part that no commit names.

    Attributes:
        saved_ns: when its save ended, store time; 0 = unknown.
        closed: it holds the file that ends the save.
        active: one of its chunks was put within the grace.
    """

    saved_ns: int
    closed: bool = False
    active: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """What goes of commits and parts, and the parts whose chunks must stay."""

    commits: frozenset[str]
    parts: frozenset[str]
    roots: frozenset[str]


def digest_in(key: str) -> str:
    """The digest that the key of a commit, part or ready mark ends with."""
    return key.removesuffix(".zst").removesuffix(".json")[-_HEX:]


def step_in(key: str) -> str:
    """The step of a commit, part or mark: the 12 digits in its key."""
    return key.split("/")[2]


def void(collections: Iterable[Collection]) -> frozenset[str]:
    """The commits and parts that are as good as deleted."""
    return frozenset(key for each in collections for key in each.void if "/steps/" in key)


def swept(collections: Iterable[Collection]) -> frozenset[str]:
    """The commits and parts that are deleted, or will be, whatever happens."""
    return frozenset(key for each in collections for key in each.sweep or () if "/steps/" in key)


def standing(tree: Tree, gone: AbstractSet[str]) -> dict[str, frozenset[str]]:
    """The commits of which nothing is gone, with their parts; one that cannot be read stands for all that we know."""
    return {
        commit: parts or _NOTHING
        for commit, parts in tree.commits.items()
        if commit not in gone and gone.isdisjoint(parts or _NOTHING)
    }


def restorable(tree: Tree, commits: Iterable[str]) -> frozenset[str]:
    """Those of `commits` that could be read, whose parts are all there, and that are not marked bad."""
    return frozenset(
        commit
        for commit in commits
        if (parts := tree.commits.get(commit)) and parts <= tree.parts.keys() and digest_in(commit) not in tree.bad
    )


def end_of(parts: Iterable[Head]) -> int:
    """When the save of a commit ended: as its parts with a closing file say, else as all do."""
    heads = list(parts)
    return max((head.saved_ns for head in [h for h in heads if h.closed] or heads), default=0)


def bounded(
    wanted: AbstractSet[str],
    tree: Tree,
    commits: AbstractSet[str],
    ends: Mapping[str, int],
    *,
    force: bool,
    strict: bool,
) -> frozenset[str]:
    """What of the wanted commits may go: a step that can be restored stays, and without `force` at least half of them.

    Args:
        wanted: commits that retention condemns.
        tree: what there is.
        commits: those that stand.
        ends: commit -> when its save ended.
        force: more than half may go.
        strict: to take less than was wanted is an error; else the oldest go, and the others next time.

    Raises:
        UsageError: more than half would go.
    """
    whole = restorable(tree, commits)
    if not whole:  # every sweep would be spared for leaving no step, and free nothing else either
        return _NOTHING
    steps = {step_in(commit) for commit in whole}
    going = sorted(wanted & commits, key=lambda commit: (ends.get(commit, 0), commit))
    if whole <= set(going):
        going.remove(max(whole, key=lambda commit: (ends.get(commit, 0), commit)))
    while not force and going:
        lost = steps - {step_in(commit) for commit in whole.difference(going)}
        if 2 * len(lost) <= len(steps):
            break
        if strict:
            why = f"{len(lost)} of {len(steps)} committed steps would go"
            raise UsageError("refused to condemn more than half of the store", why=why, remedy="--force does it")
        going.pop()
    return frozenset(going)


def cut_list(
    tree: Tree,
    collections: Iterable[Collection],
    condemned: AbstractSet[str],
    heads: Mapping[str, Head],
    *,
    newest_ns: int,
    before_ns: int,
) -> Cut:
    """What a new list condemns of commits and parts.

    Args:
        tree: what there is.
        collections: all, as they stand.
        condemned: commits that retention gives up (see `bounded`).
        heads: of the parts that no commit needs.
        newest_ns: when the newest save that stays ended; 0 = none stays.
        before_ns: what was put later (store time) is too young to be judged.
    """
    collections = list(collections)
    gone, dead_for_ever = void(collections), swept(collections)
    stay = {commit: parts for commit, parts in standing(tree, gone).items() if commit not in condemned}
    needed = _needed(tree, stay)
    owned = _NOTHING.union(*(tree.commits[commit] or _NOTHING for commit in condemned))
    loose = {part for part in tree.parts if part not in gone and part not in needed}
    dead = {
        part
        for part in loose
        if part in owned or _is_dead(tree.parts[part], heads.get(part), newest_ns=newest_ns, before_ns=before_ns)
    }
    lost = {
        commit
        for commit, parts in tree.commits.items()
        if commit not in gone and parts and not dead_for_ever.isdisjoint(parts)
    }
    roots = frozenset(part for part in tree.parts if part not in gone and part not in dead)
    return Cut(frozenset(condemned) | lost, frozenset(dead), roots)


def _is_dead(put_ns: int | None, head: Head | None, *, newest_ns: int, before_ns: int) -> bool:
    """Whether nobody is going to commit a part: it is old, nothing is sent for it, and a later save is committed."""
    if put_ns is None or head is None or head.active:
        return False
    return put_ns <= before_ns and (head.saved_ns or put_ns) < newest_ns


def cut_sweep(collection: Collection, tree: Tree, others: Iterable[Collection]) -> Cut | None:
    """What of a list really goes, by a tree that was listed after the list was put; None = all of it is spared.

    `others`: all other collections, read after this list was put.
    """
    others = list(others)
    dead_for_ever = swept(others)
    commits = _condemned_commits(collection, tree)
    needed = _needed_still(tree, commits | dead_for_ever)
    parts = frozenset(key for key in _parts_of(collection) if key not in needed)
    if commits:
        left = standing(tree, void(others) | commits | parts)
        if not restorable(tree, left):
            return None
    roots = frozenset(part for part in tree.parts if part not in parts and part not in dead_for_ever)
    return Cut(commits, parts, roots)


def is_disturbed(collection: Collection, tree: Tree, others: Iterable[Collection]) -> bool:
    """Whether an open list makes something void that must stay: a part that has been committed since, or a pin."""
    commits = _condemned_commits(collection, tree)
    if len(commits) < len(_commits_of(collection)):
        return True
    needed = _needed_still(tree, commits | swept(others))
    return not needed.isdisjoint(_parts_of(collection))


def missing(collections: Iterable[Collection], tree: Tree) -> str:
    """A commit that was kept by a collection, condemned by none, and is not there; "" = there is none.

    Then the list of the steps is short, or somebody deleted the commit by hand.
    """
    collections = list(collections)
    kept = _NOTHING.union(*(each.keeps for each in collections))
    absent = kept - tree.commits.keys()
    return min((commit for commit in absent if not any(commit in each.keys for each in collections)), default="")


def _needed(tree: Tree, commits: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The parts of these commits and all that are pinned; of a step with a commit that cannot be read, every part."""
    unread = {step_in(commit) for commit in commits if tree.commits[commit] is None}
    more = {part for part in tree.parts if step_in(part) in unread or digest_in(part) in tree.pinned}
    return frozenset(more).union(*commits.values())


def _needed_still(tree: Tree, gone: AbstractSet[str]) -> frozenset[str]:
    return _needed(tree, standing(tree, gone))


def _condemned_commits(collection: Collection, tree: Tree) -> frozenset[str]:
    """Those of a list that nobody has pinned since."""
    found = _commits_of(collection)
    if not tree.pinned:
        return found

    def pinned(commit: str) -> bool:
        names = {digest_in(commit), *(digest_in(part) for part in tree.commits.get(commit) or ())}
        return not names.isdisjoint(tree.pinned)

    return frozenset(commit for commit in found if not pinned(commit))


def _commits_of(collection: Collection) -> frozenset[str]:
    return frozenset(key for key in collection.keys if "/commits/" in key)


def _parts_of(collection: Collection) -> frozenset[str]:
    return frozenset(key for key in collection.keys if "/parts/" in key)
