"""The record of a launch: put into the store while the trainer starts, with signs of life, and its end.

A script may hide what the trainer is given: its own process is looked for, and what that was given is kept beside the
record, which stays what was typed.

All of it happens in a thread. A store that is slow or out of reach, or a trainer's Python that takes its time to say
what it has, keeps nobody waiting: the record may come a minute late, and the launch still has begun when it did.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

from ckptsync.actions.sighting import Seen, Sighting
from ckptsync.app import Node
from ckptsync.errors import CkptsyncError
from ckptsync.model.launch import LaunchRecord, local_attempt
from ckptsync.model.ran import RAN, Ran
from ckptsync.model.secrets import hide_words
from ckptsync.resume.contents.datasets import describe_inputs
from ckptsync.resume.sources.interpreter import find_interpreter
from ckptsync.resume.sources.origin import settings_now
from ckptsync.sync.launches import ALIVE_S, Launches
from ckptsync.sync.remote import Remote

__all__ = ["GIVEN", "Recording", "Started"]

GIVEN = "given"
"""The note with the command as it was given, where that has a place for the resume arguments."""
_AGAIN_S = 30.0
_END_S = 5.0
_PATIENCE_S = 20.0
_POLL_S = 1.0
T = TypeVar("T")


class _Inputs(TypedDict):
    settings: Mapping[str, object]
    explicit: frozenset[str]
    complete: bool
    versions: Mapping[str, str]
    datasets: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Started:
    """What a launch is made of.

    Attributes:
        words: the command as it runs.
        given: the command as it was given, where it is another one; else empty.
        cwd, env: of the command.
        root: the process below which the trainer is looked for.
        python: the trainer's interpreter, if it was named.
        attempt: the id that the nodes share; "" = none.
        step, commit: what it resumes from.
        at_ns: when it began, by this node's clock.
    """

    words: tuple[str, ...]
    given: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    root: int
    python: str | None = None
    attempt: str = ""
    step: int | None = None
    commit: str = ""
    at_ns: int = field(default_factory=time.time_ns)


class Recording:
    """One launch, on its way into the store.

    Args:
        node: opened for nothing else; it is told to give up at the end.
        started: what is recorded.
        say: told once if the store does not take it.
    """

    def __init__(self, node: Node, started: Started, say: Callable[[str], None]) -> None:
        self._node, self._started, self._say = node, started, say
        self._over, self._given_up = threading.Event(), threading.Event()
        self._code, self._close_at = 0, 0.0
        self._told: set[str] = set()
        self._launches: Launches | None = None
        self._record: LaunchRecord | None = None
        run = node.config.run
        self._sighting = Sighting(started.root, started.words, run.output_dir, run.trainer_dir)
        self._unkept: Ran | None = None
        node.stopped, node.patience_s = self._given_up.is_set, _PATIENCE_S
        self._thread = threading.Thread(target=self._run, name="launch record", daemon=True)
        self._thread.start()

    @property
    def is_below(self) -> bool:
        """Whether the trainer is known to be one of the processes of the command, so that it ends with the last."""
        return self._sighting.direct

    def end(self, code: int) -> None:
        """The command has ended with this exit code."""
        self._code = code
        self._close_at = time.monotonic() + _END_S
        self._over.set()

    def close(self) -> bool:
        """Give that a little time, from the end on. Returns whether the thread has ended; if not, leave hard."""
        if not self._told:
            self._thread.join(max(0.0, self._close_at - time.monotonic()))
        self._given_up.set()
        self._thread.join(_POLL_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (put := self._try(self._put, "this launch is not recorded yet")) is None:
            if self._over.wait(_AGAIN_S):
                return
        launches, record = put
        pause_s = self._look(launches, record)
        while not self._over.wait(pause_s):
            launches.alive(record)
            pause_s = self._look(launches, record)
        self._try(lambda: launches.ended(record, self._code), "the end of this launch is not recorded")

    def _look(self, launches: Launches, record: LaunchRecord) -> float:
        """Look for the trainer, and keep what is new; seconds until the next look."""
        self._try(self._see, "the trainer's own arguments are not known")
        self._try(lambda: self._keep(launches, record), "the trainer's own arguments are not recorded")
        return min(self._sighting.pause_s, ALIVE_S)

    def _keep(self, launches: Launches, record: LaunchRecord) -> None:
        if self._unkept is not None:
            launches.note(record, RAN, self._unkept.to_note())
            self._unkept = None

    def _see(self) -> None:
        seen = self._sighting.look()
        if seen is None:
            return
        self._unkept = Ran(why=seen.why) if seen.why else self._ran(seen)
        if seen.why:
            self._say(f"the launch record cannot tell what the trainer was given: {seen.why}")

    def _ran(self, seen: Seen) -> Ran:
        words, cwd = seen.process.words, seen.process.cwd
        program = os.path.join(cwd, words[0]) if "/" in words[0] else words[0]
        return Ran(argv=words, cwd=cwd, **self._inputs((program, *words[1:]), cwd, seen.env))

    def _try(self, what: Callable[[], T], failed: str) -> T | None:
        try:
            return what()
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on without a record
            if failed not in self._told:
                self._told.add(failed)
                self._say(f"{failed}: {error if isinstance(error, CkptsyncError) else repr(error)}")
            return None

    def _put(self) -> tuple[Launches, LaunchRecord]:
        remote = self._node.remote()
        if self._launches is None:
            self._launches = Launches(remote)
        if self._record is None:  # once: what was put by a request whose reply was lost is put again
            self._record = self._make(self._launches, remote)
        self._launches.put(self._record)
        if self._started.given:
            self._launches.note(self._record, GIVEN, {"argv": list(hide_words(self._started.given))})
        return self._launches, self._record

    def _make(self, launches: Launches, remote: Remote) -> LaunchRecord:
        node, started = self._node, self._started
        inputs = self._inputs(started.words, started.cwd, started.env)
        at_ns = started.at_ns + launches.now_ns(node.config.node.name) - time.time_ns()
        return LaunchRecord(
            run=remote.run,
            run_id=remote.run_id,
            attempt=started.attempt or local_attempt(at_ns),
            node=node.config.node.name,
            started_ns=at_ns,
            argv=started.words,
            cwd=started.cwd,
            resumed_step=started.step,
            resumed_commit=started.commit,
            **inputs,
        )

    def _inputs(self, words: Sequence[str], cwd: str, env: Mapping[str, str]) -> _Inputs:
        """What a trainer with these words uses."""
        python = find_interpreter(words, self._started.python, env)
        settings = settings_now(words, python, cwd=cwd, env=env)
        return {
            "settings": {name: known.value for name, known in settings.values.items()},
            "explicit": settings.explicit,
            "complete": settings.complete,
            "versions": python.versions() if python is not None else {},
            "datasets": describe_inputs(settings, self._node, cwd),
        }
