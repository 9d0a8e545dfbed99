import os
import shutil
import subprocess

import pytest

from ckptsync.disk import stage as staging_module
from ckptsync.disk.durable import LinkRefusal, hard_link
from ckptsync.disk.scan import list_step
from ckptsync.disk.stage import Protection, Staging, free_bytes
from ckptsync.disk.verify import StepInspection, read_step
from ckptsync.errors import CkptsyncError, ConfigError, NoSpaceError, StepChanged

NOTHING = StepInspection((), {}, ())
FILES = {"actor/a.pt": b"aaa", "actor/deep/b.pt": b"bb", "data.pt": b"d"}
STAGE = """
import sys
from ckptsync.disk.scan import list_step
from ckptsync.disk.stage import Staging
Staging(sys.argv[1]).stage(list_step(sys.argv[1] + "/global_step_10"))
"""


@pytest.fixture
def output_dir(tmp_path, make_step):
    make_step(tmp_path / "out" / "global_step_10", FILES)
    return tmp_path / "out"


def listing_of(output_dir):
    return list_step(str(output_dir / "global_step_10"))


def everything_below(path):
    return sorted(os.path.join(root, name) for root, dirs, files in os.walk(path) for name in dirs + files)


def refuse_links(monkeypatch):
    monkeypatch.setattr(staging_module.durable, "hard_link", lambda *_: LinkRefusal.NOT_PERMITTED)


def test_a_staged_step_outlives_the_trainers_rotation(output_dir):
    staging = Staging(str(output_dir))
    staged = staging.stage(listing_of(output_dir))
    assert (staged.protection, staged.why) == (Protection.LINKED, "")
    shutil.rmtree(output_dir / "global_step_10")
    assert len(read_step(staged.listing, NOTHING).digests) == 3
    assert staged.listing.name == "global_step_10"
    assert staging.path_of(staged.key) == staged.listing.path
    assert os.stat(staging.root).st_mode & 0o777 == 0o700
    assert os.path.dirname(staging.root) == os.path.dirname(output_dir)


def test_staging_leaves_output_dir_exactly_as_it_was(output_dir):
    before = {path: os.lstat(path).st_mtime_ns for path in [str(output_dir), *everything_below(output_dir)]}
    staging = Staging(str(output_dir))
    staging.release(staging.stage(listing_of(output_dir)).key)
    assert {path: os.lstat(path).st_mtime_ns for path in [str(output_dir), *everything_below(output_dir)]} == before


def test_staging_twice_is_once_and_other_content_is_another(output_dir):
    staging = Staging(str(output_dir))
    first = staging.stage(listing_of(output_dir))
    assert staging.stage(listing_of(output_dir)).key == first.key
    (output_dir / "global_step_10" / "data.pt").unlink()
    (output_dir / "global_step_10" / "data.pt").write_bytes(b"re-saved")
    second = staging.stage(listing_of(output_dir))
    assert staging.staged() == tuple(sorted([first.key, second.key]))
    staging.release(first.key)
    staging.release(first.key)
    assert Staging(str(output_dir)).staged() == (second.key,)


def test_a_rewrite_in_place_shows_through_the_link_and_is_noticed(output_dir):
    staged = Staging(str(output_dir)).stage(listing_of(output_dir))
    (output_dir / "global_step_10" / "data.pt").write_bytes(b"in place")
    with pytest.raises(StepChanged):
        read_step(staged.listing, NOTHING)


def test_where_links_are_refused_files_are_held_open(output_dir, monkeypatch):
    refuse_links(monkeypatch)
    staging = Staging(str(output_dir))
    staged = staging.stage(listing_of(output_dir))
    assert staged.protection is Protection.HELD
    assert LinkRefusal.NOT_PERMITTED.value in staged.why
    assert staging.stage(listing_of(output_dir)).key == staged.key
    shutil.rmtree(output_dir / "global_step_10")
    assert len(read_step(staged.listing, NOTHING).digests) == 3
    staging.repair()
    assert staging.staged() == (staged.key,)
    before = len(os.listdir("/proc/self/fd"))
    staging.close()
    assert len(os.listdir("/proc/self/fd")) == before - 3
    assert not os.path.exists(staged.listing.path)


def test_too_many_files_to_hold_are_read_where_they_are_and_it_says_so(output_dir, monkeypatch):
    refuse_links(monkeypatch)
    monkeypatch.setattr(staging_module, "_descriptors_suffice", lambda _: False)
    staged = Staging(str(output_dir)).stage(listing_of(output_dir))
    assert staged.protection is Protection.NONE
    assert staged.listing.path == str(output_dir / "global_step_10")
    assert "too many files" in staged.why


def test_a_file_that_vanishes_or_moves_while_staging_voids_it(output_dir, monkeypatch):
    listing = listing_of(output_dir)
    (output_dir / "global_step_10" / "data.pt").write_bytes(b"other")
    staging = Staging(str(output_dir))
    with pytest.raises(StepChanged):
        staging.stage(listing)
    (output_dir / "global_step_10" / "data.pt").unlink()
    with pytest.raises(StepChanged):
        Staging(str(output_dir)).stage(list_step(str(output_dir / "global_step_10")).__class__(**_with_ghost(listing)))
    refuse_links(monkeypatch)
    with pytest.raises(StepChanged):
        staging.stage(list_step(str(output_dir / "global_step_10")).__class__(**_with_ghost(listing)))
    assert os.listdir(os.path.join(staging.root, "tmp")) == []


def _with_ghost(listing):
    ghost = {"ghost": listing.files["data.pt"]}
    return {"name": listing.name, "path": listing.path, "files": ghost, "dirs": listing.dirs}


@pytest.mark.parametrize("label", ["stage.linked-one", "stage.before-rename", "move-dir.before-dir-fsync"])
def test_killed_staging_leaves_a_whole_tree_or_what_repair_removes(output_dir, killed_at, label):
    killed_at(label, STAGE, output_dir)
    staging = Staging(str(output_dir))
    whole = staging.staged()
    assert len(whole) == (label == "move-dir.before-dir-fsync")
    staging.repair()
    staging.repair()
    assert staging.staged() == whole
    assert os.listdir(os.path.join(staging.root, "tmp")) == []
    staged = staging.stage(listing_of(output_dir))
    assert len(read_step(staged.listing, NOTHING).digests) == 3


def test_a_held_tree_of_a_killed_process_is_removed(output_dir, killed_at):
    code = (
        "from ckptsync.disk import durable\nfrom ckptsync.disk.durable import LinkRefusal, crash_point\n"
        "durable.hard_link = lambda *_: LinkRefusal.TOO_MANY\n" + STAGE + "\ncrash_point('stage.before-rename')"
    )
    killed_at("stage.before-rename", code, output_dir)
    staging = Staging(str(output_dir))
    assert len(os.listdir(os.path.join(staging.root, "held"))) == 1
    assert staging.staged() == ()
    staging.repair()
    assert os.listdir(os.path.join(staging.root, "held")) == []


def test_repair_removes_half_restores_and_never_what_was_superseded(output_dir):
    staging = Staging(str(output_dir))
    restore = staging.new_restore("global_step_20")
    assert os.stat(restore).st_mode & 0o777 == 0o700
    assert restore != staging.new_restore("global_step_20")
    aside = staging.superseded_path("global_step_30", "20250131T120000Z")
    os.makedirs(aside + "/kept")
    assert staging.superseded_path("global_step_30", "20250131T120000Z") == aside + ".2"
    staging.repair()
    assert os.listdir(os.path.join(staging.root, "restore")) == []
    assert os.path.isdir(aside + "/kept")


def test_repair_before_anything_was_staged_does_nothing(tmp_path):
    staging = Staging(str(tmp_path / "out"))
    staging.repair()
    assert staging.staged() == ()
    assert os.listdir(tmp_path) == []


def test_another_mount_names_the_common_parent(tmp_path, output_dir):
    if os.geteuid() != 0:
        pytest.skip("binding a mount needs root")
    if subprocess.run(["mount", "--bind", output_dir, output_dir], check=False, capture_output=True).returncode:
        pytest.skip("this environment does not allow mounts")
    try:
        assert os.stat(output_dir).st_dev == os.stat(tmp_path).st_dev  # which is why it is found out by trying
        with pytest.raises(ConfigError) as caught:
            Staging(str(output_dir)).ensure()
        assert f"ReadWritePaths={tmp_path}" in str(caught.value)
    finally:
        subprocess.run(["umount", "-l", output_dir], check=True)


def test_a_full_disk_is_no_space_and_leaves_no_half_tree(small_disk, make_step):
    make_step(small_disk / "out" / "global_step_10", {f"{number}/f": b"" for number in range(25)})
    with pytest.raises(NoSpaceError):
        Staging(str(small_disk / "out")).stage(listing_of(small_disk / "out"))
    assert not [path for path in everything_below(small_disk) if "link#" in path]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_staging_place_that_is_not_our_directory_is_refused(output_dir, tmp_path, kind):
    place = tmp_path / ".out.ckptsync"
    if kind == "file":
        place.write_bytes(b"")
    else:
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to("elsewhere")
    with pytest.raises(CkptsyncError):
        Staging(str(output_dir)).stage(listing_of(output_dir))


def test_somebody_elses_staging_place_is_refused_with_the_remedy(public_dir, as_nobody):
    os.mkdir(public_dir / "out")
    os.mkdir(public_dir / ".out.ckptsync")
    code = "try: stage.Staging(sys.argv[1]).ensure()\nexcept ConfigError as error: print(error)"
    assert "run as the user that owns output_dir" in as_nobody(code, public_dir / "out")


def test_as_root_staging_belongs_to_the_owner_of_output_dir(output_dir):
    if os.geteuid() != 0:
        pytest.skip("giving directories away needs root")
    os.chown(output_dir, 65534, 65534)
    staging = Staging(str(output_dir))
    restore = os.path.dirname(staging.new_restore("global_step_20"))
    assert {os.stat(path).st_uid for path in (staging.root, restore)} == {65534}


def test_free_bytes_of_a_path_that_is_yet_to_be_made(small_disk):
    assert 0 < free_bytes(str(small_disk / "not" / "yet")) <= 1 << 20


def test_links_to_other_users_files_are_refused_as_a_value(public_dir, as_nobody):
    with open("/proc/sys/fs/protected_hardlinks", encoding="ascii") as file:
        if file.read().strip() != "1":
            pytest.skip("this kernel lets everybody link everything")
    (public_dir / "file").write_bytes(b"x")
    (public_dir / "theirs").mkdir()
    os.chmod(public_dir / "theirs", 0o777)
    os.chmod(public_dir / "file", 0o644)
    assert hard_link(str(public_dir / "file"), str(public_dir / "mine")) is None
    code = "print(durable.hard_link(sys.argv[1] + '/file', sys.argv[1] + '/theirs/file').name)"
    assert as_nobody(code, public_dir) == "NOT_PERMITTED"
