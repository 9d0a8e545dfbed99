"""The quick choice is the exhaustive one, and asks for no more than it needs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import zstandard
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ckptsync.errors import NothingToResume
from ckptsync.layouts.verl import Verl
from ckptsync.model.manifest import ChunkRef, Commit, Extent, FileEntry, Part
from ckptsync.model.rounds import Decision, Place
from ckptsync.model.step import Level
from ckptsync.store import keys
from ckptsync.store.objects import open_objects
from ckptsync.sync.choose import choose
from ckptsync.sync.collect_lists import render
from ckptsync.sync.commit import check_commit
from ckptsync.sync.remote import LATER_NS, READERS, Remote
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import FaultyStore

RUN_ID = "00112233445566778899aabbccddeeff"
LAYOUTS = {"verl": Verl()}
SECOND = 10**9
HOUR_NS = 3600 * SECOND
EPOCH_NS = 1_800_000_000 * SECOND
FATES = ("fine", "fine", "fine", "part gone", "part broken", "commit broken", "part void", "not ready", "no commit")


class Dated(FaultyStore):
    """A store whose modification times are as the test says."""

    def __init__(self) -> None:
        super().__init__(open_objects(f"memory://{uuid.uuid4().hex}"))
        self.times: dict[str, int | None] = {}

    def list(self, prefix: str) -> Iterator:
        return (replace(meta, modified_ns=self.times.get(meta.key)) for meta in super().list(prefix))

    def asked(self, operation: str, kind: str = "") -> list[str]:
        return [key for done, key in self.calls if done == operation and kind in key]


@dataclass(frozen=True)
class Past:
    """One save of the past: when it ended, how long after that its commit was put (None: unknown), and its fate."""

    step: int
    end_ns: int
    lag_ns: int | None
    fate: str = "fine"


def part_of(step: int, end_ns: int) -> Part:
    shards = [f"actor/{kind}_world_size_1_rank_0.pt" for kind in ("extra_state", "model", "optim")]
    names = sorted([*shards, "actor/fsdp_config.json", "actor/huggingface/config.json", "data.pt"])
    digest = f"{step:032x}{end_ns:032x}"
    files = [
        FileEntry(name, 1, 0o644, end_ns - SECOND * (name != "data.pt"), digest, (Extent(0, 0, 1),)) for name in names
    ]
    return Part(
        run="run",
        run_id=RUN_ID,
        step=step,
        name=f"global_step_{step}",
        below="",
        node="a",
        node_id=RUN_ID,
        layout="verl",
        level=Level.FULL,
        saved_ns=end_ns,
        closed=True,
        previous_ns=0,
        offset_ns=0,
        files=tuple(files),
        chunks=(ChunkRef(digest, 1),),
    )


def put(store: Dated, past: Past) -> None:
    part = part_of(past.step, past.end_ns)
    commit = Commit("run", RUN_ID, past.step, (part.id,))
    part_key = keys.part_key("run", past.step, str(part.id))
    commit_key = keys.commit_key("run", past.step, commit.digest)
    if past.fate != "part gone":
        store.put(part_key, b"broken" if past.fate == "part broken" else zstandard.compress(part.to_bytes()))
    if past.fate != "not ready":
        store.put(keys.ready_key("run", past.step, str(part.id)), b"")
    if past.fate != "no commit":
        store.put(commit_key, b"broken" if past.fate == "commit broken" else commit.to_bytes())
    if past.fate == "part void":
        condemn(store, part_key)
    store.times[commit_key] = None if past.lag_ns is None else past.end_ns + past.lag_ns


def condemn(store: Dated, key: str) -> None:
    """One more collection."""
    number = len(store.asked("put", "/gc/")) + 1
    store.put(f"{keys.gc_prefix('run')}/{number:06d}/list", render("run", RUN_ID, [key], keeps=[]))


def remote_of(pasts) -> Remote:
    store = Dated()
    for past in pasts:
        put(store, past)
    store.calls.clear()
    return Remote(store, "run", RUN_ID)


def chosen(remote: Remote, **options) -> str:
    try:
        found = choose(remote, [], LAYOUTS, **{"step": None, "window_ns": HOUR_NS, **options})
    except NothingToResume:
        return ""
    return found.commit


def exhaustive(remote: Remote) -> str:
    """The same by reading everything, in no order."""
    found = []
    for index in remote.index_all().values():
        for digest in index.commits:
            union, _ = check_commit(remote, index, digest, LAYOUTS, remote.condemned(), window_ns=HOUR_NS)
            if union is not None:
                found.append((union.end_ns, len(union.files), digest))
    return max(found, default=(0, 0, ""))[2]


def pasts(lags):
    """Few steps and few seconds, so that numbers are saved again, roll back and tie."""
    ends = st.integers(0, 40).map(lambda n: EPOCH_NS + n * SECOND // 2)
    return st.lists(st.builds(Past, st.integers(1, 5), ends, lags, st.sampled_from(FATES)), max_size=12)


@settings(max_examples=150, deadline=None)
@given(pasts(st.one_of(st.none(), st.integers(-LATER_NS, 8 * SECOND), st.sampled_from([0, HOUR_NS]))))
def test_the_quick_choice_is_the_exhaustive_one(pasts):
    remote = remote_of(pasts)
    event("chosen" if exhaustive(remote) else "nothing")
    assert chosen(remote) == exhaustive(remote)


@settings(max_examples=60, deadline=None)
@given(pasts(st.just(0)), st.integers(-60, 60))
def test_times_that_a_copy_has_set_to_one_moment_are_seen_through(pasts, seconds):
    """Also to a moment before the saves ended: the first commit that is read shows that they prove nothing."""
    moment = EPOCH_NS + seconds * SECOND
    remote = remote_of([replace(past, lag_ns=moment - past.end_ns) for past in pasts])
    assert chosen(remote) == exhaustive(remote)


def test_of_many_steps_only_the_newest_is_read_and_one_list_is_asked_for():
    remote = remote_of([Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(300)])
    assert choose(remote, [], LAYOUTS, step=None, window_ns=HOUR_NS).union.step == 299
    assert sorted(remote.store.asked("list")) == ["run/attempts", "run/bad", "run/gc", "run/steps"]
    assert remote.store.asked("children") == []
    assert len(remote.store.asked("get", "/commits/")) == 1
    assert len(remote.store.asked("get", "/parts/")) == 1


def test_a_roll_back_is_newest_by_time_though_its_number_is_low():
    before = [Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(300)]
    remote = remote_of([*before, Past(7, EPOCH_NS + HOUR_NS * 24, 30 * SECOND)])
    found = choose(remote, [], LAYOUTS, step=None, window_ns=HOUR_NS)
    assert (found.union.step, found.union.end_ns) == (7, EPOCH_NS + HOUR_NS * 24)
    assert len(remote.store.asked("get", "/commits/")) == 1


def test_a_broken_newest_commit_costs_the_next_ones_not_all():
    times = [Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(300)]
    remote = remote_of([*times[:-1], replace(times[-1], fate="part broken")])
    found = choose(remote, [], LAYOUTS, step=None, window_ns=HOUR_NS)
    assert found.union.step == 298
    assert found.skipped[0][0] == 299
    assert len(remote.store.asked("get", "/commits/")) <= 3


def test_a_copied_bucket_costs_each_document_once():
    """A copy has new times only, in an order that says nothing."""
    copied_ns = EPOCH_NS + HOUR_NS * 1000
    count = 4 * READERS
    ends = [EPOCH_NS + step * 60 * SECOND for step in range(count)]
    remote = remote_of([Past(step, end, copied_ns - end + step % 7) for step, end in enumerate(ends)])
    assert choose(remote, [], LAYOUTS, step=None, window_ns=HOUR_NS).union.step == count - 1
    assert len(remote.store.asked("get", "/commits/")) == count
    assert len(remote.store.asked("get", "/parts/")) == count
    assert sorted(remote.store.asked("list")) == ["run/attempts", "run/bad", "run/gc", "run/steps"]


def test_a_step_by_its_number_lists_that_step_alone():
    remote = remote_of([Past(step, EPOCH_NS + step * 60 * SECOND, 30 * SECOND) for step in range(30)])
    assert choose(remote, [], LAYOUTS, step=3, window_ns=HOUR_NS).union.step == 3
    assert remote.store.asked("list", "steps") == ["run/steps/000000000003"]
    with pytest.raises(NothingToResume, match="step 3 cannot be restored"):
        choose(remote, [], LAYOUTS, step=3, max_step=2, window_ns=HOUR_NS)
    for absent in (77, -1, 10**12):
        with pytest.raises(NothingToResume, match=f"step {absent} cannot be restored"):
            choose(remote, [], LAYOUTS, step=absent, window_ns=HOUR_NS)


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_real_stores_date_a_commit_after_the_end_of_its_save(bench, scheme, request, tmp_path):
    """What the bound rests on."""
    bench.url = f"file://{tmp_path}/store"
    if scheme == "s3":
        request.getfixturevalue("s3_environ")
        bench.url = request.getfixturevalue("s3_server").url(uuid.uuid4().hex)
    verl_step(bench.out("n"), 20)
    node = bench.node("n")
    pushed = bench.push(node, 20)
    index = node.remote().index(20)
    (modified_ns,) = index.commits.values()
    assert modified_ns is not None
    assert pushed.outcome.union.end_ns <= modified_ns + LATER_NS


def test_a_slow_probe_of_the_clock_is_asked_again(bench):
    """A put that took 30 s says nothing about an offset of 5 s: it would make saves newer than they are."""
    remote = bench.node("n").remote()
    now_ns = remote.store.head(put_probe(remote)).modified_ns
    times = iter([now_ns - 20 * SECOND, now_ns + 10 * SECOND, now_ns, now_ns + SECOND // 100])
    assert remote.clock_offset_ns("n", lambda: next(times)) == 0
    assert next(times, None) is None


def test_a_store_that_stays_slow_is_asked_three_times_and_the_quickest_answer_counts(bench):
    remote = bench.node("n").remote()
    now_ns = remote.store.head(put_probe(remote)).modified_ns
    hour_ago = now_ns - HOUR_NS
    waits = (40, 10, 20)
    times = iter([t for wait in waits for t in (hour_ago, hour_ago + wait * SECOND)])
    offset_ns = remote.clock_offset_ns("n", lambda: next(times))
    assert abs(offset_ns - (HOUR_NS - 5 * SECOND)) < 4 * SECOND
    assert next(times, None) is None


def put_probe(remote: Remote) -> str:
    remote.store.put("run/probes/n", b"clock")
    return "run/probes/n"


def decide(store: Dated, number: int, made_ns: int, saved_ns: int) -> None:
    """The nodes decided for the save of step 0 that ended at `saved_ns`."""
    place = Place("run", RUN_ID, f"job-{number}", 1)
    key = keys.decision_key("run", f"job-{number}", 1)
    store.put(key, Decision(place, "a", 1, "commit", 0, "a" * 64, saved_ns, made_ns).to_bytes())
    store.times[key] = made_ns + SECOND


def test_of_many_decisions_only_those_are_read_that_can_speak_against_the_newest_save():
    ends = [EPOCH_NS + step * 60 * SECOND for step in range(50)]
    remote = remote_of([Past(step, end, 30 * SECOND) for step, end in enumerate(ends)])
    for number, end in enumerate(ends[:-1]):
        decide(remote.store, number, end + 10 * SECOND, end)
    assert choose(remote, [], LAYOUTS, step=None, window_ns=HOUR_NS).union.step == 49
    assert remote.store.asked("get", "/attempts/") == []
    decide(remote.store, 99, ends[-1] + 40 * SECOND, ends[45])
    assert choose(remote, [], LAYOUTS, step=None, window_ns=HOUR_NS).union.step == 45
    assert len(remote.store.asked("get", "/attempts/")) < 10
    assert choose(remote, [], LAYOUTS, step=49, window_ns=HOUR_NS).union.step == 49
