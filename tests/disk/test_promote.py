import contextlib
import errno
import os

import pytest

from ckptsync.disk.promote import Pointer, promote
from ckptsync.disk.scan import list_step
from ckptsync.errors import CheckpointError, ConfigError, NoSpaceError, StepChanged
from ckptsync.testing import crash

PROMOTE = """
import sys
from ckptsync.disk.promote import Pointer, promote
from ckptsync.disk.scan import list_step
output_dir, link, temp_dir, name = sys.argv[1:]
promote(list_step(f"{output_dir}/{name}"), Pointer(link, output_dir, temp_dir))
"""
LABELS = [
    "promote.before-fsync",
    "fsync-tree.files-done",
    "promote.before-check",
    "promote.before-link",
    "replace-link.before-rename",
    "replace-link.before-dir-fsync",
    "promote.after-link",
]


@pytest.fixture
def place(tmp_path, make_step):
    """output_dir with steps 10 and 20, and a directory for temporary links."""
    for step in (10, 20):
        make_step(tmp_path / "out" / f"global_step_{step}", {"actor/a.pt": b"x", "data.pt": b"y"})
    (tmp_path / "tmp").mkdir()
    return tmp_path


def pointer_of(place, link="out/latest"):
    return Pointer(str(place / link), str(place / "out"), str(place / "tmp"))


def listing_of(place, step):
    return list_step(str(place / "out" / f"global_step_{step}"))


def test_latest_is_relative_in_output_dir_and_absolute_elsewhere(place):
    near, far = pointer_of(place), pointer_of(place, "state/latest")
    (place / "state").mkdir()
    for pointer in (near, far):
        assert pointer.current() is None
        promote(listing_of(place, 10), pointer)
        promote(listing_of(place, 20), pointer)
        assert pointer.current() == "global_step_20"
    assert os.readlink(place / "out" / "latest") == "global_step_20"
    assert os.readlink(place / "state" / "latest") == str(place / "out" / "global_step_20")
    assert os.listdir(place / "tmp") == []
    assert sorted(os.listdir(place / "out")) == ["global_step_10", "global_step_20", "latest"]


@pytest.mark.parametrize("label", LABELS)
def test_killed_anywhere_latest_names_the_old_or_the_new_step(place, killed_at, label):
    pointer = pointer_of(place)
    promote(listing_of(place, 10), pointer)
    killed_at(label, PROMOTE, place / "out", pointer.path, place / "tmp", "global_step_20")
    moved = label in LABELS[LABELS.index("replace-link.before-dir-fsync") :]
    assert pointer.current() == ("global_step_20" if moved else "global_step_10")
    pointer.repair()
    pointer.repair()
    assert os.listdir(place / "tmp") == []
    promote(listing_of(place, 20), pointer)
    assert pointer.current() == "global_step_20"


def test_all_crash_points_of_promotion_are_in_the_test_above():
    ours = {label for label in crash.labels() if label.startswith(("promote.", "fsync-tree.", "replace-link."))}
    assert ours == set(LABELS)


def test_control_an_unlink_then_link_pointer_can_be_lost(place, killed_at):
    """What the test above would catch: the naive way leaves no `latest` at all when it is killed in between."""
    naive = (
        "import os, sys\nfrom ckptsync.disk.durable import crash_point\n"
        "os.unlink(sys.argv[1])\ncrash_point('replace-link.before-rename')\nos.symlink('global_step_20', sys.argv[1])"
    )
    pointer = pointer_of(place)
    promote(listing_of(place, 10), pointer)
    killed_at("replace-link.before-rename", naive, pointer.path)
    assert pointer.current() is None


def test_a_step_that_moved_is_not_promoted(place):
    pointer = pointer_of(place)
    listing = listing_of(place, 20)
    (place / "out" / "global_step_20" / "data.pt").write_bytes(b"rewritten")
    with pytest.raises(StepChanged):
        promote(listing, pointer)
    (place / "out" / "global_step_20" / "data.pt").unlink()
    with pytest.raises(StepChanged):
        promote(listing, pointer)
    assert pointer.current() is None


def test_a_failing_disk_leaves_latest_and_is_asked_once(place, monkeypatch):
    pointer = pointer_of(place)
    promote(listing_of(place, 10), pointer)
    calls = []

    def fail(descriptor):
        calls.append(os.fstat(descriptor).st_ino)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(CheckpointError):
            promote(listing_of(place, 20), pointer)
    assert calls
    assert len(calls) == len(set(calls)), "a kernel that has reported the loss once calls the file clean the next time"
    assert pointer.current() == "global_step_10"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_latest_that_is_no_link_is_never_replaced(place, kind):
    latest = place / "out" / "latest"
    if kind == "file":
        latest.write_text("global_step_10")
    else:
        latest.mkdir()
    pointer = pointer_of(place)
    obstacle = pointer.obstacle()
    assert obstacle is not None
    assert obstacle.code == "not-a-link"
    for act in (lambda: promote(listing_of(place, 20), pointer), pointer.current, pointer.withdraw):
        with pytest.raises(ConfigError, match="not a symbolic link"):
            act()
    assert latest.exists()
    assert not latest.is_symlink()


def test_withdraw_takes_the_link_and_nothing_else(place):
    pointer = pointer_of(place)
    promote(listing_of(place, 20), pointer)
    assert pointer.obstacle() is None
    pointer.withdraw()
    pointer.withdraw()
    assert pointer.current() is None
    assert (place / "out" / "global_step_20" / "data.pt").exists()


def test_a_link_to_elsewhere_names_no_step(place):
    (place / "out" / "latest").symlink_to("../tmp")
    assert pointer_of(place).current() is None


@pytest.mark.parametrize("name", ["missing", "latest", "", ".", "..", "global_step_10/actor"])
def test_only_step_directories_can_be_named(place, name):
    (place / "out" / "latest").symlink_to("global_step_10")
    with pytest.raises(CheckpointError):
        pointer_of(place).point_to(name)
    assert os.readlink(place / "out" / "latest") == "global_step_10"


def test_where_a_rename_crosses_mounts_the_link_is_made_beside_under_a_hidden_name(small_disk, make_step, monkeypatch):
    make_step(small_disk / "out" / "global_step_10", {"data.pt": b"y"})
    (small_disk.parent / "tmp").mkdir()
    pointer = Pointer(str(small_disk / "out/latest"), str(small_disk / "out"), str(small_disk.parent / "tmp"))
    seen = []
    replace = os.replace

    def spy(source, target):
        seen.append(os.path.relpath(source, small_disk.parent))
        replace(source, target)

    monkeypatch.setattr(os, "replace", spy)
    promote(list_step(str(small_disk / "out" / "global_step_10")), pointer)
    assert pointer.current() == "global_step_10"
    assert [os.path.dirname(path) for path in seen] == ["tmp", "small/out"]
    assert os.path.basename(seen[1]).startswith(".latest#")
    assert sorted(os.listdir(small_disk / "out")) == ["global_step_10", "latest"]
    assert os.listdir(small_disk.parent / "tmp") == []


def test_a_full_disk_leaves_the_old_latest(small_disk, make_step):
    make_step(small_disk / "out" / "global_step_10", {"data.pt": b"y"})
    make_step(small_disk / "out" / "global_step_20", {"data.pt": b"y"})
    pointer = Pointer(str(small_disk / "out/latest"), str(small_disk / "out"), str(small_disk / "out"))
    promote(list_step(str(small_disk / "out" / "global_step_10")), pointer)
    with contextlib.suppress(OSError):
        for number in range(64):  # every inode, so that no link can be made
            (small_disk / f"filler-{number}").write_bytes(b"")
    with pytest.raises(NoSpaceError):
        promote(list_step(str(small_disk / "out" / "global_step_20")), pointer)
    assert pointer.current() == "global_step_10"


def test_another_users_output_dir_is_a_config_error(public_dir, make_step, as_nobody):
    make_step(public_dir / "out" / "global_step_10", {"data.pt": b"y"})
    code = (
        "out = sys.argv[1]\nstep = scan.list_step(out + '/global_step_10')\n"
        "try: promote.promote(step, promote.Pointer(out + '/latest', out, out))\n"
        "except ConfigError as error: print(error)"
    )
    assert "run as the user that owns output_dir" in as_nobody(code, public_dir / "out")


def test_a_link_without_a_directory_is_an_obstacle(place):
    pointer = pointer_of(place, "not/made/latest")
    assert "its directory does not exist" in pointer.obstacle().message
    with pytest.raises(ConfigError):
        pointer.current()
