import os
import posixpath
import shutil
import socket
import tempfile
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.disk import scan as scanning
from ckptsync.disk.scan import ensure_unchanged, list_step, resolve_output_dir, scan, step_dirs, unreadable
from ckptsync.errors import CheckpointError, ConfigError, StepChanged
from ckptsync.layouts.base import Layout
from ckptsync.model.paths import inside


class Numbered(Layout):  # only names matter to scans
    name = "numbered"

    def step_of(self, name):
        head, _, number = name.rpartition("_")
        return int(number) if head == "global_step" and number.isdigit() else None

    def recognise(self, paths):  # noqa: ARG002 - the interface
        return True

    def ignored(self, path):
        return path.endswith(".lock")

    def closing(self, paths):  # noqa: ARG002 - the interface
        return frozenset()

    def missing(self, sizes):  # noqa: ARG002 - the interface
        return ()

    def missing_here(self, sizes, seen):  # noqa: ARG002 - the interface
        return ()


LAYOUT = Numbered()


def codes(listing):
    return {(warning.path, warning.code) for warning in listing.warnings}


def test_steps_come_in_numeric_order_and_links_to_them_are_none(tmp_path, make_step):
    for step in (9, 10, 100, 99):
        make_step(tmp_path / f"global_step_{step}", {"f": b"x"})
    make_step(tmp_path / "global_step_20.partial", {"f": b"x"})
    (tmp_path / "global_step_7").write_bytes(b"a file")
    (tmp_path / "global_step_8").symlink_to("global_step_9")
    (tmp_path / "latest").symlink_to("global_step_100")
    assert [step for step, _ in step_dirs(str(tmp_path), LAYOUT)] == [9, 10, 99, 100]
    assert [listing.name for listing in scan(str(tmp_path), LAYOUT)] == [
        "global_step_9",
        "global_step_10",
        "global_step_99",
        "global_step_100",
    ]


def test_listing_has_files_dirs_and_stats(tmp_path, make_step):
    step = make_step(tmp_path / "global_step_1", {"actor/a.pt": b"12345", "data.pt": b"1", "x/y.lock": b""})
    os.chmod(step / "data.pt", 0o640)
    (listing,) = scan(str(tmp_path), LAYOUT)
    assert list(listing.files) == ["actor/a.pt", "data.pt"]
    assert listing.files["actor/a.pt"].size == 5
    assert listing.files["data.pt"].mode == 0o640
    assert list(listing.dirs) == ["", "actor", "x"]
    assert listing.warnings == ()


def test_listing_through_latest_names_the_step(tmp_path, make_step):
    make_step(tmp_path / "global_step_1", {"f": b"x"})
    (tmp_path / "latest").symlink_to("global_step_1")
    listing = list_step(str(tmp_path / "latest"))
    assert (listing.name, listing.path) == ("global_step_1", str(tmp_path / "global_step_1"))


def test_links_inside_are_recorded_in_one_spelling(tmp_path, make_step):
    step = make_step(tmp_path / "step", {"a/b/file": b"x", "c/other": b"y"})
    for link, target in {
        "plain": "a/b/file",
        "dotted": "./a//b/../b/file",
        "absolute": str(step / "c" / "other"),
        "a/up": "../c",
        "a/b/around": "../../../step/c/other",
        "self": ".",
        "a/b/top": "../..",
        "chain": "a/up/other",
    }.items():
        (step / link).symlink_to(target)
    listing = list_step(str(step))
    assert listing.links == {
        "plain": "a/b/file",
        "dotted": "a/b/file",
        "absolute": "c/other",
        "a/up": "../c",
        "a/b/around": "../../c/other",
        "self": ".",
        "a/b/top": "../..",
        "chain": "a/up/other",
    }
    assert listing.warnings == ()
    assert set(listing.files) == {"a/b/file", "c/other"}


def test_absolute_link_through_another_name_of_the_root_is_inside(tmp_path, make_step):
    make_step(tmp_path / "real" / "step", {"file": b"x"})
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "real" / "step" / "link").symlink_to(tmp_path / "alias" / "step" / "file")
    assert list_step(str(tmp_path / "real" / "step")).links == {"link": "file"}
    assert list_step(str(tmp_path / "alias" / "step")).links == {"link": "file"}


def test_links_that_leave_are_followed_with_a_warning(tmp_path, make_step):
    make_step(tmp_path / "outside" / "dir", {"in/file": b"123", "peer": b"1"})
    (tmp_path / "outside" / "dir" / "local").symlink_to("peer")
    (tmp_path / "outside" / "dir" / "loop").symlink_to(tmp_path / "outside" / "dir")
    step = make_step(tmp_path / "step", {"own": b"x"})
    (step / "file-link").symlink_to("../outside/dir/in/file")
    (step / "dir-link").symlink_to(tmp_path / "outside" / "dir")
    listing = list_step(str(step))
    assert set(listing.files) == {"own", "file-link", "dir-link/in/file", "dir-link/peer"}
    assert listing.files["file-link"].size == 3
    assert listing.links == {"dir-link/local": "peer"}
    assert codes(listing) == {
        ("file-link", "outside-link"),
        ("dir-link", "outside-link"),
        ("dir-link/loop", "outside-link"),
        ("dir-link/loop", "loop"),
    }


def test_a_link_to_what_holds_the_step_is_a_loop_and_not_a_walk_over_the_disk(tmp_path, make_step):
    step = make_step(tmp_path / "step", {"own": b"x"})
    (step / "root").symlink_to("/")
    (step / "parent").symlink_to("..")
    listing = list_step(str(step))
    assert list(listing.files) == ["own"]
    assert {("root", "loop"), ("parent", "loop")} <= codes(listing)


def test_a_dotdot_behind_a_link_is_what_the_kernel_says(tmp_path, make_step):
    make_step(tmp_path / "outside", {"deep/x": b"", "secret": b"outside"})
    step = make_step(tmp_path / "step", {"secret": b"in"})
    (step / "ext").symlink_to(tmp_path / "outside" / "deep")
    (step / "trick").symlink_to("ext/../secret")
    listing = list_step(str(step))
    assert listing.files["trick"].size == len(b"outside")
    assert ("trick", "outside-link") in codes(listing)


def test_broken_links_loops_and_special_files_are_warnings(tmp_path, make_step, monkeypatch):
    step = make_step(tmp_path / "step", {"own": b"x", "skipped.lock": b""})
    (step / "broken").symlink_to("nowhere")
    (step / "broken-outside").symlink_to("../nowhere")
    (step / "self-loop").symlink_to("self-loop")
    (step / "one").symlink_to("two")
    (step / "two").symlink_to("one")
    (step / "into").symlink_to("into/itself")
    (step / "to-ignored").symlink_to("skipped.lock")
    os.mkfifo(step / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(step)  # socket paths are short
        server.bind("socket")
    listing = list_step(str(step), ignored=LAYOUT.ignored)
    assert list(listing.files) == ["own"]
    assert listing.links == {}
    assert {path for path, _ in codes(listing)} == {
        "broken",
        "broken-outside",
        "self-loop",
        "one",
        "two",
        "into",
        "to-ignored",
        "fifo",
        "socket",
    }


def test_a_name_that_is_not_utf8_round_trips(tmp_path):
    raw = os.fsencode(tmp_path) + b"/step"
    os.mkdir(raw)
    with open(raw + b"/\xff\xfe.pt", "wb") as file:
        file.write(b"x")
    listing = list_step(os.fsdecode(raw))
    assert [os.fsencode(path) for path in listing.files] == [b"\xff\xfe.pt"]


@st.composite
def trees(draw):
    """Directories a..c at depths 1 to 2, files in some, links with any target between them, the root and outside."""
    places = ["", "a", "a/b", "c"]
    names = ["f", "l1", "l2", "l3"]
    pieces = st.sampled_from(["..", ".", "a", "b", "c", "f", "l1", "l2", "l3", "step", "outside"])
    relative = st.lists(pieces, min_size=1, max_size=5).map("/".join)
    absolute = st.tuples(st.sampled_from(["{top}", "{top}/step", "{top}/outside"]), relative).map("/".join)
    spot = st.tuples(st.sampled_from(places), st.sampled_from(names))
    links = st.dictionaries(spot, relative | absolute, max_size=6)
    return (
        draw(links),
        draw(st.sets(spot, max_size=4)),
        draw(st.dictionaries(st.sampled_from(names), relative, max_size=3)),
    )


def build(top, tree):
    links, files, outside = tree
    for place in ("step/a/b", "step/c", "outside/a"):
        os.makedirs(os.path.join(top, place))
    for place, name in files:
        with open(os.path.join(top, "step", place, name), "w", encoding="ascii") as file:
            file.write(place + name)
    for (place, name), target in links.items():
        path = os.path.join(top, "step", place, name)
        if not os.path.lexists(path):
            os.symlink(target.format(top=top), path)
    for name, target in outside.items():
        os.symlink(target, os.path.join(top, "outside", name))


@settings(max_examples=40, deadline=None)
@given(trees())
def test_nothing_leaves_the_step_unwarned_and_every_link_restores_to_the_same_content(tree):
    with tempfile.TemporaryDirectory() as base:
        top = os.path.join(base, "1/2/3/4/5/6")  # more levels than the links have `..`: nothing leads out of `base`
        os.makedirs(top)
        build(top, tree)
        step = os.path.join(top, "step")
        listing = list_step(step)
        left = [warning.path for warning in listing.warnings if warning.code == "outside-link"]
        for path in listing.files:
            in_step = os.path.realpath(os.path.join(step, path)).startswith(os.path.realpath(step) + "/")
            assert in_step or any(path == link or path.startswith(link + "/") for link in left)
        copy = os.path.join(top, "copy")
        for path in listing.dirs:
            os.makedirs(os.path.join(copy, path), exist_ok=True)
        for path in listing.files:
            shutil.copyfile(os.path.join(step, path), os.path.join(copy, path))
        for path, target in listing.links.items():
            resolved = inside(posixpath.dirname(path), target)
            assert resolved is not None
            assert posixpath.relpath(resolved or ".", posixpath.dirname(path) or ".") == target
            os.symlink(target, os.path.join(copy, path))
        for path in listing.links:
            original, restored = os.path.join(step, path), os.path.join(copy, path)
            assert os.path.exists(restored)
            assert os.path.isdir(original) == os.path.isdir(restored)
            if os.path.isfile(original):
                with open(original, "rb") as one, open(restored, "rb") as other:
                    assert one.read() == other.read()


def test_a_trainer_that_deletes_while_we_scan_is_no_error(tmp_path, make_step):
    stop = threading.Event()

    def trainer():
        while not stop.is_set():
            step = make_step(tmp_path / "global_step_1", {f"actor/d{n}/f": b"x" for n in range(20)})
            shutil.rmtree(step)

    thread = threading.Thread(target=trainer)
    thread.start()
    try:
        seen = [len(listing.files) for _ in range(150) for listing in scan(str(tmp_path), LAYOUT)]
    finally:
        stop.set()
        thread.join()
    assert all(0 <= count <= 20 for count in seen)


def test_a_vanished_step_directory_is_step_changed(tmp_path):
    with pytest.raises(StepChanged):
        list_step(str(tmp_path / "gone"))


def test_limits_refuse_one_step_and_not_the_scan(tmp_path, make_step, monkeypatch):
    make_step(tmp_path / "global_step_1", {"a": b"", "b": b"", "c": b""})
    make_step(tmp_path / "global_step_2", {"a": b""})
    monkeypatch.setattr(scanning, "ENTRIES_MAX", 2)
    with pytest.raises(CheckpointError):
        list_step(str(tmp_path / "global_step_1"))
    big, small = scan(str(tmp_path), LAYOUT)
    assert [problem.code for problem in unreadable(big)] == ["limits"]
    assert unreadable(small) == ()


def test_too_deep_a_tree_is_refused(tmp_path):
    os.makedirs(tmp_path / "/".join("d" * (scanning.DEPTH_MAX + 5)))
    with pytest.raises(CheckpointError, match="deeper"):
        list_step(str(tmp_path / "d"))


def test_unchanged_means_same_file_same_bytes_but_a_staging_link_is_fine(tmp_path, make_step):
    step = make_step(tmp_path / "step", {"a": b"1", "b": b"2"})
    listing = list_step(str(step))
    os.link(step / "a", tmp_path / "staged")
    ensure_unchanged(listing)
    (step / "b").write_bytes(b"3")
    with pytest.raises(StepChanged, match="changed"):
        ensure_unchanged(listing)
    (step / "b").unlink()
    with pytest.raises(StepChanged, match="vanished"):
        ensure_unchanged(listing)


def test_output_dir_is_found_where_trainers_put_steps(tmp_path, make_step):
    top = str(tmp_path)
    assert resolve_output_dir(top, LAYOUT.step_of) == top
    make_step(tmp_path / "checkpoints" / "project" / "run" / "global_step_1", {"f": b"x"})
    assert resolve_output_dir(top, LAYOUT.step_of) == f"{top}/checkpoints/project/run"
    assert resolve_output_dir(f"{top}/checkpoints", LAYOUT.step_of) == f"{top}/checkpoints/project/run"
    make_step(tmp_path / "checkpoints" / "project" / "other" / "global_step_1", {"f": b"x"})
    with pytest.raises(ConfigError) as caught:
        resolve_output_dir(top, LAYOUT.step_of)
    assert "project/run" in str(caught.value)
    assert "project/other" in str(caught.value)
    make_step(tmp_path / "checkpoints" / "global_step_1", {"f": b"x"})
    assert resolve_output_dir(top, LAYOUT.step_of) == f"{top}/checkpoints"
    make_step(tmp_path / "global_step_1", {"f": b"x"})
    assert resolve_output_dir(top, LAYOUT.step_of) == top


def test_missing_output_dir_says_missing(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_output_dir(str(tmp_path / "nope"), LAYOUT.step_of)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve_output_dir(str(tmp_path / "file"), LAYOUT.step_of)


def test_files_of_another_user_are_named_with_their_owner(public_dir, make_step, as_nobody):
    step = make_step(public_dir / "step", {"model.safetensors": b"x", "ok.json": b"{}", "closed/f": b""})
    os.chmod(step / "model.safetensors", 0o600)
    os.chmod(step / "closed", 0o700)
    code = "print(*scan.unreadable(scan.list_step(sys.argv[1])), sep='\\n')"
    printed = as_nobody(code, step).splitlines()
    assert [line.partition(":")[0] for line in printed] == ["closed", "model.safetensors"]
    assert all("run ckptsync as user root" in line for line in printed)


def test_unreadable_output_dir_is_a_config_error(public_dir, as_nobody):
    (public_dir / "out").mkdir(mode=0o700)
    code = "try: scan.resolve_output_dir(sys.argv[1], len)\nexcept ConfigError as error: print(error)"
    assert "run as the user that owns output_dir" in as_nobody(code, public_dir / "out")


def test_a_link_through_a_file_leads_nowhere(tmp_path):
    """`../f/..` reads as the step itself, but `f` is a file: the kernel refuses it, and so does the scan."""
    step = tmp_path / "step"
    (step / "a").mkdir(parents=True)
    (step / "f").write_bytes(b"x")
    (step / "a" / "link").symlink_to("../f/..")
    listing = list_step(str(step))
    assert listing.links == {}
    assert [warning.path for warning in listing.warnings] == ["a/link"]
