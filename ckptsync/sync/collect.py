"""Giving space in the store back: announce what nothing needs, wait, look again, delete what is still not needed.

Order: collections, chunks, steps are listed; then a list is put, after the grace everything but the chunks is listed
again, the sweep is put, and exactly the sweep is deleted. Every step of it may be taken by any node, and again
(docs/design.md, Collecting).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ckptsync.disk.durable import crash_point
from ckptsync.errors import Interrupted, StoreError, StoreUnavailable
from ckptsync.store import keys
from ckptsync.sync.collect_lists import Collection, render
from ckptsync.sync.collect_plan import (
    Cut,
    Head,
    bounded,
    cut_list,
    cut_sweep,
    digest_in,
    end_of,
    is_disturbed,
    missing,
    restorable,
    standing,
    step_in,
    swept,
    void,
)
from ckptsync.sync.collect_survey import Survey, survey, survey_again
from ckptsync.sync.documents import in_threads
from ckptsync.sync.remote import Remote

__all__ = ["Announced", "CollectOptions", "Collected", "Condemn", "Waiting", "collect"]

Condemn = Callable[[Survey], AbstractSet[str]]
"""What retention gives up of what a survey shows: digests of commits."""

_CHUNKS_MAX = 50_000
"""Of one list; a collector of many chunks puts several. A document of that many takes some 20 MB while it is read."""
_MARK = re.compile("/(ready|wanted)/")
_NUMBER_MAX = 10**6 - 1
_NS = 10**9


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """How to collect.

    Attributes:
        node: the name under which the store's clock is asked.
        grace_ns: between a list and its sweep, and the least age of parts that are judged by age.
        dry_run: write nothing, delete nothing.
        force: more than half of the steps may go, and commits deleted by hand are no reason to stop.
        strict: see `bounded`.
        now_ns: this node's clock.
        stop: true = end early, with Interrupted.
    """

    node: str
    grace_ns: int
    dry_run: bool = False
    force: bool = False
    strict: bool = True
    now_ns: Callable[[], int] = time.time_ns
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Announced:
    """What lists condemn: the first one's number, the steps that go, how many of each kind, the chunks' bytes."""

    number: int
    lists: int
    steps: tuple[int, ...]
    commits: int
    parts: int
    chunks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A list that is not swept yet: when its grace ends, store time (ns); None = the store gives no times."""

    number: int
    until_ns: int | None


@dataclass(slots=True)
class Collected:
    """What a collector did, or in a dry run would do.

    Attributes:
        chunks, bytes: what the store held of the run.
        steps: committed steps that stand and can be restored.
        announced: the lists put now, None = nothing is to be announced.
        waiting: lists whose grace is not over.
        swept: collection -> how many of its keys really go.
        deleted, freed: objects deleted, and the bytes of the chunks among them.
        leftovers: bytes of what killed puts had left behind.
        refused: what the store would not delete, in lines.
        problems: what kept something from being collected, in lines.
    """

    chunks: int = 0
    bytes: int = 0
    steps: int = 0
    announced: Announced | None = None
    waiting: list[Waiting] = field(default_factory=list)
    swept: dict[int, int] = field(default_factory=dict)
    deleted: int = 0
    freed: int = 0
    leftovers: int = 0
    refused: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect(remote: Remote, condemn: Condemn, options: CollectOptions) -> Collected:
    """Go on with every collection as far as it can go now, and announce the next one.

    Args:
        remote: the run; its id is known.
        condemn: retention's verdict on the commits.
        options: how.

    Raises:
        StoreError: a list failed or is short, the store creates not atomically, or it failed otherwise; what was begun
            is gone on with by the next call, of whatever node.
        UsageError: more than half of the steps would go.
        Interrupted: `stop` said so.
    """
    if not remote.store.capabilities.atomic_create:
        what, why = "this store cannot be collected", "it does not promise that of several writers one wins"
        raise StoreError(what, where=remote.store.url, why=why, remedy="use a driver or a service that does")
    return _Collector(remote, condemn, options).run()


class _Collector:
    def __init__(self, remote: Remote, condemn: Condemn, options: CollectOptions) -> None:
        self._remote, self._condemn, self._options = remote, condemn, options
        self._done = Collected()

    def run(self) -> Collected:
        options, done = self._options, self._done
        now_ns = options.now_ns()
        if not options.dry_run:  # it asks the clock with a put
            now_ns += self._remote.clock_offset_ns(options.node, options.now_ns)
        before_ns = now_ns - options.grace_ns
        seen = self._look(lambda: survey(self._remote, young_ns=before_ns if options.grace_ns else None))
        done.chunks, done.bytes = len(seen.chunks), sum(seen.chunks.values())
        whole = restorable(seen.tree, standing(seen.tree, void(seen.collections)))
        done.steps = len({step_in(commit) for commit in whole})
        seen = self._finish(seen, now_ns)
        waits = any(each.sweep is None for each in seen.collections)
        if not waits and self._announce(
            seen, before_ns
        ):  # also with a grace: what has been committed meanwhile must not stay void for so long
            seen = self._finish(self._look(lambda: survey_again(seen)), now_ns)
        self._delete(seen)
        return done

    def _look(self, surveyed: Callable[[], Survey]) -> Survey:
        self._heed()
        seen = surveyed()
        lost = missing(seen.collections, seen.tree)
        if lost and not self._options.force:  # another collection may have been put and swept while we listed
            lost = missing(self._remote.collections(), seen.tree)
            if lost:
                raise StoreError(
                    "the list of steps is short, nothing is collected",
                    where=lost,
                    why="a collection has seen and kept it, and none has deleted it since",
                    remedy="if it was deleted by hand, --force goes on without it",
                )
        return seen

    def _heed(self) -> None:
        if self._options.stop():
            what = "stopped"
            raise Interrupted(what, why="while collecting; the next collection goes on")

    # -- lists that were put before

    def _finish(self, seen: Survey, now_ns: int) -> Survey:
        """Put the sweep of every list that has waited long enough, or that turned out to be wrong."""
        self._done.waiting.clear()
        for collection in seen.collections:
            if collection.sweep is not None:
                continue
            self._heed()
            others = [each for each in seen.collections if each is not collection]
            until_ns = None if collection.listed_ns is None else collection.listed_ns + self._options.grace_ns
            over = not self._options.grace_ns or (until_ns is not None and until_ns <= now_ns)
            sweep: AbstractSet[str] | None = None
            if over:
                sweep = self._sweep_of(collection, seen, others)
            elif is_disturbed(collection, seen.tree, others):
                sweep = frozenset()
            if sweep is None:
                self._done.waiting.append(Waiting(collection.number, until_ns))
            else:
                seen = self._put_sweep(seen, collection, frozenset(sweep))
        return seen

    def _sweep_of(self, collection: Collection, seen: Survey, others: Iterable[Collection]) -> AbstractSet[str] | None:
        """What of a list goes; None = not to be known now."""
        cut = cut_sweep(collection, seen.tree, others)
        if cut is None:
            self._done.problems.append(f"collection {collection.number} is spared: it would leave no step")
            return frozenset()
        chunks = {key for key in collection.keys if "/chunks/" in key}
        if not self._spare_needed(chunks, seen, cut.roots):
            return None
        return cut.commits | cut.parts | chunks

    def _put_sweep(self, seen: Survey, collection: Collection, sweep: frozenset[str]) -> Survey:
        remote = self._remote
        if not self._options.dry_run:
            crash_point("collect.before-sweep")
            key = keys.sweep_key(remote.run, collection.number)
            if not remote.store.put_new(key, render(remote.run, remote.run_id, sweep)):
                decided = next((each for each in remote.collections() if each.number == collection.number), None)
                if decided is None or decided.sweep is None:
                    raise StoreUnavailable("a sweep came and went", where=key)
                sweep = decided.sweep
            crash_point("collect.after-sweep")
        self._done.swept[collection.number] = len(sweep)
        done = Collection(collection.number, collection.keys, collection.keeps, sweep, collection.listed_ns)
        after = tuple(done if each.number == done.number else each for each in seen.collections)
        return replace(seen, collections=after)

    def _spare_needed(self, chunks: set[str], seen: Survey, roots: Iterable[str]) -> bool:
        """Take out of `chunks` what the parts need; False = one cannot be read, so all may be needed."""
        for part, needs in seen.needs(roots):
            chunks -= needs.chunks
            if needs.head is None:
                why = "a part cannot be read, and nobody knows which chunks it needs"
                self._done.problems.append(f"no chunks are collected: {why}: {part}")
                return False
        return True

    # -- the next list

    def _announce(self, seen: Survey, before_ns: int) -> bool:
        """Put lists of what nothing needs; False = there is nothing, or another node was faster."""
        options, tree = self._options, seen.tree
        gone = void(seen.collections)
        stand = standing(tree, gone)
        heads = dict(self._read_heads(seen, frozenset().union(*stand.values())))
        ends = {commit: end_of(h for part in parts if (h := heads.get(part))) for commit, parts in stand.items()}
        wanted = self._condemn(seen)
        wanted = frozenset(commit for commit in stand if digest_in(commit) in wanted)
        condemned = bounded(wanted, tree, stand.keys(), ends, force=options.force, strict=options.strict)
        stay = restorable(tree, stand.keys() - condemned)
        cut = cut_list(
            tree,
            seen.collections,
            condemned,
            self._loose_heads(seen, stand, condemned),
            newest_ns=max((ends[commit] for commit in stay), default=0),
            before_ns=before_ns,
        )
        chunks = set(seen.chunks).difference(*(each.void for each in seen.collections))
        if not self._spare_needed(chunks, seen, cut.roots):
            chunks = set()
        return self._put_lists(seen, cut, sorted(chunks), stand.keys() - condemned)

    def _put_lists(self, seen: Survey, cut: Cut, chunks: list[str], keeps: AbstractSet[str]) -> bool:
        """Put as many lists as it takes; all commits and parts are in the first: they decide over the others."""
        first = max((each.number for each in seen.collections), default=0) + 1
        slices = [chunks[at : at + _CHUNKS_MAX] for at in range(0, len(chunks), _CHUNKS_MAX)] or [[]]
        names = [[*sorted(cut.commits), *sorted(cut.parts), *slices[0]], *slices[1:]]
        if not names[0]:
            return False
        if self._options.dry_run:
            self._done.announced = _announced(seen, first, names)
            return False
        for number, each in enumerate(names, first):
            if not self._put_list(number, each, keeps):
                names = names[: number - first]  # another node announces just now: the same, by and large
                break
        self._done.announced = _announced(seen, first, names) if names else None
        return bool(names)

    def _put_list(self, number: int, names: Iterable[str], keeps: AbstractSet[str]) -> bool:
        remote = self._remote
        if number > _NUMBER_MAX:
            what = "no collection can be numbered any more"
            raise StoreError(what, where=keys.gc_prefix(remote.run))
        self._heed()
        crash_point("collect.before-list")
        created = remote.store.put_new(
            keys.list_key(remote.run, number), render(remote.run, remote.run_id, names, keeps)
        )
        crash_point("collect.after-list")
        return created

    def _read_heads(self, seen: Survey, parts: Iterable[str]) -> Iterator[tuple[str, Head | None]]:
        for part, needs in seen.needs(part for part in parts if part in seen.tree.parts):
            yield part, needs.head

    def _loose_heads(
        self, seen: Survey, stand: Mapping[str, AbstractSet[str]], condemned: AbstractSet[str]
    ) -> dict[str, Head]:
        """Heads of the parts that no commit holds; one that cannot be read is as old as its object."""
        held = frozenset().union(*(parts for commit, parts in stand.items() if commit not in condemned))
        loose = seen.tree.parts.keys() - held - void(seen.collections)
        return {part: head or Head(0) for part, head in self._read_heads(seen, loose)}

    # -- deleting

    def _delete(self, seen: Survey) -> None:
        """Delete what sweeps name and the store still holds; in an order in which nothing ever lacks what it needs."""
        gone = swept(seen.collections)
        tree = seen.tree
        stand = {step_in(commit) for commit in standing(tree, gone)}  # void parts still tell where its saves begin
        commits = sorted(commit for commit in tree.commits if commit in gone)
        parts = [part for part in tree.parts if part in gone and step_in(part) not in stand]
        ready = [mark for mark in tree.ready if f"{_MARK.sub('/parts/', mark, count=1)}.json.zst" in gone]
        bad = [
            keys.bad_key(self._remote.run, digest) for commit in commits if (digest := digest_in(commit)) in tree.bad
        ]
        chunks = sorted({key for each in seen.collections for key in each.sweep or () if key in seen.chunks})
        if self._options.dry_run:
            self._done.deleted = len(commits) + len(bad) + len(ready) + len(parts) + len(chunks)
            self._done.freed = sum(seen.chunks[key] for key in chunks)
            return
        for names in (
            self._tags_of({digest_in(key) for key in (*commits, *parts)}),
            commits,
            bad,
            sorted(ready),
            sorted(parts),
            chunks,
        ):
            for name, refused in in_threads(self._delete_one, names):
                if refused:
                    self._done.refused.append(refused)
                else:
                    self._done.deleted += 1
                    self._done.freed += seen.chunks.get(name, 0)

    def _tags_of(self, digests: AbstractSet[str]) -> list[str]:
        """What people said of what goes. It goes first: afterwards nobody would look for it any more."""
        if not digests:
            return []
        prefix = keys.tags_prefix(self._remote.run)
        found = (meta.key for meta in self._remote.store.list(prefix))
        return [key for key in found if key[len(prefix) + 1 :].partition("/")[0] in digests]

    def _delete_one(self, key: str) -> tuple[str, str]:
        """The key, and why the store would not delete it: its policy or a lock is no reason to stop."""
        self._heed()
        try:
            self._remote.store.delete(key)
        except StoreUnavailable:
            raise
        except StoreError as error:
            return key, str(error)
        crash_point("collect.deleted")
        return key, ""


def _announced(seen: Survey, first: int, lists: list[list[str]]) -> Announced:
    names = [name for each in lists for name in each]
    chunks = [name for name in names if name in seen.chunks]
    commits = [name for name in names if name in seen.tree.commits]
    return Announced(
        first,
        len(lists),
        tuple(sorted({int(step_in(commit)) for commit in commits})),
        len(commits),
        len(names) - len(commits) - len(chunks),
        len(chunks),
        sum(seen.chunks[name] for name in chunks),
    )
