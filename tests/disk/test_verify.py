import io
import json
import os
import pickle
import struct
import threading
import zipfile
import zlib

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.disk import verify
from ckptsync.disk.scan import list_step
from ckptsync.disk.verify import StepInspection, inspect_step, locate, read_step
from ckptsync.errors import Interrupted, StepChanged
from ckptsync.formats.base import Record

NOTHING = StepInspection((), {}, ())


def torch_file(payload=b"\x01\x02" * 4000):
    """The bytes of a file shaped like torch.save's."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": 1}, protocol=2))
        archive.writestr("archive/data/0", payload)
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def safetensors_file(count=16):
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * count)


class Collected:
    def __init__(self):
        self.bytes, self.order = {}, []

    def feed(self, path, offset, data):
        assert offset == len(self.bytes.setdefault(path, b""))
        if path not in self.order:
            self.order.append(path)
        self.bytes[path] += bytes(data)


@pytest.fixture
def step(tmp_path, make_step):
    files = {
        "actor/model_world_size_1_rank_0.pt": torch_file(),
        "actor/hf/model.safetensors": safetensors_file(),
        "actor/empty": b"",
        "data.pt": torch_file(b"d"),
    }
    return make_step(tmp_path / "step", files)


def test_a_whole_step_has_no_problems_and_every_digest(step):
    listing = list_step(str(step))
    inspection = inspect_step(listing)
    sink, seen = Collected(), []
    result = read_step(listing, inspection, sink=sink, progress=seen.append)
    assert (inspection.problems, result.problems) == ((), ())
    assert result.digests == {path: blake3((step / path).read_bytes()).hexdigest() for path in listing.files}
    assert sink.order == sorted(path for path in listing.files if path != "actor/empty")
    assert all(sink.bytes[path] == (step / path).read_bytes() for path in sink.order)
    assert sum(seen) == sum(stat.size for stat in listing.files.values())


def test_a_hole_of_zeros_of_the_right_size_is_found_by_the_read_pass_alone(step):
    path = step / "actor" / "model_world_size_1_rank_0.pt"
    content = bytearray(path.read_bytes())
    content[3000:5000] = bytes(2000)
    path.write_bytes(content)
    listing = list_step(str(step))
    inspection = inspect_step(listing)
    assert inspection.problems == ()
    (problem,) = read_step(listing, inspection).problems
    assert (problem.path, problem.code) == ("actor/model_world_size_1_rank_0.pt", "crc")
    assert "data/0" in problem.message


def test_a_truncated_file_is_found_by_structure(step):
    path = step / "data.pt"
    path.write_bytes(path.read_bytes()[:-5])
    assert [problem.path for problem in inspect_step(list_step(str(step))).problems] == ["data.pt"]


def test_what_an_index_names_is_expected_and_not_a_problem_here(step):
    index = {"metadata": {}, "weight_map": {"w": "model.safetensors", "v": "elsewhere.safetensors"}}
    (step / "actor" / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    inspection = inspect_step(list_step(str(step)))
    assert inspection.problems == ()
    assert {(e.path, e.voucher) for e in inspection.expects} == {
        ("actor/hf/model.safetensors", "actor/hf/model.safetensors.index.json"),
        ("actor/hf/elsewhere.safetensors", "actor/hf/model.safetensors.index.json"),
    }


def test_a_staged_copy_is_read_in_its_place(step, tmp_path):
    listing = list_step(str(step))
    os.rename(step, tmp_path / "moved")
    root = str(tmp_path / "moved")
    inspection = inspect_step(listing, root=root)
    assert inspection.problems == ()
    assert len(read_step(listing, inspection, root=root).digests) == 4


def test_locate_follows_links_in_any_component(step):
    (step / "alias").symlink_to("actor/hf")
    (step / "one").symlink_to("alias/model.safetensors")
    listing = list_step(str(step))
    assert locate(listing, "alias/model.safetensors") == "actor/hf/model.safetensors"
    assert locate(listing, "one") == "actor/hf/model.safetensors"
    assert locate(listing, "alias") is None
    assert locate(listing, "alias/other") is None


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(0, 200), window=st.integers(1, 50))
def test_record_sums_are_right_whatever_the_windows(data, size, window):
    content = os.urandom(size)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=8)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    wrong = data.draw(st.sets(st.integers(0, len(spans) - 1))) if spans else set()
    records = [
        Record(str(n), low, high - low, crc32=zlib.crc32(content[low:high]) ^ (n in wrong))
        for n, (low, high) in enumerate(spans)
    ]
    sums = verify._Sums("file", records)
    for offset in range(0, size, window):
        sums.update(offset, memoryview(content)[offset : offset + window])
    assert [problem.message.split("'")[1] for problem in sums.problems()] == [str(n) for n in sorted(wrong)]


def test_many_bad_records_of_one_file_are_summed_up():
    sums = verify._Sums("file", [Record(str(n), n, 1, crc32=1) for n in range(100)])
    sums.update(0, memoryview(bytes(100)))
    problems = sums.problems()
    assert len(problems) == 6
    assert "95 more" in problems[-1].message


class Calls:
    """A sink that calls back with the path of each window."""

    def __init__(self, act):
        self._act = act

    def feed(self, path, *_):
        self._act(path)


@pytest.mark.parametrize("change", ["rewrite", "append", "replace", "delete", "touch"])
def test_a_file_that_moves_before_the_pass_ends_voids_it(step, change):
    listing = list_step(str(step))
    path = step / "actor" / "empty"  # the first in path order: long over when it changes

    def trainer(name):
        if name != "data.pt":
            return
        if change == "rewrite":
            path.write_bytes(b"new")
        elif change == "append":
            with open(path, "ab") as file:
                file.write(b"x")
        elif change == "replace":
            (step / "fresh").write_bytes(b"")
            os.replace(step / "fresh", path)
        elif change == "delete":
            path.unlink()
        else:
            os.utime(path, ns=(1, 1))

    with pytest.raises(StepChanged):
        read_step(listing, NOTHING, sink=Calls(trainer))


def test_a_file_that_moves_while_it_is_read_voids_the_pass(step):
    listing = list_step(str(step))

    with pytest.raises(StepChanged):
        read_step(listing, NOTHING, sink=Calls(lambda path: os.utime(step / path, ns=(1, 1))))


def test_a_trainer_that_deletes_the_step_never_yields_a_result(tmp_path, make_step):
    step = make_step(tmp_path / "step", {f"d/{n}": b"x" * 1000 for n in range(300)})
    listing = list_step(str(step))
    deleting = threading.Thread(target=lambda: [os.unlink(step / path) for path in reversed(list(listing.files))])
    deleting.start()
    with pytest.raises(StepChanged):
        _read_for_ever(listing)
    deleting.join()
    with pytest.raises(StepChanged):
        inspect_step(listing)


def _read_for_ever(listing):
    while True:
        read_step(listing, NOTHING)


def test_asked_to_stop_it_stops(step):
    listing = list_step(str(step))
    with pytest.raises(Interrupted):
        read_step(listing, NOTHING, stop=lambda: True)


def test_our_own_staging_link_does_not_void_the_pass(step, tmp_path):
    listing = list_step(str(step))

    def link(path):
        os.link(step / path, tmp_path / path.replace("/", "-"))

    assert len(read_step(listing, NOTHING, sink=Calls(link)).digests) == 4


def test_another_users_file_is_a_problem_with_the_remedy(public_dir, make_step, as_nobody):
    step = make_step(public_dir / "step", {"model.safetensors": safetensors_file(), "ok": b""})
    os.chmod(step / "model.safetensors", 0o600)
    code = (
        "listing = scan.list_step(sys.argv[1])\ninspection = verify.inspect_step(listing)\n"
        "result = verify.read_step(listing, inspection)\nprint(*inspection.problems, *result.problems, sep='\\n')\n"
        "print(list(result.digests))"
    )
    *problems, digests = as_nobody(code, step).splitlines()
    assert len(problems) == 2
    assert all("run ckptsync as user root" in problem for problem in problems)
    assert digests == "['ok']"


def test_a_read_error_is_a_problem_of_that_file(step, monkeypatch):
    listing = list_step(str(step))
    real = os.preadv

    def fail(fd, buffers, offset, flags=0):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("data.pt"):
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", fail)
    result = read_step(listing, NOTHING)
    assert [(problem.path, problem.code) for problem in result.problems] == [("data.pt", "unreadable")]
    assert "data.pt" not in result.digests


def test_thousands_of_small_files_are_read_in_one_pass(tmp_path):
    for directory in range(20):
        (tmp_path / f"step/d{directory}").mkdir(parents=True)
        for number in range(200):
            (tmp_path / f"step/d{directory}/{number}").write_bytes(b"%d" % number)
    listing = list_step(str(tmp_path / "step"))
    inspection = inspect_step(listing)
    assert inspection.problems == ()
    assert len(read_step(listing, inspection).digests) == 4_000
