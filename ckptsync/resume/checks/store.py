"""`store`: the bucket keeps its promises (ckptsync/store/base.py), tried on a few small objects of this node's own.

Create-if-absent has one winner, what was written is read and listed by another client at once, a replaced object is
replaced, a deleted one is gone. `ckptsync.testing.store` is the whole contract, for who writes an adapter. Where this
node may not delete (docs/operations.md), the same few objects are used again at each preflight, and stay.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ckptsync.errors import CkptsyncError, Interrupted, KeyMissing, StoreError, StoreRefused
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, failed, passed, warned
from ckptsync.store import keys
from ckptsync.store.base import Store
from ckptsync.stores import open_store

__all__ = ["broken_promises", "check"]

_BYTES_MAX = 4096
_WRITERS = 4
_LEFTOVER_NS = 3600 * 10**9
_UNRELIABLE = "this store loses or invents steps: use another one, or another [upload] driver"


def check(context: Context) -> Outcome:
    """fail: it cannot be reached, refuses, or breaks a promise; warn: no node can agree with another in it."""
    node = context.node
    config, run, name = node.config, node.config.run.name, node.config.node.name
    try:
        node.remote(create=False)
        clients = [open_store(config, patience_s=node.patience_s) for _ in range(2)]
        trial = _Trial(clients[0], clients[1], keys.contract_prefix(run, name))
        with trial.cleaned_up():
            found = broken_promises(trial)
    except (StoreError, Interrupted) as error:
        remedy = error.remedy or "check address, network and credentials"
        return failed(": ".join(part for part in (error.what, error.where, error.why) if part), remedy)
    if found:
        return failed(f"{clients[0].url}: {'; '.join(found)}", _UNRELIABLE)
    kept = "" if trial.deletes else "; this node may not delete, so three small objects stay there"
    said = f"{clients[0].url} keeps its promises{kept}"
    if clients[0].capabilities.atomic_create:
        return passed(said)
    remedy = "nodes that resume together need another store; one node alone does not"
    return warned(f"{said}, but it promises no single winner where two create one object", remedy)


@dataclass
class _Trial:
    """Where it is tried.

    Attributes:
        first, second: two clients.
        prefix: of this node's objects.
        deletes: whether this node may delete.
        token: what the names of this trial begin with; "" where they must be used again.
    """

    first: Store
    second: Store
    prefix: str
    deletes: bool = True
    token: str = ""

    def key(self, name: str) -> str:
        """An object of this trial."""
        return f"{self.prefix}/{self.token}{name}"

    @contextlib.contextmanager
    def cleaned_up(self) -> Iterator[None]:
        """Afterwards nothing is left of this trial, nor of one that was killed; a fault here must not hide another."""
        try:
            self.first.put(self.key("allowed"), b"")
            self.first.delete(self.key("allowed"))
            self.token = f"{secrets.token_hex(8)}-"
        except StoreRefused:
            self.deletes = False
        try:
            yield
        finally:
            if self.deletes:
                with contextlib.suppress(CkptsyncError):
                    self._clean()

    def _clean(self) -> None:
        before_ns = time.time_ns() - _LEFTOVER_NS
        for meta in self.first.list(self.prefix):
            if meta.key.startswith(self.key("")) or (meta.modified_ns is not None and meta.modified_ns < before_ns):
                self.first.delete(meta.key)


def broken_promises(trial: _Trial) -> list[str]:
    """What the store does not keep, a line each. Raises StoreError: it does not answer."""
    return [*_replacing(trial), *_creating(trial), *(_deleting(trial) if trial.deletes else ())]


def _replacing(trial: _Trial) -> Iterator[str]:
    key = trial.key("replaced")
    trial.first.put(key, b"longer than what follows")
    trial.second.put(key, b"short")
    if _read(trial.first, key) != b"short":
        yield "an object that was replaced is read as it was before"
    meta = trial.first.head(key)
    if meta is None or meta.size != len(b"short"):
        yield "an object that was written is not found, or has another size"
    if key not in _listed(trial.first, trial):
        yield "an object that was written is not listed"


def _read(client: Store, key: str) -> bytes | None:
    """What an object holds; None = it is not there."""
    try:
        return client.get(key, max_size=_BYTES_MAX)
    except KeyMissing:
        return None


def _listed(client: Store, trial: _Trial) -> set[str]:
    return {meta.key for meta in client.list(trial.prefix)}


def _creating(trial: _Trial) -> Iterator[str]:
    """One of several writers wins, and the object is his; a second create says that it is there."""
    key, clients = trial.key("created"), (trial.first, trial.second)
    before = trial.first.head(key) is not None  # only where nothing can be deleted
    barrier = threading.Barrier(_WRITERS)

    def write(writer: int) -> bytes | None:
        data = f"writer {writer} {secrets.token_hex(8)}".encode()
        barrier.wait()
        return data if clients[writer % 2].put_new(key, data) else None

    with ThreadPoolExecutor(_WRITERS) as pool:
        won = [data for data in pool.map(write, range(_WRITERS)) if data is not None]
    held = _read(trial.second, key)
    expected = 0 if before else 1
    if len(won) != expected and (trial.first.capabilities.atomic_create or not won):
        yield f"of {_WRITERS} writers that create one object {len(won)} are told that they did, not {expected}"
    elif won and held not in won:
        yield "the object that a writer created holds something else"
    if trial.second.put_new(key, b"late") or _read(trial.first, key) != held:
        yield "create-if-absent replaces what is there"


def _deleting(trial: _Trial) -> Iterator[str]:
    key = trial.key("replaced")
    trial.first.delete(key)
    if trial.second.head(key) is not None or key in _listed(trial.second, trial):
        yield "an object that was deleted is still there"
    if _read(trial.second, key) is not None:
        yield "an object that was deleted can be read"
