"""A push sends what the store lacks: all of that, and nothing else. What it relies on are ready, uncondemned parts."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from ckptsync.errors import CheckpointError, NothingToResume, StoreRefused
from ckptsync.store import keys
from ckptsync.sync.collect_lists import render
from ckptsync.sync.commit import check_commit
from ckptsync.sync.push import push
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.faulty import Fault, FaultyStore

TENSOR = 140_000


def write_list(store, names, *, number=1, kind="list"):
    """As a collection would: what it condemns, or what is left of that after a second look."""
    run_id = json.loads(store.get("run/run.json", max_size=1000))["run_id"]
    store.put(f"run/gc/{number:06d}/{kind}", render("run", run_id, names, [] if kind == "list" else None))


def chunk_puts(store):
    """The chunks that were put through a recording store, by digest."""
    names = (
        key.rpartition("/")[2]
        for operation, key in store.calls
        if operation in ("put", "put_new") and "/chunks/" in key
    )
    return sorted(name.partition(".")[0] for name in names)


def digests(pushed):
    """What a push's commit consists of."""
    return sorted({ref.digest for part in pushed.outcome.union.parts.values() for ref in part.chunks})


@pytest.fixture
def recording(bench):
    return FaultyStore(bench.store)


@pytest.fixture
def pushed(bench):
    """Step 20 of node a is in the store; returns that push."""
    verl_step(bench.out("a"), 20, world=2, n=TENSOR)
    return bench.push(bench.node("a"), 20)


def step_40(bench, name="a"):
    """A later save with the bytes of step 20, on this node."""
    made = bench.out(name) / "global_step_40"
    shutil.copytree(bench.out("a") / "global_step_20", made, copy_function=shutil.copy)
    (made / "data.pt").touch()
    return made


def one_changed_tensor(bench, name="a"):
    """Step 40: step 20 with one other tensor."""
    made, changed = step_40(bench, name), "actor/model_world_size_2_rank_1.pt"
    other = verl_step(made.parents[1] / "elsewhere", 40, world=2, n=TENSOR, seed=7)
    shutil.copy(other / changed, made / changed)
    (made / "data.pt").touch()


def test_one_changed_tensor_costs_one_tensor(bench, pushed, recording):
    one_changed_tensor(bench)
    second = bench.push(bench.node("a", store=recording), 40)
    changed = sorted(set(digests(second)) - set(digests(pushed)))
    assert 1 <= len(changed) <= 2 < len(digests(second))
    assert chunk_puts(recording) == changed
    assert TENSOR / 2 < second.bytes_sent < 2 * TENSOR


def test_another_node_relies_on_the_same_parts(bench, pushed, recording):
    one_changed_tensor(bench, "b")
    bench.push(bench.node("b", store=recording), 40)
    assert 1 <= len(chunk_puts(recording)) <= 2


def test_a_second_push_of_a_committed_step_sends_nothing(bench, pushed, recording):
    again = bench.push(bench.node("a", store=recording), 20)
    assert (chunk_puts(recording), again.bytes_sent) == ([], 0)
    assert again.outcome.commit == pushed.outcome.commit


def test_a_foreign_object_under_a_chunks_key_is_not_relied_on(bench, picture):
    made = verl_step(bench.out("a"), 20, world=2, n=TENSOR)
    node = bench.node("a")
    wanted = [keys.chunk_key("run", ref.key) for ref in bench.save(node, 20).part.chunks]
    for key in wanted:
        bench.store.put(key, b"not the chunk")
    bench.push(node, 20)
    assert all(bench.store.get(key, max_size=10**7) != b"not the chunk" for key in wanted)
    bench.pull(bench.node("c"))
    assert picture(bench.out("c") / "global_step_20") == picture(made)


@pytest.fixture
def without_chunks(bench, pushed):
    """A store with the part of step 20, but no chunk: what it would be wrong to rely on."""
    for key in bench.objects(kind="chunks"):
        bench.store.delete(key)


@pytest.mark.parametrize("ready", [False, True])
def test_only_a_part_with_its_ready_mark_is_relied_on(bench, pushed, without_chunks, recording, ready):
    if not ready:
        for key in bench.objects(kind="ready"):
            bench.store.delete(key)
    step_40(bench, "b")
    bench.push(bench.node("b", store=recording), 40)
    # the mark is all that decides: where it stands (here it lies), not one chunk is sent
    assert chunk_puts(recording) == ([] if ready else digests(pushed))


@pytest.mark.parametrize("condemned", ["part", "chunks"])
def test_condemned_parts_and_chunks_are_not_relied_on(bench, pushed, recording, condemned):
    names = bench.objects(kind="parts" if condemned == "part" else "chunks")
    write_list(bench.store, names)
    step_40(bench, "b")
    second = bench.push(bench.node("b", store=recording), 40)
    assert chunk_puts(recording) == digests(pushed)
    (part,) = second.outcome.union.parts.values()
    assert all(("." in ref.key) == (condemned == "chunks") for ref in part.chunks)


def test_a_condemned_chunk_gets_a_fresh_name_and_outlives_the_sweep(bench, pushed, picture):
    names = bench.objects(kind="chunks")
    write_list(bench.store, names)
    step_40(bench)
    bench.push(bench.node("a"), 40)
    write_list(bench.store, names, kind="sweep")
    for key in names:
        bench.store.delete(key)
    result = bench.pull(bench.node("c"))
    assert result.step == 40
    assert picture(bench.out("c") / "global_step_40") == picture(bench.out("a") / "global_step_40")


def test_a_list_that_appears_while_the_part_is_put_is_seen(bench, pushed):
    """The list is read again after the part is put; who condemned before that cannot have missed the part."""
    chunks = bench.objects(kind="chunks")

    class Racing(FaultyStore):
        def put_new(self, key, data):
            if "/steps/000000000040/parts/" in key and not bench.objects(kind="gc"):
                write_list(bench.store, chunks)
            return super().put_new(key, data)

    step_40(bench)
    racing = Racing(bench.store)
    second = bench.push(bench.node("a", store=racing), 40)
    (part,) = second.outcome.union.parts.values()
    assert all("." in ref.key for ref in part.chunks)
    assert chunk_puts(racing) == digests(pushed)
    assert len(bench.objects("run/steps/000000000040", "parts")) == 2


def test_a_condemned_part_is_put_again_under_another_name(bench, pushed):
    write_list(bench.store, bench.objects(kind="parts"))
    again = bench.push(bench.node("a"), 20)
    assert again.part != pushed.part
    assert again.outcome.commit is not None
    assert again.outcome.commit.parts == (again.part,)


@pytest.mark.parametrize("condemned", ["commits", "parts"])
def test_a_condemned_commit_is_void_until_the_sweep_spares_it(bench, pushed, condemned):
    write_list(bench.store, bench.objects(kind=condemned))
    reader = bench.node("c")
    with pytest.raises(NothingToResume, match="a collection has condemned it"):
        bench.pull(reader)
    write_list(bench.store, [], kind="sweep")
    assert bench.pull(bench.node("c")).step == 20


def test_a_sweep_that_goes_through_keeps_the_commit_void(bench, pushed):
    names = bench.objects(kind="commits")
    write_list(bench.store, names)
    write_list(bench.store, names, kind="sweep")
    with pytest.raises(NothingToResume):
        bench.pull(bench.node("c"))


def test_nothing_is_claimed_for_a_condemned_commit(bench, pushed):
    write_list(bench.store, bench.objects(kind="commits"))
    outcome = bench.push(bench.node("a"), 20).outcome
    assert outcome.commit is None
    assert [problem.code for problem in outcome.problems] == ["condemned"]


@pytest.mark.parametrize("step", [20, 40], ids=["the same step", "a later step"])
def test_an_emptied_bucket_makes_a_full_upload_again(bench, pushed, picture, step):
    step_40(bench)
    for key in bench.objects():
        bench.store.delete(key)
    recording = FaultyStore(bench.store)
    bench.push(bench.node("a", store=recording), step)
    assert chunk_puts(recording) == digests(pushed)
    assert bench.pull(bench.node("c")).step == step
    assert picture(bench.out("c") / f"global_step_{step}") == picture(bench.out("a") / f"global_step_{step}")


def test_an_interrupted_push_into_a_bucket_that_is_then_emptied_starts_over(bench, picture):
    verl_step(bench.out("a"), 20, world=2, n=TENSOR)
    faulty = FaultyStore(bench.store, [Fault("put_new", "refused", "*/ready/*")])
    with pytest.raises(Exception, match="planned fault"):
        bench.push(bench.node("a", store=faulty), 20)
    for key in bench.objects():
        bench.store.delete(key)
    bench.push(bench.node("a"), 20)
    assert bench.pull(bench.node("c")).step == 20
    assert picture(bench.out("c") / "global_step_20") == picture(bench.out("a") / "global_step_20")


def test_changed_bytes_end_the_push_not_the_checkpoint(bench):
    """The digest is compared with the bytes that are sent; nothing becomes ready."""
    made = verl_step(bench.out("a"), 20, world=2, n=TENSOR)
    node = bench.node("a")
    save = bench.save(node, 20)
    path = made / "actor" / "optim_world_size_2_rank_0.pt"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-100_000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CheckpointError, match="changed"):
        push(save, str(made), node.remote(), node.saves, node.layout, node.push_options)
    assert bench.objects(kind="ready") == []
    assert bench.objects(kind="commits") == []


def test_a_reader_judges_a_commit_for_itself(bench, pushed):
    """A commit whose part names another run, or is gone, is not restored, whoever wrote it."""
    remote = bench.node("c").remote()
    (part,) = bench.objects(kind="parts")
    bench.store.put(part, b"garbage")
    union, why = check_commit(
        remote,
        remote.index(20),
        pushed.outcome.commit.digest,
        bench.node("c").layout_of(),
        remote.condemned(),
        window_ns=10**12,
    )
    assert union is None
    assert "missing or broken" in why


def test_a_list_that_appears_while_a_remembered_part_is_put_again_is_seen(bench, pushed):
    """Killed just before its part was put, a push goes on with the same part: others may have condemned meanwhile."""
    chunks = bench.objects(kind="chunks")
    step_40(bench)
    killed = FaultyStore(bench.store, [Fault("put_new", "refused", "*/parts/*")])
    with pytest.raises(StoreRefused):
        bench.push(bench.node("a", store=killed), 40)

    class Racing(FaultyStore):
        def put_new(self, key, data):
            if "/steps/000000000040/parts/" in key and not bench.objects(kind="gc"):
                write_list(bench.store, chunks)
            return super().put_new(key, data)

    second = bench.push(bench.node("a", store=Racing(bench.store)), 40)
    (part,) = second.outcome.union.parts.values()
    assert all("." in ref.key for ref in part.chunks)


def test_a_commit_whose_part_is_deleted_is_not_believed_from_memory(bench, pushed):
    node = bench.node("a")
    remote = node.remote()
    digest = pushed.outcome.commit.digest
    assert check_commit(remote, remote.index(20), digest, node.layout_of(), remote.condemned(), window_ns=10**13)[0]
    (part,) = bench.objects(kind="parts")
    bench.store.delete(part)
    union, why = check_commit(remote, remote.index(20), digest, node.layout_of(), remote.condemned(), window_ns=10**13)
    assert union is None
    assert "missing" in why


def test_a_remote_forgets_old_parts_and_asks_again(bench, pushed, monkeypatch):
    monkeypatch.setattr("ckptsync.sync.kept._ROWS_MAX", 1)
    step_40(bench)
    bench.push(bench.node("a"), 40)
    recording = FaultyStore(bench.store)
    remote = bench.node("b", store=recording).remote()
    for step in (20, 40, 20):
        (part_id,) = remote.index(step).parts
        assert remote.part(step, part_id).step == step
    asked = [key for operation, key in recording.calls if operation == "get" and "/parts/" in key]
    assert len(asked) == 3
    assert len(remote._parts) == 1
