"""Whether encoding pays: it stops where a push waits for it, and sending raw bytes is measured to be faster."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["MARGIN", "Adaptive", "Took", "workers_for"]

MARGIN = 1.25  # encoding may cost this much time: what is stored costs money for as long as it is kept
BACK = 0.85  # how near to raw encoding must come to be taken up again: nearer to 1 / MARGIN, noise would flap it
SHARE = 1 - 1 / MARGIN  # of its workers' time encoding takes at least where doing without can gain that much
WINDOW = 12  # chunks at least that a rate is measured over, or so many of each worker:
STEADY, TRIAL = 4, 3  # a trial also has two that only fill the pipeline
SCOUTS = 3  # one alone may be lucky
HOPELESS = 0.9  # of the goal: a trial this far behind after one chunk of each worker is over
REGRET = 0.01  # share of the time that trials may cost
REST, REST_MAX = 64.0, 1024.0  # chunks between trials

Phase = Literal["steady", "scout", "trial"]


@dataclass(frozen=True, slots=True)
class Took:
    """One chunk: whether it was to be encoded, its raw bytes, and seconds of encoding, of putting, of all."""

    encoded: bool
    raw: int
    encode_s: float
    put_s: float
    total_s: float


@dataclass(slots=True)
class _Window:
    """Chunks that ended, after those of before (`warm_up`) have left the pipeline.

    The rate follows from how long each was on its way and how many were at once (Little's law): chunks that end in
    bursts do not disturb it, and no clock is needed.
    """

    warm_up: int = 0
    count: int = 0
    raw: int = 0
    encode_s: float = 0.0
    total_s: float = 0.0
    flight: int = 1

    def add(self, took: Took, flight: int) -> None:
        if self.warm_up > 0:
            self.warm_up -= 1
            return
        self.count += 1
        self.raw += took.raw
        self.encode_s += took.encode_s
        self.total_s += took.total_s
        self.flight = max(self.flight, flight)

    def holds(self, each: int) -> bool:
        """Whether it has seen so many chunks of each worker."""
        return self.count >= max(WINDOW, each * self.flight)

    @property
    def rate(self) -> float:
        """Raw bytes per second."""
        return self.flight * self.raw / max(self.total_s, 1e-9)

    @property
    def share(self) -> float:
        """Of the workers' time that went into encoding."""
        return self.encode_s / max(self.total_s, 1e-9)


@dataclass(slots=True)
class Adaptive:
    """Decides for each chunk whether it is encoded.

    No model of machine or link: what counts is the rate at which raw bytes get done, measured with and without
    encoding. A trial costs time where the other way is the slower one, so it has three locks: encoding must take a
    notable share of the workers' time; scouts (three chunks) must show that the other way could win if nobody stood in
    its way; and trials are so far apart that they cost a hundredth of the time.

    Deterministic, and without a clock. Not safe for threads by itself.

    Attributes:
        encoding: the way that has shown to be the better one.
    """

    encoding: bool = True
    _phase: Phase = "steady"
    _window: _Window = field(default_factory=_Window)
    _rate: float = 0.0
    _scouts: int = 0
    _scouted: _Window = field(default_factory=_Window)
    _rest: float = 0.0
    _pause: float = REST
    _flight: int = 0
    _most: int = 1

    def begin(self) -> None:
        """A push begins: nothing is in flight."""
        self._flight, self._most, self._window, self._phase = 0, 1, _Window(), "steady"

    def choose(self) -> bool:
        """Whether the next chunk is to be encoded."""
        self._flight += 1
        self._most = max(self._most, self._flight)
        if self._phase == "scout" and self._scouts:
            self._scouts -= 1
            return not self.encoding
        return self.encoding != (self._phase == "trial")

    def done(self, took: Took) -> None:
        """Tell of a chunk that is in the store."""
        flight, self._flight = self._flight, self._flight - 1
        other = took.encoded != self.encoding
        if self._phase == "trial":
            self._window.add(took, flight)
            self._judge()
        elif self._phase == "scout" and other:
            self._report(took, flight)
        elif not other:
            self._measure(took, flight)

    def dropped(self, *, encoded: bool) -> None:
        """A chunk that was chosen for tells nothing: it failed, or was in the store already."""
        self._flight -= 1
        if self._phase == "scout" and encoded != self.encoding:
            self._scouts += 1

    def _measure(self, took: Took, flight: int) -> None:
        self._rest -= 1
        window = self._window
        window.add(took, flight)
        if not window.holds(STEADY):
            return
        self._rate, self._window = window.rate, _Window()
        if self._phase == "steady" and self._rest <= 0 and (not self.encoding or window.share >= SHARE):
            self._phase, self._scouts, self._scouted = "scout", SCOUTS, _Window()

    def _goal(self) -> float:
        """The rate at which the other way is the better one."""
        return self._rate * (MARGIN if self.encoding else BACK)

    def _report(self, took: Took, flight: int) -> None:
        """A scout is back. At best all go as fast: without encoders beside it, a raw one waits for the link alone."""
        scouted = self._scouted
        scouted.add(replace(took, total_s=took.put_s) if self.encoding else took, flight)
        if scouted.count < SCOUTS:
            return
        scouted.flight = self._most
        if scouted.rate > self._goal():
            self._phase, self._window = "trial", _Window(warm_up=2 * self._most)
        else:
            self._give_up(SCOUTS, scouted.rate)

    def _judge(self) -> None:
        window = self._window
        hopeless = window.count >= window.flight and window.rate <= HOPELESS * self._goal()
        full = window.holds(TRIAL)
        if full and window.rate > self._goal():
            self.encoding = not self.encoding
            self._phase, self._rate, self._rest, self._pause = "steady", window.rate, REST, REST
            self._window = _Window()
        elif full or hopeless:
            self._give_up(window.count + 2 * self._most, window.rate)

    def _give_up(self, chunks: int, rate: float) -> None:
        """Go on as before; try again when what these chunks have cost is a hundredth of the time."""
        lost = chunks * max(self._rate / max(rate, 1e-9) - 1, 0.0)
        self._pause = min(REST_MAX, 2 * self._pause)
        self._phase, self._rest = "steady", max(self._pause, lost / REGRET)
        self._window = _Window(warm_up=self._most)


def workers_for(cores: int, busy_s: float, put_s: float, *, most: int) -> int:
    """Threads that keep `cores` processors busy, when a chunk takes `busy_s` of one, then waits `put_s` for the store.

    So it is few where encoding is the bottleneck, and many where requests take long.
    """
    wanted = cores * (1 + put_s / busy_s) if busy_s > 0 else most
    return min(most, max(2, math.ceil(wanted)))
