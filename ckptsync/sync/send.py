"""The chunks of a save on their way into the store: read, hash, encode, put, in a bounded number of threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ckptsync.chunks.adapt import Adaptive, Took, workers_for
from ckptsync.chunks.header import ROOM, Compression
from ckptsync.chunks.pool import run_bounded
from ckptsync.chunks.profile import Profile
from ckptsync.chunks.transfer import Sent, put_chunk, room_for
from ckptsync.disk.machine import Pressure, cores, is_idle
from ckptsync.disk.pieces import Piece, read_into
from ckptsync.disk.saves import Save
from ckptsync.disk.scan import file_stat
from ckptsync.errors import StepChanged
from ckptsync.model.manifest import ChunkRef
from ckptsync.model.yielding import Allowance
from ckptsync.store.base import Store
from ckptsync.store.traffic import Traffic

__all__ = ["AUTO_WORKERS", "Pace", "PushOptions", "Sender", "Source"]

AUTO_WORKERS = 6  # at most, where nobody set a number: more would not fit into the memory that is promised
_CHUNK = 8 * 1024 * 1024
_LOOK_S = 1.0
_REST_S = 5.0
_NAP_S = 0.1


@dataclass(frozen=True, slots=True)
class Source:
    """Where the save's bytes are: the staged tree, or the step directory itself."""

    root: str
    save: Save

    def chunk(self, pieces: Sequence[Piece]) -> memoryview:
        """`ROOM` bytes, and a chunk's raw ones; whether they are the verified ones is for `put_chunk` to say.

        Raises:
            StepChanged: a file is gone.
        """
        roomy = room_for(sum(length for _, _, length in pieces))
        try:
            read = read_into(self.root, pieces, roomy[ROOM:])
        except FileNotFoundError as error:
            raise StepChanged("the step vanished while it was read", where=str(error.filename)) from None
        return roomy[: ROOM + read]  # less if a file ended early

    def check_unmoved(self) -> None:
        """Raises StepChanged if any file's stat is not what it was at verification."""
        for path, before in self.save.stats.items():
            try:
                now = file_stat(os.stat(os.path.join(self.root, path)))
            except FileNotFoundError:
                raise StepChanged("the step vanished", where=os.path.join(self.root, path)) from None
            if not now.same_bytes(before):
                raise StepChanged("the step changed after it was verified", where=os.path.join(self.root, path))


@dataclass(slots=True)
class Pace:
    """What pushes of this process may take, and what they have learned of link and cores; from one push to the next.

    Attributes:
        yielding: give way while somebody on this machine is held up.
        hurry: true = for now not: the run ends, and nothing is left to give way to.
        pressure: what the kernel says of the machine.
    """

    yielding: bool = False
    hurry: Callable[[], bool] = lambda: False
    pressure: Pressure = field(default_factory=Pressure)
    adaptive: Adaptive = field(default_factory=Adaptive)
    busy_s: float = 0.0
    put_s: float = 0.0
    _allowance: Allowance = field(default_factory=lambda: Allowance(AUTO_WORKERS))
    _next_look: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, workers: int) -> None:
        """A push with at most so many workers begins."""
        if self._allowance.most != workers:
            self._allowance = Allowance(workers)
        self._allowance.idle = is_idle()
        with self._lock:
            self.adaptive.begin()

    def encode_next(self) -> bool:
        """Whether the next chunk is to be encoded."""
        with self._lock:
            return self.adaptive.choose()

    def learn(self, took: Took, *, adapt: bool) -> None:
        """Take note of a chunk that has been sent; `adapt`: it was asked for whether to encode it."""
        with self._lock:
            if adapt:
                self.adaptive.done(took)
            self.busy_s += (took.total_s - took.put_s - self.busy_s) / (8 if self.busy_s else 1)
            self.put_s += (took.put_s - self.put_s) / (8 if self.put_s else 1)

    def learn_nothing(self, *, encoded: bool) -> None:
        """A chunk that was asked for failed, or was in the store already."""
        with self._lock:
            self.adaptive.dropped(encoded=encoded)

    def limit(self, workers: int, *, auto: bool, count: int) -> int:
        """Chunks that may be worked on now."""
        self._look(time.monotonic())
        most = workers_for(count, self.busy_s, self.put_s, most=workers) if auto else workers
        return min(most, self._allowance.workers) if self._gives_way else most

    def rest_s(self, worked_s: float) -> float:
        """How long to rest after a chunk."""
        return min(worked_s, _REST_S) if self._gives_way and self._allowance.resting else 0.0

    @property
    def _gives_way(self) -> bool:
        return self.yielding and not self.hurry()

    def _look(self, now: float) -> None:
        if self.yielding and now >= self._next_look:
            self._next_look = now + _LOOK_S
            stalls = self.pressure.look(now)
            if stalls is not None:
                self._allowance.told(stalls)


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How to push.

    Attributes:
        workers: parallel chunks; None = as cores and link need.
        budget_bytes: raw bytes in flight at most; None = as the workers need.
        compression: codec choice; with "auto" chunks are sent as they are where encoding would make the push slower.
        window_ns: `commit.window`.
        pace: shared by the pushes of a process.
        traffic: what the store's requests cost beside their own time.
    """

    workers: int | None = None
    budget_bytes: int | None = None
    compression: Compression = "auto"
    window_ns: int = 3600 * 10**9
    pace: Pace = field(default_factory=Pace)
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def threads(self) -> int:
        """Workers at most."""
        return self.workers or AUTO_WORKERS


@dataclass(slots=True)
class Sender:
    """Sends chunks of one save.

    Attributes:
        source: where the bytes are.
        store: where to.
        options: how.
        key_of: the full key of a chunk.
        stop: true = no further chunk, and no further rest.
        profile: where the time goes; filled while chunks are sent.
    """

    source: Source
    store: Store
    options: PushOptions
    key_of: Callable[[ChunkRef], str]
    stop: Callable[[], bool]
    profile: Profile = field(default_factory=Profile)

    def send(self, chunks: Sequence[tuple[ChunkRef, Sequence[Piece]]], done: Callable[[ChunkRef], None]) -> None:
        """Send chunks, each given with its pieces; `done` is told of each that is in the store.

        Raises:
            Interrupted, StepChanged, StoreError: as `push`.
        """
        options, count = self.options, cores()
        threads = self.profile.threads = min(options.threads, max(len(chunks), 1))
        options.pace.begin(options.threads)
        before, begun = options.traffic.now(), time.perf_counter()
        try:
            run_bounded(
                chunks,
                lambda item: self._work(*item),
                workers=threads,
                limit=lambda: options.pace.limit(options.threads, auto=options.workers is None, count=count),
                budget_bytes=options.budget_bytes or options.threads * _CHUNK,
                cost=lambda item: item[0].size,
                stop=self.stop,
                done=lambda item, sent: self._done(item[0], sent, done),
            )
        finally:
            self.profile.chunks_s = time.perf_counter() - begun
            retries, retry_s, throttled_s = options.traffic.now()
            self.profile.waited(retries - before[0], retry_s - before[1], throttled_s - before[2])

    def _work(self, ref: ChunkRef, pieces: Sequence[Piece]) -> Sent:
        options, begun = self.options, time.perf_counter()
        pace, adapt = options.pace, options.compression == "auto"
        encoded = pace.encode_next() if adapt else True
        sent: Sent | None = None
        try:
            sent = put_chunk(
                self.store,
                self.key_of(ref),
                ref.digest,
                lambda: self.source.chunk(pieces),
                options.compression if encoded else "none",
            )
        finally:
            ended = time.perf_counter()
            if sent is not None and sent.size:
                took = Took(encoded, ref.size, sent.encode_s, sent.put_s, ended - begun)
                pace.learn(took, adapt=adapt)
            elif adapt:
                pace.learn_nothing(encoded=encoded)
        self._rest(pace.rest_s(ended - begun))
        return sent

    def _done(self, ref: ChunkRef, sent: Sent, done: Callable[[ChunkRef], None]) -> None:
        self.profile.add(ref.size, sent)
        done(ref)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.stop():
            time.sleep(min(left, _NAP_S))
