"""Whatever is wrong in the store, on the disk or on the way: one line, the right exit code, and nothing has changed."""

import os
import shutil
import struct
import subprocess
from dataclasses import replace

import pytest
import zstandard

from ckptsync.actions.pull import pull_step
from ckptsync.app import open_node
from ckptsync.config import load
from ckptsync.errors import NoSpaceError
from ckptsync.model.manifest import Commit, DirEntry, FileEntry, LinkEntry, canonical
from ckptsync.model.parse import parse_part
from ckptsync.store import keys
from ckptsync.testing.checkpoints import verl_step


@pytest.fixture(scope="module")
def filled_store(warm, tmp_path_factory, node_class):
    """A store with step 20, as one node pushed it."""
    node = node_class(warm, tmp_path_factory.mktemp("filled"))
    verl_step(node.ckpt, 20, world=2)
    node.once()
    return node.store


@pytest.fixture
def saved(make_node, filled_store, tmp_path, tree_of):
    """A node with an own older step 10, and a store with step 20 that it has not: (node, refused).

    `refused(code, *words)` pulls and proves that nothing happened but one line.
    """
    shutil.copytree(filled_store, tmp_path / "store")
    puller = make_node("n1", store=tmp_path / "store")
    verl_step(puller.ckpt, 10, world=2)
    puller.latest.symlink_to("global_step_10")
    before = tree_of(puller.ckpt)

    def refused(code, *words):
        done = puller.run("pull", "--json", "--step", "20")
        assert done.code == code, done.err
        assert all(word in done.line for word in words), done.line
        assert done.out == ""
        assert "Traceback" not in done.err
        assert tree_of(puller.ckpt) == before
        assert puller.leftovers() == []
        superseded = puller.staging / "superseded"
        assert not superseded.exists() or os.listdir(superseded) == []

    return puller, refused


def chunk_of_step(node, step):
    """A chunk that only this step has."""
    others, mine = set(), set()
    for path in (node.store / "r/steps").glob("*/parts/*"):
        part = parse_part(zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 24))
        (mine if part.step == step else others).update(chunk.key for chunk in part.chunks)
    key = min(mine - others)
    return node.store / "r/chunks" / key[:2] / key


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def lying_frame(data):
    """A right header, and a frame that unpacks to far more than it says (codec 1 is zstd, the header has 16 bytes)."""
    return data[:6] + struct.pack("<BBHH", 1, 1, 0, 16) + data[12:16] + zstandard.compress(bytes(64 << 20))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flip, id="flipped"),
        pytest.param(lambda data: data[:-1], id="cut short"),
        pytest.param(lambda data: data + b"x", id="too long"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"<Error><Code>SlowDown</Code></Error>", id="an error page"),
        pytest.param(lying_frame, id="lying frame"),
        pytest.param(None, id="missing"),
    ],
)
def test_a_bad_chunk_is_named(saved, damage):
    puller, refused = saved
    chunk = chunk_of_step(puller, 20)
    good = chunk.read_bytes()
    if damage is None:
        chunk.unlink()
    else:
        chunk.write_bytes(damage(good))
    refused(6, chunk.name)
    chunk.write_bytes(good)
    assert puller.pull("--step", "20")["step"] == 20


def part_path(node, step):
    (path,) = (node.store / "r/steps" / f"{step:012d}" / "parts").iterdir()
    return path


def test_a_part_that_is_not_what_its_name_says_is_not_used(saved):
    puller, refused = saved
    path = part_path(puller, 20)
    data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 24)
    path.write_bytes(zstandard.compress(data.replace(b'"closed":true', b'"closed":false')))
    refused(5, "step 20", "missing or broken")


@pytest.mark.parametrize("data", [b"", b"not zstd", zstandard.compress(b"{}"), zstandard.compress(b"x") * 2])
def test_a_part_that_is_no_part_is_not_used(saved, data):
    puller, refused = saved
    part_path(puller, 20).write_bytes(data)
    refused(5, "step 20", "missing or broken")


def test_a_commit_whose_part_is_gone_is_not_used(saved):
    puller, refused = saved
    part_path(puller, 20).unlink()
    refused(5, "step 20", "missing or broken")


def test_a_commit_that_is_not_what_its_name_says_is_not_used(saved):
    puller, refused = saved
    (path,) = (puller.store / "r/steps" / f"{20:012d}" / "commits").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"step":20', b'"step":21'))
    refused(5, "step 20")


def forge(node, change):
    """Replace step 20 in the store by a part that `change` made hostile; digest, mark and commit are right."""
    data = zstandard.ZstdDecompressor().decompress(part_path(node, 20).read_bytes(), max_output_size=1 << 24)
    part = change(parse_part(data))
    shutil.rmtree(node.store / "r/steps" / f"{20:012d}")
    commit = Commit(part.run, part.run_id, 20, (part.id,))
    for key, content in (
        (keys.part_key("r", 20, str(part.id)), zstandard.compress(part.to_bytes())),
        (keys.ready_key("r", 20, str(part.id)), b""),
        (keys.commit_key("r", 20, commit.digest), commit.to_bytes()),
    ):
        path = node.store / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def with_file(path):
    def change(part):
        first = part.files[0]
        extra = FileEntry(path, first.size, first.mode, first.mtime_ns, first.digest, first.extents)
        return replace(part, files=tuple(sorted((*part.files, extra), key=lambda f: f.path)))

    return change


def with_link(path, target):
    return lambda part: replace(part, links=(LinkEntry(path, target),))


def through_a_link(part):
    """A link to a directory, and a file below that link."""
    return with_link("way", "actor")(with_file("way/x")(part))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_file("/etc/ckptsync-escape"), id="absolute"),
        pytest.param(with_file("../escape"), id="dotdot"),
        pytest.param(with_file("actor/../../escape"), id="dotdot inside"),
        pytest.param(with_file("actor//x"), id="empty component"),
        pytest.param(with_file("./x"), id="dot"),
        pytest.param(with_file("data.pt/x"), id="below a file"),
        pytest.param(with_file("x\0y"), id="NUL"),
        pytest.param(with_link("way", "/etc"), id="absolute link"),
        pytest.param(with_link("way", "../../.."), id="link out"),
        pytest.param(with_link("way", "actor/../../x"), id="link out, spelled long"),
        pytest.param(through_a_link, id="through a link"),
        pytest.param(lambda part: replace(part, name=".."), id="name dotdot"),
        pytest.param(lambda part: replace(part, name="a/b"), id="name with slash"),
        pytest.param(lambda part: replace(part, below="../.."), id="below leaves"),
        pytest.param(lambda part: replace(part, dirs=(*part.dirs, DirEntry("zz/../..", 0o755, 0))), id="directory"),
        pytest.param(
            lambda part: replace(part, files=(replace(part.files[0], mode=0o4755), *part.files[1:])), id="set-uid"
        ),
        pytest.param(
            lambda part: replace(part, files=(replace(part.files[0], size=1 << 60), *part.files[1:])), id="size"
        ),
    ],
)
def test_a_hostile_part_writes_nothing(saved, change):
    puller, refused = saved
    forge(puller, change)
    around = {*os.listdir(puller.root), *os.listdir(puller.home)}
    refused(5, "step 20")
    now = {*os.listdir(puller.root), *os.listdir(puller.home)}
    assert now - around <= {"state", puller.staging.name}
    assert not os.path.exists("/etc/ckptsync-escape")


def test_the_forging_itself_is_right(saved):
    """The control: without a hostile change the forged step is restored."""
    puller, _ = saved
    forge(puller, with_file("actor/one more"))
    puller.pull("--step", "20")
    assert (puller.ckpt / "global_step_20/actor/one more").is_file()


def test_a_file_whose_digest_is_not_its_chunks_is_not_placed(saved):
    """Every chunk is right, but the file they make is another one."""
    puller, refused = saved
    wrong = {"digest": "0" * 64}
    forge(puller, lambda part: replace(part, files=(replace(part.files[0], **wrong), *part.files[1:])))
    refused(6, "digest")


def test_a_document_of_another_run_is_not_used(saved):
    puller, refused = saved
    forge(puller, lambda part: replace(part, run_id="another"))
    refused(5, "step 20")


@pytest.mark.parametrize("content", [b"", canonical({"kind": "run"}), b"\xff"])
def test_an_unreadable_run_is_an_error_of_the_store(saved, content):
    puller, refused = saved
    (puller.store / "r/run.json").write_bytes(content)
    refused(6, "run.json")


def test_a_link_in_the_place_of_the_step_is_not_followed(saved, tree_of):
    puller, _ = saved
    elsewhere = puller.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    (puller.ckpt / "global_step_20").symlink_to(elsewhere)
    before = tree_of(puller.ckpt)
    done = puller.run("pull", "--step", "20")
    assert tree_of(elsewhere)[b"file"][3] != ""
    assert os.listdir(elsewhere) == ["file"]
    assert done.code == 7, done.err
    assert "global_step_20" in done.line
    assert tree_of(puller.ckpt) == before
    assert puller.leftovers() == []


@pytest.mark.parametrize("kind", ["tmp", "restore", "superseded", ""])
def test_a_link_planted_in_staging_is_not_followed(saved, kind, tree_of):
    puller, _ = saved
    elsewhere = puller.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    place = puller.staging / kind if kind else puller.staging
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(elsewhere)
    before = tree_of(elsewhere), tree_of(puller.ckpt)
    done = puller.run("pull", "--step", "20")
    assert done.code == 3
    assert str(place) in done.line
    assert (tree_of(elsewhere), tree_of(puller.ckpt)) == before


def test_too_little_space_is_said_before_anything_is_fetched(filled_store, make_node, small_disk):
    puller = make_node("n2", root=small_disk("small", "8m"), store=filled_store)
    done = puller.run("pull")
    assert done.code == 8
    assert "not enough space" in done.line
    assert os.listdir(puller.ckpt) == []
    assert puller.leftovers() == []


@pytest.mark.parametrize("reserves", [True, False])
def test_a_disk_that_fills_up_meanwhile_leaves_everything_as_it_was(
    node, make_node, small_disk, tree_of, monkeypatch, tmp_path, reserves
):
    """Somebody else takes the space after it was counted; with and without fallocate(2)."""
    verl_step(node.ckpt, 20, n=3_000_000)
    node.once()
    puller = make_node("n2", root=small_disk("small", "8m"), store=node.store)
    (puller.ckpt / "note").write_text("here before")
    before = tree_of(puller.ckpt)
    monkeypatch.setattr("ckptsync.sync.pull.free_bytes", lambda _: 1 << 40)
    if not reserves:
        monkeypatch.setattr("ckptsync.disk.place._reserve", lambda *_: None)
    planning = pull_step(
        open_node(load(str(puller.config))),
        step=None, max_step=None, dest=None, keep_newer=False, say=lambda _: None,
    )  # fmt: skip
    with planning as planned, pytest.raises(NoSpaceError, match="No space left"):
        planned.execute(lambda _: None)
    assert tree_of(puller.ckpt) == before
    assert puller.leftovers() == []
    monkeypatch.undo()
    subprocess.run(["mount", "-o", "remount,size=200m", tmp_path / "small"], check=True)
    puller.pull()  # there is room now
    assert tree_of(puller.ckpt / "global_step_20") == tree_of(node.ckpt / "global_step_20")
