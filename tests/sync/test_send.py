"""What a push takes of the machine, and what it tells of where its time went."""

from __future__ import annotations

import pytest

from ckptsync.chunks.profile import STAGES, Profile
from ckptsync.chunks.transfer import Sent
from ckptsync.disk.machine import Pressure
from ckptsync.errors import StoreRefused
from ckptsync.sync.send import AUTO_WORKERS, Pace
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore


@pytest.mark.parametrize("compression", ["auto", "zstd", "none"])
def test_the_profile_adds_up_with_what_is_in_the_store(bench, compression):
    verl_step(bench.out("a"), 20, n=300_000)
    node = bench.node("a", extra=f'compression = "{compression}"\n')
    pushed = bench.push(node, 20)
    stored = {meta.key: meta.size for meta in bench.store.list("run") if "/chunks/" in meta.key}
    profile = pushed.profile
    assert (profile.chunks, profile.sent) == (len(stored), sum(stored.values()))
    assert profile.raw == pushed.bytes_total
    assert sum(profile.codecs.values()) == profile.chunks
    assert set(profile.codecs) == {"none": {"raw"}, "zstd": {"zstd", "raw"}}.get(compression, set(profile.codecs))
    described = profile.describe()
    assert described["stages_s"].keys() == set(STAGES)
    assert all(seconds >= 0 for seconds in described["stages_s"].values())
    assert 0 < profile.chunks_s <= profile.wall_s
    stages = profile.read_s + profile.hash_s + profile.encode_s + profile.put_s
    assert stages <= profile.threads * profile.chunks_s

    node.saves.unmark(bench.save(node, 20), "ready")
    again = bench.push(node, 20).profile
    assert (again.chunks, again.sent) == (0, 0)
    assert (again.skipped, again.skipped_raw) == (profile.chunks, profile.raw)
    assert "already" in again.bottleneck


def test_retries_are_told(bench):
    verl_step(bench.out("a"), 20, n=3_000)
    node = bench.node("a", url=f"file://{bench.root}/store")
    remote = node.remote()
    remote.store._inner = FaultyStore(remote.store._inner, [Fault("put_new", "before", key="*chunks*", times=2)])
    assert bench.push(node, 20).profile.retries == 2


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"read_s": 8.0}, "disk"),
        ({"encode_s": 8.0}, "encoding"),
        ({"hash_s": 8.0}, "hashing"),
        ({"put_s": 8.0}, "link"),
        ({"throttled_s": 8.0}, "bandwidth limit"),
        ({}, "Waiting"),
        ({"put_s": 8.0, "wall_s": 100.0}, "latency"),
    ],
)
def test_the_bottleneck_in_a_sentence(seconds, said):
    profile = Profile(**{"wall_s": 3.0, "chunks_s": 2.5, "threads": 4, "chunks": 1, **seconds})
    assert said in profile.bottleneck


def test_waiting_is_no_putting():
    profile = Profile(wall_s=10.0, chunks_s=10.0, threads=1)
    profile.add(100, Sent(80, "planes", 1.0, 1.0, 1.0, 7.0))
    profile.waited(retries=1, retry_s=2.0, throttled_s=4.0)
    assert (profile.put_s, profile.wait_s) == (1.0, 6.0)


@pytest.fixture
def machine(tmp_path):
    """A machine whose pressure is told: (Pressure, tell(io seconds in total))."""

    def tell(io):
        (tmp_path / "io").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={int(io * 1e6)}\n")

    tell(0)
    return Pressure([f"{tmp_path}/{{}}"]), tell


def test_while_somebody_is_held_up_less_is_done_and_in_a_hurry_no_longer(machine):
    pressure, tell = machine
    hurry = []
    pace = Pace(yielding=True, pressure=pressure, hurry=lambda: bool(hurry))
    pace.begin(8)
    seen = []
    for second in range(6):
        tell(second)
        pace._next_look = 0.0
        pace._look(float(second + 1))
        pace._next_look = float("inf")
        seen.append((pace.limit(8, auto=False, count=2), pace.rest_s(3.0)))
    assert seen == [(8, 0), (4, 0), (2, 0), (1, 0), (1, 3.0), (1, 3.0)]
    assert pace.rest_s(100.0) == 5.0
    hurry.append(True)
    assert (pace.limit(8, auto=False, count=2), pace.rest_s(3.0)) == (8, 0)


def test_unasked_nothing_gives_way(machine):
    pressure, tell = machine
    pace = Pace(pressure=pressure)
    pace.begin(8)
    for second in range(6):
        tell(second)
        pace._look(float(second + 1))
    assert (pace.limit(8, auto=False, count=2), pace.rest_s(3.0)) == (8, 0)


def test_workers_are_as_many_as_asked_for_or_as_keep_the_processors_busy():
    pace = Pace()
    pace.begin(AUTO_WORKERS)
    assert pace.limit(AUTO_WORKERS, auto=True, count=2) == AUTO_WORKERS
    pace.busy_s, pace.put_s = 0.1, 0.01
    assert pace.limit(AUTO_WORKERS, auto=True, count=2) == 3
    assert pace.limit(5, auto=False, count=2) == 5


def test_after_a_push_that_fails_nothing_counts_as_in_flight(bench):
    verl_step(bench.out("a"), 20, n=300_000)
    node = bench.node("a", url=f"file://{bench.root}/store")
    remote = node.remote()
    remote.store._inner = FaultyStore(remote.store._inner, [Fault("put_new", "refused", key="*chunks*", times=99)])
    with pytest.raises(StoreRefused):
        bench.push(node, 20)
    assert node.pace.adaptive._flight == 0
