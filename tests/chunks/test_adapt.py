"""Never much slower than the better of sending raw and encoding, whatever link, cores and data are like."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckptsync.chunks.adapt import MARGIN, Adaptive, Took, workers_for

SIZE = 8.0  # MB of a chunk
LEARNING = 12  # chunks for each worker that may be sent the wrong way until the first verdict


@dataclass(frozen=True)
class Machine:
    """Processors and link are shared equally by all that need them at the moment.

    cores; link and stream: MB/s of all puts together, and of one at most; latency: s before each put; cpu and encode:
    core seconds of a chunk besides, and for, encoding; ratio: encoded to raw.
    """

    workers: int
    cores: int
    link: float
    stream: float
    latency: float
    cpu: float
    encode: float
    ratio: float


class Job:
    """A chunk on its way: cpu, encode, latency, put."""

    def __init__(self, machine, encoded, now):
        link = SIZE * (machine.ratio if encoded else 1.0)
        self.phases = [machine.cpu, machine.encode if encoded else 0.0, machine.latency, link]
        self.encoded, self.times = encoded, [now]

    @property
    def phase(self):
        return len(self.times) - 1

    def on_cpu(self):
        return self.phase < 2

    def on_link(self):
        return self.phase == 3


def simulate(machine, chunks, choose, done):
    """Seconds that a push of so many chunks takes."""
    now, started, jobs = 0.0, 0, []
    while started < chunks or jobs:
        while started < chunks and len(jobs) < machine.workers:
            jobs.append(Job(machine, choose(), now))
            started += 1
        cpu = min(1.0, machine.cores / max(1, sum(job.on_cpu() for job in jobs)))
        link = min(machine.stream, machine.link / max(1, sum(job.on_link() for job in jobs)))
        rates = [cpu if job.on_cpu() else link if job.on_link() else 1.0 for job in jobs]
        step = min(job.phases[job.phase] / rate for job, rate in zip(jobs, rates, strict=True))
        now += step
        for job, rate in zip(jobs, rates, strict=True):
            job.phases[job.phase] -= rate * step
        for job in [job for job in jobs if job.phases[job.phase] <= 1e-9]:
            job.times.append(now)
            if job.phase == 4:
                begun, read, encoded, _, end = job.times
                jobs.remove(job)
                done(Took(job.encoded, int(SIZE * 1e6), encoded - read, end - encoded, end - begun))
    return now


def seconds(machine, chunks, *, encode=None):
    """Always or never encoding, or as `Adaptive` says; and how many chunks were encoded."""
    adaptive, counts = Adaptive(), [0, 0]
    adaptive.begin()

    def choose():
        chosen = adaptive.choose() if encode is None else encode
        counts[chosen] += 1
        return chosen

    took = simulate(machine, chunks, choose, adaptive.done if encode is None else lambda _: None)
    return took, counts[True]


machines = st.builds(
    Machine,
    workers=st.integers(1, 16),
    cores=st.integers(1, 32),
    link=st.floats(10, 10_000),
    stream=st.floats(50, 3000),
    latency=st.floats(0, 0.2),
    cpu=st.floats(0.002, 0.06),
    encode=st.floats(0.002, 0.2),
    ratio=st.floats(0.3, 0.97),
)
FAST_LINK = Machine(4, 2, 5000, 2000, 0.001, 0.005, 0.05, 0.83)
SLOW_LINK = Machine(4, 2, 120, 120, 0.001, 0.005, 0.013, 0.83)


@settings(deadline=None, max_examples=40)
@given(machine=machines)
@example(machine=FAST_LINK)
@example(machine=SLOW_LINK)
@example(machine=Machine(8, 2, 425, 975, 0.005, 0.018, 0.031, 0.56))
@example(machine=Machine(16, 1, 9700, 855, 0.005, 0.013, 0.085, 0.87))
def test_a_push_takes_hardly_longer_than_the_better_way(machine):
    chunks = 1200
    raw, _ = seconds(machine, chunks, encode=False)
    encoded, _ = seconds(machine, chunks, encode=True)
    adaptive, _ = seconds(machine, chunks)
    learning = LEARNING * machine.workers / chunks * max(raw, encoded)
    assert adaptive <= (MARGIN + 0.06) * min(raw, encoded) + learning


def test_behind_a_slow_link_everything_is_encoded():
    assert seconds(SLOW_LINK, 1000)[1] >= 940  # the others were trials


def test_where_encoding_holds_up_a_fast_link_nearly_everything_goes_as_it_is():
    assert seconds(FAST_LINK, 1000)[1] <= 60


def test_encoding_is_preferred_while_it_costs_little():
    machine = Machine(4, 2, 5000, 2000, 0.001, 0.05, 0.004, 0.83)
    assert seconds(machine, 1000)[1] >= 980


def test_the_verdict_follows_the_link_and_is_kept_from_one_push_to_the_next():
    adaptive = Adaptive()
    for machine, expected in ((FAST_LINK, False), (FAST_LINK, False), (SLOW_LINK, True)):
        adaptive.begin()
        simulate(machine, 1500, adaptive.choose, adaptive.done)
        assert adaptive.encoding is expected
    encoded = []
    adaptive.begin()
    simulate(SLOW_LINK, 50, lambda: encoded.append(adaptive.choose()) or encoded[-1], adaptive.done)
    assert sum(encoded) >= 45


@given(outcomes=st.lists(st.sampled_from(["done", "dropped", "begin"]), max_size=300))
def test_chunks_that_fail_leave_no_trace(outcomes):
    """A scout that is lost goes again, and what is in flight is counted right."""
    adaptive = Adaptive()
    adaptive.begin()
    for outcome in outcomes:
        if outcome == "begin":
            adaptive.begin()
            continue
        encoded = adaptive.choose()
        if outcome == "done":
            adaptive.done(Took(encoded, 8_000_000, 0.9 if encoded else 0.0, 0.1, 1.0 if encoded else 0.1))
        else:
            adaptive.dropped(encoded=encoded)
        assert adaptive._flight == 0


def test_as_many_workers_as_keep_the_processors_busy():
    assert workers_for(2, 0.01, 0.0, most=8) == 2
    assert workers_for(2, 0.01, 0.01, most=8) == 4
    assert workers_for(2, 0.01, 1.0, most=8) == 8
    assert workers_for(1, 1.0, 0.0, most=8) == 2
    assert workers_for(64, 0.01, 0.01, most=8) == 8
    assert workers_for(2, 0.0, 0.0, most=8) == 8
    assert workers_for(2, 1.0, 0.0, most=1) == 1
