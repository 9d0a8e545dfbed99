"""Deleting a step directory: wholly there or wholly gone, never another one than was judged."""

import os
import shutil
import subprocess
import sys

import pytest

from ckptsync.disk import syscalls
from ckptsync.disk.faults import set_crash_hook
from ckptsync.disk.scan import list_step
from ckptsync.disk.space import disk_of, given_back
from ckptsync.disk.stage import Staging
from ckptsync.disk.trash import Trash
from ckptsync.errors import ConfigError, StepChanged

FILES = {"actor/a.pt": b"a" * 70_000, "actor/b.pt": b"b" * 10, "data.pt": b"d"}


@pytest.fixture
def out(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def step(out, make_step):
    return make_step(out / "global_step_20", FILES)


@pytest.fixture
def trash(out):
    return Trash(Staging(str(out)), str(out))


@pytest.fixture
def at_crash_point():
    """at_crash_point(label, do): call `do` once when this process passes the label."""
    todo = {}

    def hook(label):
        if label in todo:
            todo.pop(label)()

    set_crash_hook(hook)
    yield todo.__setitem__
    set_crash_hook(None)


def take(trash, step, judged=None):
    trash.take(judged or list_step(str(step)), ignored=lambda _: False)


def contents(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def in_trash(out):
    return list((out.parent / ".out.ckptsync" / "trash").glob("*"))


def test_a_step_goes_by_one_rename_and_its_files_later(trash, step, out):
    take(trash, step)
    assert not step.exists()
    assert [contents(path) for path in in_trash(out)] == [FILES]
    assert trash.returning >= 70_000
    trash.empty_beside()
    trash.wait()
    assert in_trash(out) == []
    assert trash.returning == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda step: (step / "actor/a.pt").write_bytes(b"x" * 70_000),
        lambda step: (step / "new").write_bytes(b""),
        lambda step: (step / "data.pt").unlink(),
        lambda step: (step / "empty").mkdir(),
        lambda step: os.symlink("data.pt", step / "link"),
        lambda step: os.utime(step / "data.pt", ns=(1, 1)),
        shutil.rmtree,
    ],
)
def test_what_is_not_the_step_that_was_judged_stays(trash, step, out, change):
    judged = list_step(str(step))
    change(step)
    left = contents(out)
    with pytest.raises(StepChanged):
        take(trash, step, judged)
    assert contents(out) == left
    assert in_trash(out) == []


def test_a_link_of_our_own_staging_is_no_change(trash, step, out):
    judged = list_step(str(step))
    os.link(step / "data.pt", out.parent / "elsewhere")
    take(trash, step, judged)
    assert not step.exists()
    assert (out.parent / "elsewhere").read_bytes() == b"d"


def test_a_link_in_the_place_of_a_step_is_never_followed(trash, step, out, tmp_path):
    judged = list_step(str(step))
    step.rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", step)
    with pytest.raises(StepChanged):
        take(trash, step, judged)
    assert contents(tmp_path / "elsewhere") == FILES
    assert step.is_symlink()


def test_links_inside_a_step_are_deleted_not_followed(trash, step, out, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"p")
    os.symlink(outside, step / "actor/linked")
    os.symlink(outside / "precious", step / "linked.pt")
    take(trash, step)
    trash.empty_beside()
    trash.wait()
    assert contents(outside) == {"precious": b"p"}
    assert in_trash(out) == []


def test_a_directory_outside_output_dir_is_refused(trash, tmp_path, make_step):
    other = make_step(tmp_path / "other/global_step_20", FILES)
    with pytest.raises(StepChanged):
        take(trash, other)
    assert contents(other) == FILES


def test_a_trainer_that_writes_at_the_moment_of_the_rename_gets_its_directory_back(trash, step, out, at_crash_point):
    judged = list_step(str(step))
    at_crash_point("trash.before-rename", lambda: (step / "actor/a.pt").write_bytes(b"new"))
    with pytest.raises(StepChanged):
        take(trash, step, judged)
    assert contents(step) == {**FILES, "actor/a.pt": b"new"}
    assert in_trash(out) == []


def test_a_directory_that_came_meanwhile_stays_and_so_does_the_changed_one(trash, step, out, at_crash_point):
    judged = list_step(str(step))
    at_crash_point("trash.before-rename", lambda: (step / "late").write_bytes(b"l"))
    at_crash_point("trash.after-rename", lambda: (step.mkdir(), (step / "newer").write_bytes(b"n")))
    with pytest.raises(StepChanged):
        take(trash, step, judged)
    assert contents(step) == {"newer": b"n"}
    aside = out.parent / ".out.ckptsync/superseded/global_step_20.changed"
    assert contents(aside) == {**FILES, "late": b"l"}


@pytest.mark.parametrize("label", ["trash.before-rename", "trash.after-rename"])
def test_a_trainer_that_rotates_the_same_step_at_that_moment(trash, step, out, at_crash_point, label):
    """What it does inside by its open descriptors, before the rename and after it: both want it gone."""
    judged, inside = list_step(str(step)), os.open(step, os.O_RDONLY)
    at_crash_point(label, lambda: shutil.rmtree(f"/proc/self/fd/{inside}/actor"))
    take(trash, step, judged)
    os.close(inside)
    assert os.listdir(out) == []
    assert [contents(path) for path in in_trash(out)] == [{"data.pt": b"d"}]


def test_a_step_that_the_trainer_deletes_first(trash, step, out, at_crash_point):
    judged = list_step(str(step))
    at_crash_point("trash.before-rename", lambda: shutil.rmtree(step))
    with pytest.raises(StepChanged, match="it is gone"):
        take(trash, step, judged)
    assert in_trash(out) == []


_ROTATE = """
import os, shutil, sys
root = sys.argv[1]
for number in range(int(sys.argv[2])):
    step = f"{root}/global_step_{number}"
    os.makedirs(f"{step}/actor")
    for name in ("a", "b", "c"):
        open(f"{step}/actor/{name}", "w").write("x" * 1000)
    print(number, flush=True)
    sys.stdin.readline()
    shutil.rmtree(step, ignore_errors=True)
"""


def test_a_trainer_that_rotates_in_another_process(trash, out):
    """Both delete the same directory again and again; neither fails, and nothing is left."""
    command = [sys.executable, "-c", _ROTATE, str(out), "60"]
    taken = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        for line in trainer.stdout:
            judged = list_step(f"{out}/global_step_{line.strip()}")
            trainer.stdin.write("\n")
            trainer.stdin.flush()
            try:
                take(trash, judged.path, judged)
                taken += 1
            except StepChanged:
                pass
            trash.empty_beside()
    trash.wait()
    trash.empty_beside()
    trash.wait()
    assert trainer.returncode == 0
    assert os.listdir(out) == []
    assert in_trash(out) == []


_TAKE = """
from ckptsync.disk.scan import list_step
from ckptsync.disk.stage import Staging
from ckptsync.disk.trash import Trash
out = sys.argv[1]
trash = Trash(Staging(out), out)
trash.take(list_step(out + "/global_step_20"), ignored=lambda _: False)
trash.empty_beside()
trash.wait()
"""


@pytest.mark.parametrize(
    ("label", "nth", "there"),
    [
        ("trash.before-rename", 1, True),
        ("move-dir.before-dir-fsync", 1, False),
        ("trash.after-rename", 1, False),
        ("trash.before-delete", 1, False),
        ("remove-tree.unlinked", 1, False),
        ("remove-tree.unlinked", 3, False),
    ],
)
def test_killed_at(killed_at, trash, step, out, label, nth, there):
    """The step is as it was, or not there at all; the next pass removes what is left."""
    killed_at(label, _TAKE, out, nth=nth)
    assert step.exists() == there
    if there:
        assert contents(step) == FILES
        take(trash, step)
    trash.empty_beside()
    trash.wait()
    assert in_trash(out) == []
    assert os.listdir(out) == []


def test_bytes_given_back_are_those_the_disk_gets(small_disk, make_step):
    """Two names of one file in a step, one name elsewhere, a sparse file, small files: statvfs is the judge."""
    out = small_disk / "out"
    step = make_step(out / "global_step_20", {"a": b"a" * 100_000, "b": b"b" * 5000, "shared": b"s" * 90_000})
    os.link(step / "a", step / "again")
    os.link(step / "shared", small_disk / "elsewhere")
    with (step / "sparse").open("wb") as file:
        file.truncate(10_000_000)
        file.write(b"x")
    trash = Trash(Staging(str(out)), str(out))
    expected, free = given_back([str(step)]), disk_of(str(small_disk)).free
    both = given_back([str(step), str(small_disk / "elsewhere")])
    take(trash, step)
    assert trash.returning == expected
    trash.empty_beside()
    trash.wait()
    assert disk_of(str(small_disk)).free - free == expected
    (small_disk / "elsewhere").unlink()
    assert disk_of(str(small_disk)).free - free == both


def test_a_full_disk_is_no_obstacle(small_disk, make_step):
    out = small_disk / "out"
    step = make_step(out / "global_step_20", FILES)
    with (small_disk / "full").open("wb", buffering=0) as file:
        while disk_of(str(small_disk)).free:
            file.write(b"f" * 4096)
    trash = Trash(Staging(str(out)), str(out))
    assert disk_of(str(small_disk)).free == 0
    take(trash, step)
    trash.empty_beside()
    trash.wait()
    assert disk_of(str(small_disk)).free >= 70_000


def test_a_foreign_owner_is_a_clear_error(as_nobody, public_dir, make_step):
    out = public_dir / "out"
    make_step(out / "global_step_20", FILES)
    (public_dir / ".out.ckptsync").mkdir(0o700)
    os.chown(public_dir / ".out.ckptsync", 65534, 65534)
    code = """
from ckptsync.disk.trash import Trash
out = sys.argv[1]
try:
    Trash(stage.Staging(out), out).take(scan.list_step(out + "/global_step_20"), ignored=lambda _: False)
except ConfigError as error:
    print(error)
"""
    assert "run as the user that owns output_dir" in as_nobody(code, out)
    assert contents(out / "global_step_20") == FILES
    assert ConfigError.exit_code == 3


def test_the_disk_serves_others_first():
    """In a process of its own: a thread does not come back from there."""
    code = "from ckptsync.disk.syscalls import idle_io; print(idle_io())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("True", "False")
    assert done.stdout.strip() == "True" or os.uname().machine not in syscalls._IOPRIO_SET
