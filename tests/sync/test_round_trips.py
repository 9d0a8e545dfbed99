"""What is pushed from one node comes back on another, bit for bit, whatever the store."""

from __future__ import annotations

import os
import uuid

import pytest

from ckptsync.errors import NothingToResume
from ckptsync.model.step import FileStat
from ckptsync.testing.checkpoints import layered_step, verl_step

STORES = ["file", "memory", "memory fsspec", "s3 obstore", "s3 fsspec"]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    """(URL, driver) of an empty store."""
    kind, _, driver = request.param.partition(" ")
    fresh = uuid.uuid4().hex
    if kind == "s3":
        request.getfixturevalue("s3_environ")
        return request.getfixturevalue("s3_server").url(fresh), driver
    if kind == "file":
        return (tmp_path / "store").as_uri(), "obstore"
    return f"memory://{fresh}/prefix", driver or "obstore"


def odd_step(out, step, **options):
    """A step with what trainers rarely write, but may."""
    made = verl_step(out, step, world=2, hf=True, **options)
    (made / "actor" / "notes.txt").write_bytes(b"")
    (made / "actor" / "notes.txt").chmod(0o640)
    (made / "actor" / "current").symlink_to("notes.txt")
    (made / "data.pt").touch()
    os.chmod(made / "actor", 0o750)
    return made


def test_a_step_comes_back_bit_for_bit(bench, picture, store):
    url, driver = store
    made = odd_step(bench.out("a"), 20, n=300_000)
    here = bench.node("a", url=url, driver=driver)
    pushed = bench.push_command(here)
    assert pushed.outcome.commit is not None

    result = bench.pull(bench.node("b", url=url, driver=driver))
    back = bench.out("b") / "global_step_20"
    assert (result.step, result.path) == (20, str(back))
    assert picture(back) == picture(made)
    assert os.readlink(bench.out("b") / "latest") == "global_step_20"
    assert (bench.out("b") / "latest_checkpointed_iteration.txt").read_text() == "20"
    assert result.bytes_fetched == pushed.bytes_total
    assert result.bytes_reused == 0


def test_the_newest_save_comes_back_not_the_highest_number(bench, picture):
    verl_step(bench.out("a"), 40, seed=1)
    node = bench.node("a")
    bench.push_command(node)
    newer = verl_step(bench.out("a"), 20, seed=2)
    bench.push_command(node, 20)
    assert bench.pull(bench.node("b")).step == 20
    assert picture(bench.out("b") / "global_step_20") == picture(newer)


def test_what_the_disk_has_is_not_fetched(bench, picture):
    verl_step(bench.out("a"), 20, n=300_000)
    bench.push_command(bench.node("a"))
    bench.pull(bench.node("b"))
    (bench.out("b") / "global_step_20" / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"torn")
    node = bench.node("b")
    again = bench.pull(node)
    assert again.aside == ("global_step_20",)
    assert picture(bench.out("b") / "global_step_20") == picture(bench.out("a") / "global_step_20")
    third = bench.pull(bench.node("b"))
    assert (third.bytes_fetched, third.aside) == (0, ())


def test_what_rotted_on_this_disk_comes_from_the_store_after_all(bench, picture, monkeypatch, tmp_path):
    made = verl_step(bench.out("a"), 20, n=3_000_000)
    bench.push_command(bench.node("a"))
    bench.pull(bench.node("b"))
    rotten = bench.out("b") / "global_step_20" / "actor" / "model_world_size_1_rank_0.pt"
    times = os.stat(rotten)
    with open(rotten, "r+b") as file:
        file.seek(1_500_000)
        file.write(b"rot")
    os.utime(rotten, ns=(times.st_atime_ns, times.st_mtime_ns))
    monkeypatch.setattr(FileStat, "unchanged_since", FileStat.same_bytes)  # a disk changes bytes without a trace
    result = bench.pull(bench.node("b"), dest=str(tmp_path / "else"))
    assert picture(tmp_path / "else" / "global_step_20") == picture(made)
    assert 3_000_000 < result.bytes_fetched < 4_000_000
    assert result.bytes_reused > 3_000_000


@pytest.mark.parametrize("touched", ["mtime", "mode", "link"])
def test_equal_bytes_are_not_enough_to_be_in_place(bench, picture, touched):
    made = verl_step(bench.out("a"), 20)
    (made / "actor" / "current").symlink_to("optim_world_size_1_rank_0.pt")
    bench.push_command(bench.node("a"))
    bench.pull(bench.node("b"))
    here = bench.out("b") / "global_step_20" / "actor"
    if touched == "link":
        (here / "current").unlink()
        (here / "current").symlink_to("model_world_size_1_rank_0.pt")
    elif touched == "mode":
        (here / "model_world_size_1_rank_0.pt").chmod(0o600)
    else:
        os.utime(here / "model_world_size_1_rank_0.pt", ns=(0, (made / "data.pt").stat().st_mtime_ns - 10**9))
    again = bench.pull(bench.node("b"))
    assert (again.bytes_fetched, again.aside) == (0, ("global_step_20",))
    assert picture(here.parent) == picture(made)
    assert bench.pull(bench.node("b")).aside == ()


def test_dropped_files_do_not_come_back(bench, picture):
    made = layered_step(bench.out("a"), 7)
    bench.push_command(bench.node("a"))
    bench.pull(bench.node("b"))
    whole, back = picture(made), picture(bench.out("b") / "step_7")
    assert whole.keys() - back.keys() == {"rollout/engine_state.json"}
    assert all(back[path] == whole[path] for path in back)


def test_an_empty_store_is_nothing_to_resume_from(bench):
    with pytest.raises(NothingToResume):
        bench.pull(bench.node("a"))
    assert sorted(os.listdir(bench.out("a"))) == []
