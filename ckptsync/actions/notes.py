"""`pin`, `unpin` and `tag`: what people say of a save, wherever it is by now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ckptsync.actions.overview import look_once
from ckptsync.actions.push import LOCK_S, first_reason, settle_local
from ckptsync.app import Node
from ckptsync.daemon.retention_plan import commit_of, digests_of
from ckptsync.disk.saves import Save
from ckptsync.errors import CheckpointError, ConflictError, StoreError, StoreUnavailable
from ckptsync.model.merge import Union
from ckptsync.model.step import LocalState
from ckptsync.store import keys
from ckptsync.sync.commit import check_commit
from ckptsync.sync.notes import Note, Pin, Waiting, identity, put_pin, put_tag, read_said, remove_pins
from ckptsync.sync.remote import Remote

__all__ = ["Target", "pin_step", "tag_step", "unpin_step"]

Say = Callable[[str], None]
"""Told that, and for whom, a command waits."""


@dataclass(frozen=True, slots=True)
class Target:
    """The save that a step number stands for now: the newest of that number, here or in the store.

    Attributes:
        step: its number.
        save: as this node has it; None if only the store has it.
        commit: digest of its commit; "" = none yet.
        digests: all that the store knows it by.
        saved_ns: when it was saved, in store time as far as this node knows that.
    """

    step: int
    save: Save | None
    commit: str
    digests: tuple[str, ...]
    saved_ns: int


@dataclass
class _Store:
    """The store, or why it does not answer."""

    remote: Remote | None = None
    fault: StoreError | None = None

    def need(self) -> Remote:
        """Raises StoreError."""
        if self.remote is None:
            raise self.fault or StoreUnavailable("the store does not answer")
        return self.remote


def pin_step(node: Node, step: int, note: str, *, say: Say) -> Target:
    """Keep a step on all nodes and in the store, whatever the policies say. One that is not sent yet becomes due.

    Raises:
        CheckpointError: there is no such step, or it is broken or incomplete.
        ConflictError: a collection is deleting it already.
        StoreError: the store does not answer; a pin of a step of this disk holds here, and is brought there later.
    """
    target, store = _find(node, step, say)
    if target.commit:
        remote = store.need()
        put_pin(remote, Pin(target.commit, step, target.saved_ns, note))
        _require_standing(remote, target)
        return target
    assert target.save is not None, "what has no commit is here"
    node.saves.mark(target.save, "due", "pinned")
    _wait(node, target, lambda known: replace(known, pin=note, told=""))
    _tell(node, target, store, "pinned on this node only")
    return target


def tag_step(node: Node, step: int, tags: dict[str, float], *, say: Say) -> Target:
    """Give a step values by name, for `keep_best` on all nodes. Raises as `pin_step`."""
    target, store = _find(node, step, say)
    if target.commit:
        for name, value in tags.items():
            put_tag(store.need(), target.commit, name, value)
        return target
    _wait(node, target, lambda known: replace(known, tags={**known.tags, **tags}, told=""))
    _tell(node, target, store, "tagged on this node only")
    return target


def unpin_step(node: Node, step: int, *, say: Say) -> int:
    """Take the pins of a step away; returns how many there were.

    Raises:
        StoreRefused: this role may not delete in the store.
        StoreError: the store does not answer; nothing was taken away.
    """
    remote = node.remote(create=False)
    try:
        target, _ = _find(node, step, say)
    except CheckpointError:
        target = None  # it is gone everywhere: its pins may go, too
    found = [pin for pin in read_said(remote).pins if _is_of(pin, step, target, node.window_ns)]
    remove_pins(remote, (pin.digest for pin in found))
    waiting = Waiting(node.config.state_dir)
    count = len(found)
    for name, note in waiting.all().items():
        if note.step == step and note.pin is not None:
            waiting.put(name, replace(note, pin=None))
            count += not note.told
    return count


def _is_of(pin: Pin, step: int, target: Target | None, window_ns: int) -> bool:
    if target is None:
        return pin.step == step
    return pin.digest in target.digests or (pin.step == step and abs(pin.saved_ns - target.saved_ns) <= window_ns)


# -- which save


def _find(node: Node, step: int, say: Say) -> tuple[Target, _Store]:
    store = _Store()
    best: tuple[Union, str] | None = None
    try:
        store.remote = node.remote(create=False)
        best = _newest_commit(node, store.remote, step)
    except StoreError as error:
        store.fault, store.remote = error, None
    save = _local_save(node, step, say)
    if save is None and best is None:
        if store.fault is not None:
            raise store.fault
        remedy = "`ckptsync steps` shows what is there"
        raise CheckpointError(f"there is no step {step}", where=node.output_dir, remedy=remedy)
    return _target(node, step, save, best), store


def _target(node: Node, step: int, save: Save | None, best: tuple[Union, str] | None) -> Target:
    mine = digests_of(node, save, commit_of(node, save)) if save is not None else []
    if best is not None:
        union, digest = best
        parts = [part.digest for part in union.parts]
        if save is None or digest in mine or set(parts) & set(mine) or union.end_ns > save.part.saved_ns:
            return Target(step, save if {digest, *parts} & set(mine) else None, digest, (digest, *parts), union.end_ns)
    assert save is not None, "one of the two is there"
    return Target(step, save, commit_of(node, save), tuple(mine), save.part.saved_ns)


def _newest_commit(node: Node, remote: Remote, step: int) -> tuple[Union, str] | None:
    index, condemned, rules = remote.index(step), remote.condemned(), node.layout_of()
    found = []
    for digest in index.commits:
        union, _ = check_commit(remote, index, digest, rules, condemned, window_ns=node.window_ns)
        if union is not None:
            found.append((union, digest))
    return max(found, key=lambda pair: (pair[0].end_ns, len(pair[0].files), pair[1]), default=None)


def _local_save(node: Node, step: int, say: Say) -> Save | None:
    """The verified save in the directory of a step; verified now if that has not been done yet."""
    local = node.recognise()
    if local is None:
        return None
    view = next((view for view in look_once(node, local) if view.step == step), None)
    if view is not None and view.state in (LocalState.COMPLETE, LocalState.SETTLING):
        lock = node.lock()
        lock.acquire(LOCK_S, waiting=say)
        try:
            view = next((view for view in settle_local(local) if view.step == step), None)
        finally:
            lock.release()
    if view is None or view.state is LocalState.PRUNED:
        return None
    if view.save is None:
        raise CheckpointError(f"step {step} is {view.state.value}", where=view.listing.path, why=first_reason([view]))
    return view.save


# -- saying it


def _wait(node: Node, target: Target, change: Callable[[Note], Note]) -> None:
    """Remember it here: it waits for the commit."""
    assert target.save is not None, "what has no commit is here"
    waiting, name = Waiting(node.config.state_dir), identity(target.save.part)
    waiting.put(name, change(waiting.get(name) or Note(target.step)))


def _tell(node: Node, target: Target, store: _Store, what: str) -> None:
    """Bring it to the store at once if the store knows the save by its part; else the daemon does, after the upload."""
    assert target.save is not None, "what has no commit is here"
    if store.remote is not None and not target.digests:
        return
    try:
        remote = store.need()
        waiting = Waiting(node.config.state_dir)
        waiting.tell(remote, identity(target.save.part), target.save.part, target.digests[0], committed=False)
    except StoreError as error:
        remedy = "the daemon tells the store once it answers"
        raise StoreUnavailable(what, where=error.where, why=error.why or error.what, remedy=remedy) from error


def _require_standing(remote: Remote, target: Target) -> None:
    """Each side writes before it reads: a collection that has not seen the pin is seen by us."""
    names = {keys.commit_key(remote.run, target.step, target.commit)}
    if names & remote.condemned().void:
        why, remedy = "a collection has condemned it", "the pin holds if the collection spares it: look again later"
        raise ConflictError(f"step {target.step} may be lost", where=remote.store.url, why=why, remedy=remedy)
