"""What a torch file says besides its tensors' data, read without torch and without executing anything."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile

import numpy as np
import pytest
import torch

from ckptsync.formats.torch_pickle import Unreadable, read_object
from ckptsync.testing.fileshapes import torch_zip


def zip_of(path, data):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/data.pkl", data)
    return path


def test_plain_values_come_back_as_they_are(tmp_path):
    value = {"a": 1, "b": [1.5, None, True, "x"], "c": {"d": {}}, 7: (1, 2)}
    torch.save(value, tmp_path / "x.pt")
    assert read_object(str(tmp_path / "x.pt")) == {"a": 1, "b": [1.5, None, True, "x"], "c": {"d": {}}, "7": [1, 2]}


def test_a_tensor_tells_its_shape_and_an_object_its_class(tmp_path):
    state = {
        "generator": torch.zeros(5056, dtype=torch.uint8),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "legacy": np.random.RandomState(1).get_state(),
        "random": random.Random(1).getstate(),
        "dtype": torch.float32,
        "raw": b"1234",
    }
    torch.save(state, tmp_path / "x.pt")
    found = read_object(str(tmp_path / "x.pt"))
    assert found["generator"]["class"] == "torch._utils._rebuild_tensor_v2"
    assert found["generator"]["args"][2] == [5056]
    assert found["generator"]["args"][0]["class"] == "storage"
    assert found["numpy"]["bit_generator"] == "PCG64"
    assert found["legacy"][0] == "MT19937"
    assert found["legacy"][1]["class"].startswith("numpy.")
    assert len(found["random"][1]) == 625


def test_what_the_generators_write_is_readable_too(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(torch_zip("x", bytes(64)))
    assert read_object(str(path))["weight"]["args"][2] == [16]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = zip_of(tmp_path / "x.pt", pickle.dumps({"a": Hostile()}))
    assert read_object(str(path))["a"] == {"class": "posix.system", "args": ["touch executed"]}
    assert not (tmp_path / "executed").exists()


def deep():
    value = []
    for _ in range(100):
        value = [value]
    return pickle.dumps(value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x80\x02", "EOFError"),
        (b"not a pickle", "cannot be read as a torch file"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "cannot be read as a torch file"),  # a memo of 2**31 entries
        (deep(), "nested deeper"),
        (pickle.dumps([0] * 1_000_001), "more than 1000000 values"),
    ],
)
def test_damaged_and_hostile_pickles_are_refused_with_a_reason(tmp_path, data, told):
    with pytest.raises(Unreadable, match=told):
        read_object(str(zip_of(tmp_path / "x.pt", data)))


def test_what_is_no_whole_torch_file_is_refused_with_a_reason(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.zeros(1000)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(Unreadable, match="no whole zip"):
        read_object(str(path))
    at = whole.index(b"_rebuild_tensor_v2")
    path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    with pytest.raises(Unreadable, match="no whole zip: Bad CRC-32"):
        read_object(str(path))
    torch.save({"a": 1}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(Unreadable, match="legacy format"):
        read_object(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(Unreadable, match=r"no data\.pkl"):
        read_object(str(path))
    with pytest.raises(FileNotFoundError):
        read_object(str(tmp_path / "none.pt"))


def test_sets_and_subclasses_of_containers_keep_their_items(tmp_path):
    buffer = io.BytesIO()
    torch.save({"s": {1}, "o": __import__("collections").defaultdict(int, {"a": 2})}, buffer)
    (tmp_path / "x.pt").write_bytes(buffer.getvalue())
    found = read_object(str(tmp_path / "x.pt"))
    assert found["s"]["args"] == [[1]]
    assert found["o"]["items"] == [["a", 2]]
