"""safetensors files and indexes: what the header says must be what the file holds."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from ckptsync.formats import safetensors

PATH = "actor/huggingface/model.safetensors"


def codes(found):
    return [problem.code for problem in found.problems]


def file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture(scope="module")
def tensors():
    return {
        "embed": torch.randn(20, 8),
        "norm": torch.ones(7, dtype=torch.bfloat16),
        "ids": torch.arange(5),
        "scale": torch.ones(4).to(torch.float8_e4m3fn),
        "mask": torch.ones(3, dtype=torch.bool),
        "wave": torch.ones(2, dtype=torch.complex64),
        "none": torch.empty(0, 4),
    }


def test_records_are_the_tensors_with_their_number_size(tensors, look):
    data = save(tensors, metadata={"format": "pt"})
    found = look(PATH, data)
    assert (found.format, found.problems) == ("safetensors", ())
    sizes = {record.name: record.itemsize for record in found.records}
    assert sizes == {"embed": 4, "norm": 2, "ids": 8, "scale": 1, "mask": 1, "wave": 4}
    for record in found.records:
        part = data[record.offset : record.offset + record.length]
        assert part == tensors[record.name].view(torch.uint8).numpy().tobytes()


def test_every_truncation_and_every_added_byte_is_found(tensors, look):
    data = save(tensors)
    assert codes(look(PATH, b"")) == ["empty"]
    assert all(codes(look(PATH, data[:length])) for length in range(len(data)))
    assert codes(look(PATH, data[:-10])) == ["truncated"]
    assert codes(look(PATH, data + b"\0")) == ["size"]
    assert look(PATH, bytes(len(data))).problems
    assert look(PATH, data[len(data) // 2 :] + data[: len(data) // 2]).problems


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "size", "code"),
    [
        ({"a": ONE}, 8, None),
        ({}, 0, None),
        ({"a": ONE | {"dtype": "F1234"}}, 8, None),  # a dtype of the future
        ({"a": ONE | {"dtype": "F64"}}, 8, "malformed"),
        ({"a": ONE | {"shape": [3]}}, 8, "malformed"),
        ({"a": ONE | {"shape": [-2]}}, 8, "malformed"),
        ({"a": ONE | {"shape": [True, 2]}}, 8, "malformed"),
        ({"a": ONE | {"shape": "2"}}, 8, "malformed"),
        ({"a": ONE | {"shape": [2**70, 0], "data_offsets": [0, 0]}}, 0, "malformed"),
        ({"a": ONE | {"data_offsets": [8, 0]}}, 8, "malformed"),
        ({"a": ONE | {"data_offsets": [4, 12]}}, 12, "malformed"),
        ({"a": ONE | {"data_offsets": [0]}}, 8, "malformed"),
        ({"a": ONE, "b": ONE}, 8, "malformed"),  # overlap
        ({"a": ONE, "b": ONE | {"data_offsets": [9, 17]}}, 17, "malformed"),  # gap
        ({"a": 1}, 0, "malformed"),
        ([], 0, "malformed"),
        (b"{", 0, "malformed"),
        (b'{"a":1,"a":1}', 0, "malformed"),
        (b"\xff\xfe", 0, "malformed"),
        (b"[" * 100_000, 0, "malformed"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(look, header, size, code):
    assert codes(look("m.safetensors", file(header, bytes(size)))) == ([code] if code else [])


def test_a_header_longer_than_the_limit_is_not_read(look):
    assert codes(look("m.safetensors", struct.pack("<Q", 2**63) + b"{}")) == ["limit"]


def index(path, look, weights):
    return look(path, json.dumps({"metadata": {}, "weight_map": weights}).encode())


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_vouches_for_its_targets_beside_it(look, name):
    found = index(f"actor/huggingface/{name}", look, {"a": "m-1", "b": "m-2", "c": "m-1"})
    assert not found.problems
    assert [(r.path, r.size, r.items) for r in found.references] == [
        ("actor/huggingface/m-1", None, ()),
        ("actor/huggingface/m-2", None, ()),
    ]
    assert [r.path for r in index(name, look, {"a": "m-1"}).references] == ["m-1"]


@pytest.mark.parametrize(
    "target", ["../../etc/passwd", "/etc/passwd", "", "a/../b", "./a", "a\0b", "\ud800", "a" * 5000]
)
def test_a_target_that_leaves_the_directory_is_a_problem(look, target):
    found = index("hf/model.safetensors.index.json", look, {"good": "m-1", "bad": target})
    assert codes(found) == ["reference"]
    assert [r.path for r in found.references] == ["hf/m-1"]
    assert len(str(found.problems[0])) < 400


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b"\xff", b'{"weight_map": null}'],
)
def test_an_index_of_the_wrong_shape_is_a_problem(look, text):
    assert codes(look("model.safetensors.index.json", text)) == ["malformed" if text else "empty"]


def test_an_index_above_the_limit_is_not_parsed(look, monkeypatch):
    monkeypatch.setattr(safetensors, "INDEX_BYTES_MAX", 10)
    assert codes(index("model.safetensors.index.json", look, {"a": "b"})) == ["limit"]


@settings(deadline=None)
@given(st.data())
def test_mutated_files_never_raise_nor_give_impossible_records(tensors, look, data):
    mutated = bytearray(save(tensors))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        mutated[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    look("m.safetensors", bytes(mutated))
