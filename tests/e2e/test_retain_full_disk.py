"""Retention on a disk that fills up: a real small file system, the real command line."""

import json
import os
import shutil

from retaining import KEEP_TWO, STEPS, names, retain, save, unreachable, uploaded

from ckptsync.testing.checkpoints import verl_step


def fill(disk, *, leave=0):
    """Write until `leave` bytes are free."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while (free := os.statvfs(disk).f_bavail * 4096) > leave:
            file.write(b"f" * min(1 << 16, free - leave))


def test_a_full_disk_does_not_stop_retention(make_node, small_disk, tmp_path):
    """Steps, staging and state directory lie on a disk without one free byte."""
    disk = small_disk("disk", "8m")
    node = make_node("n0", root=disk, store=tmp_path / "store", settings=KEEP_TWO)
    uploaded(node, *STEPS)
    node.write_config()
    fill(disk)
    found = retain(node)
    assert names(node) == [40, 50]
    assert all(row["deleted"] for row in found["local"] if not row["keep"])
    assert os.statvfs(disk).f_bavail > 0
    save(node, 60)
    node.once()
    assert len(node.commits(60)) == 1


def test_a_daemon_on_a_full_disk_makes_room_first(make_node, small_disk, tmp_path):
    disk = small_disk("disk", "8m")
    node = make_node("n0", root=disk, store=tmp_path / "store", settings=KEEP_TWO)
    uploaded(node, *STEPS)
    verl_step(node.ckpt, 60)
    fill(disk)
    node.run("run", "--once")
    assert names(node)[-2:] == [50, 60]
    assert 10 not in names(node)
    node.once()
    node.once()
    assert names(node) == [50, 60]
    assert len(node.commits(60)) == 1


def test_without_the_store_no_more_goes_than_the_disk_needs(make_node, small_disk, tmp_path):
    """Step 10 makes the room; 20 and 30, which no policy keeps either, wait until the store says what is pinned."""
    disk = small_disk("disk", "20m")
    node = make_node("n0", root=disk, store=tmp_path / "store", settings=KEEP_TWO)
    uploaded(node, *STEPS)
    found = os.statvfs(disk)
    node.settings = f'{KEEP_TWO}min_free = "{found.f_bavail * found.f_frsize - 1}B"\n'
    unreachable(node)
    assert [row["step"] for row in retain(node, "--local")["local"] if row["deleted"]] == [10]
    assert names(node) == [20, 30, 40, 50]
    node.run("run", "--once")
    assert {30, 40, 50} <= set(names(node))


def test_min_free_makes_room_for_every_save(make_node, small_disk, tmp_path):
    """Twelve saves of a megabyte each on a disk of six: keep_last = 20 gives way, and none of them finds it full."""
    disk = small_disk("disk", "6m")
    settings = '[retention.local]\ndelete = true\nkeep_last = 20\nmin_free = "100kB"\n'
    node = make_node("n0", root=disk, store=tmp_path / "store", settings=settings)
    for step in range(10, 130, 10):
        verl_step(node.ckpt, step, n=300_000)
        node.once()
        node.once()
    assert len(node.commits(120)) == 1
    assert all(len(node.commits(step)) == 1 for step in range(10, 130, 10))
    assert {110, 120} <= set(names(node))
    assert 10 not in names(node)


def test_what_waits_for_an_upload_gives_way_loudly_before_the_training_dies(make_node, small_disk, tmp_path):
    disk = small_disk("disk", "6m")
    settings = '[retention.local]\ndelete = true\nmin_free = "100kB"\n'
    node = make_node("n0", root=disk, store=tmp_path / "store", settings=settings)
    unreachable(node)
    log = ""
    for step in range(10, 90, 10):
        verl_step(node.ckpt, step, n=300_000)
        for _ in range(2):
            log += node.run("run", "--once").err
    assert names(node)[-2:] == [70, 80]
    assert "it is not in the store; despite: due, and not committed yet" in log
    assert len(list((node.staging / "linked").iterdir())) <= 2


def test_a_save_that_will_not_fit_is_told_before_it_comes(make_node, small_disk, tmp_path):
    disk = small_disk("disk", "6m")
    node = make_node("n0", root=disk, store=tmp_path / "store")
    verl_step(node.ckpt, 10, n=300_000)
    node.once()
    fill(disk, leave=600_000)
    log = node.once()
    assert log.count("will not fit on the disk") == 1
    status = json.loads(node.run("status", "--json").out)
    assert any("will not fit on the disk (free some space)" in problem for problem in status["problems"])
    (disk / "filler").unlink()
    assert "will not fit" not in node.once()


def test_a_step_whose_commit_was_deleted_by_hand_goes_last_and_loudly(make_node, small_disk, tmp_path):
    """What the store has goes before it, so that every save fits; when nothing else is left it goes, too."""
    disk = small_disk("disk", "6m")
    settings = '[retention.local]\ndelete = true\nmin_free = "600kB"\n'
    node = make_node("n0", root=disk, store=tmp_path / "store", settings=settings)
    for step in range(10, 90, 10):
        verl_step(node.ckpt, step, n=300_000)
        log = "".join(node.once() for _ in range(2))
        if step == 10:
            shutil.rmtree(node.store / "r" / "steps" / f"{10:012d}" / "commits")
    assert names(node)[0] == 10
    assert names(node)[-2:] == [70, 80]
    assert 20 not in names(node)
    assert (
        "step 10 stays: the store no longer holds its commit undamaged (`ckptsync push --step 10` puts it there" in log
    )
    fill(disk)
    log = node.once()
    assert names(node) == [70, 80]
    assert "despite: the store no longer holds its commit undamaged" in log
    assert "step 10 had to be deleted although the store had lost it: the disk was about to fill up" in log
    verl_step(node.ckpt, 90, n=300_000)
    node.once()
    assert len(node.commits(90)) == 1


def test_a_push_by_hand_puts_a_lost_commit_there_again(make_node, tmp_path):
    node = make_node("n0", store=tmp_path / "store", settings=KEEP_TWO)
    uploaded(node, *STEPS)
    shutil.rmtree(node.store / "r" / "steps" / f"{10:012d}" / "commits")
    assert any("`ckptsync push --step 10`" in problem for problem in retain(node)["problems"])
    assert node.run("push", "--step", "10").code == 0
    assert len(node.commits(10)) == 1
    assert retain(node)["problems"] == []
    assert names(node) == [40, 50]
