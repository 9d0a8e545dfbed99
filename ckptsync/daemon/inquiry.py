"""Asking the store on retention's behalf, in a thread: a slow or absent store delays neither a pass nor the trainer."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ckptsync.app import Node
from ckptsync.disk import durable
from ckptsync.disk.saves import Save
from ckptsync.errors import CkptsyncError
from ckptsync.store.base import ObjectMeta
from ckptsync.sync.notes import Pin, Said, Waiting
from ckptsync.sync.retain import Answer, Asked, Values, ask, look

__all__ = ["Inquiry", "Untold", "last_answer", "remember"]

_FRESH_S = 60.0
_AGAIN_S = 1.0
_AFTER_FAULT_S = 30.0
_FILE = "told.json"


@dataclass(frozen=True, slots=True)
class Untold:
    """A note that the store should have: its name, its save, and the digest that the store knows the save by."""

    name: str
    save: Save
    digest: str
    committed: bool


@dataclass(frozen=True, slots=True)
class _Brought:
    """What the thread has brought: an answer, the commits that were asked for, and when; or a fault."""

    answer: Answer | None = None
    asked: frozenset[str] = frozenset()
    at: float = 0.0
    fault: CkptsyncError | None = None


class Inquiry:
    """One question at a time, and the last answer.

    Args:
        node: opened.
        metric: of keep_best; "" = none.
        wake: called when there is an answer.

    Attributes:
        answer: the last one; before the first, what an earlier process learned of pins and lost commits.
        fault: why the last question has no answer.
    """

    def __init__(self, node: Node, metric: str, wake: Callable[[], None]) -> None:
        self._node, self._metric, self._wake = node, metric, wake
        self.answer: Answer | None = last_answer(node.config.state_dir)
        self.fault: CkptsyncError | None = None
        self._brought: _Brought | None = None
        self._asked: frozenset[str] = frozenset()
        self._asked_at: float | None = None
        self._fresh_until = 0.0
        self._thread: threading.Thread | None = None
        self._deferred = False
        self._read: dict[ObjectMeta, bytes] = {}
        self._values: Values = {}

    @property
    def busy(self) -> bool:
        """Whether a question is open (that ends with `settle`), or was put off for a moment."""
        return self._thread is not None or (self._deferred and self.fault is None)

    @property
    def fresh(self) -> bool:
        """Whether the answer is new enough to delete by it."""
        return time.monotonic() < self._fresh_until

    def lost(self, commit: str) -> bool | None:
        """Whether the store has lost a commit, by a fresh answer; None = it has not been asked for it."""
        if not self.fresh or self.answer is None or commit not in self._asked:
            return None
        return commit not in self.answer.there

    def values(self, commits: Collection[str]) -> bool:
        """Whether the metric of all of these is known."""
        return not commits or (self.answer is not None and set(commits) <= self.answer.values.keys())

    def settle(self) -> None:
        """Take in what the thread has brought. Between two calls nothing changes: a pass judges by one answer.

        Were the answer to come in the middle of a pass, what was judged by the one before would go because this one is
        fresh, though it may hold a pin.
        """
        self._deferred = False
        if self._brought is not None and self._thread is not None:
            self._thread.join()  # nothing is left to it but to wake the loop
            self._take(self._brought)
            self._brought = None
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None

    def _take(self, brought: _Brought) -> None:
        self.fault = brought.fault
        if brought.answer is not None:
            self.answer, self._asked = brought.answer, brought.asked
            self._fresh_until = brought.at + _FRESH_S

    def idle_s(self) -> float:
        """Seconds since the last question; endless before the first."""
        return float("inf") if self._asked_at is None else time.monotonic() - self._asked_at

    def ask(self, asked: Asked, untold: Sequence[Untold], waiting: Waiting) -> None:
        """Start a question, unless one is open or the last one was only just asked."""
        if self._thread is not None:
            return
        self._deferred = self.idle_s() < (_AGAIN_S if self.fault is None else _AFTER_FAULT_S)
        if self._deferred:
            return
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._do, args=(asked, tuple(untold), waiting), name="retention", daemon=True
        )
        self._thread.start()

    def _do(self, asked: Asked, untold: Sequence[Untold], waiting: Waiting) -> None:
        node = self._node
        try:
            remote = node.remote(create=False)
            for note in untold:
                waiting.tell(remote, note.name, note.save.part, note.digest, committed=note.committed)
            rules, window_ns = node.layout_of(), node.window_ns
            told = look(remote, rules, window_ns=window_ns, metrics=[self._metric], before=self._read)
            answer = ask(remote, asked, rules, told, window_ns=window_ns, metric=self._metric, values=self._values)
            remember(node.config.state_dir, answer)
        except CkptsyncError as error:
            self._brought = _Brought(fault=error)
        except Exception as error:  # noqa: BLE001 - one question's bug must not end the daemon: it is its problem
            fault = CkptsyncError("unexpected error while the store was asked", why=repr(error))
            self._brought = _Brought(fault=fault)
        else:
            committed = frozenset(digest for _, digest in asked.commits)
            self._brought = _Brought(answer, committed, time.monotonic())
        self._wake()


def remember(state_dir: str, answer: Answer) -> None:
    """Keep, for a later process that must delete before the store answers, what speaks against that: pins, and what
    the store has not any more. A full disk must not keep us from freeing it.
    """
    pins = [[pin.digest, pin.step, pin.saved_ns, pin.note] for pin in answer.said.pins]
    path = os.path.join(state_dir, _FILE)
    data = json.dumps({"pins": pins, "lost": sorted(answer.lost), "collected": sorted(answer.collected)}).encode()
    with contextlib.suppress(CkptsyncError, OSError):
        if not os.path.exists(path) or _read(path) != data:
            durable.publish(path, data)


def last_answer(state_dir: str) -> Answer | None:
    """What `remember` kept; None if there is nothing that can be read."""
    try:
        found = json.loads(_read(os.path.join(state_dir, _FILE)))
        rows, lost, collected = found["pins"], frozenset(found["lost"]), frozenset(found["collected"])
        pins = tuple(Pin(str(digest), int(step), int(saved_ns), str(note)) for digest, step, saved_ns, note in rows)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Answer(Said(pins), collected=collected, lost=lost)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
