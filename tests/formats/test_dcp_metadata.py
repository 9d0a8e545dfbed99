"""DCP: `.metadata` vouches for data files without being executed; their items are checked one by one."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import types
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.formats import dcp_metadata, inspect_items
from ckptsync.formats.reading import BytesSource


def codes(found):
    return [problem.code for problem in found.problems]


@pytest.fixture(scope="module")
def step(dcp_step):
    return {path.name: path.read_bytes() for path in dcp_step.iterdir()}


@pytest.fixture(scope="module")
def items(step, look):
    (reference,) = look(".metadata", step[".metadata"]).references
    return reference.items


def test_metadata_names_every_data_file_with_its_exact_size(step, look):
    found = look("actor/dist_ckpt/.metadata", step[".metadata"])
    assert (found.format, found.problems) == ("dcp_metadata", ())
    (reference,) = found.references
    assert reference.path == "actor/dist_ckpt/__0_0.distcp"
    assert reference.size == len(step["__0_0.distcp"])
    assert sum(length for _, length in reference.items) == reference.size
    assert list(reference.items) == sorted(reference.items)


def test_metadata_of_one_rank_is_read_too(step, look):
    assert look("__3.metadata", step[".metadata"]).references
    assert look("other.metadata", step[".metadata"]).format == "opaque"


def test_data_files_have_records_with_crcs_for_every_item(step, items, hold, damaged):
    data = step["__0_0.distcp"]
    found = inspect_items("__0_0.distcp", BytesSource(data), items)
    hold(found, len(data))
    assert (found.format, found.problems) == ("distcp", ())
    assert all(record.crc32 is not None for record in found.records)
    assert {record.name.split("/")[0] for record in found.records} == {f"item@{offset}" for offset, _ in items}
    assert not damaged(found, data)


def test_a_flipped_byte_in_any_tensor_is_found(step, items, damaged):
    data = step["__0_0.distcp"]
    found = inspect_items("__0_0.distcp", BytesSource(data), items)
    for record in found.records:
        flipped = bytearray(data)
        flipped[record.offset + record.length // 2] ^= 0x10
        assert damaged(inspect_items("__0_0.distcp", BytesSource(bytes(flipped)), items), flipped), record


def test_an_item_whose_head_is_gone_does_not_pass_for_raw_bytes(step, items):
    data = step["__0_0.distcp"]
    offset, _ = items[1]
    flipped = data[:offset] + b"Q" + data[offset + 1 :]
    zeroed = data[:offset] + bytes(64) + data[offset + 64 :]
    for code, damage in (("malformed", flipped), ("zeros", zeroed)):
        found = inspect_items("__0_0.distcp", BytesSource(damage), items)
        assert codes(found) == [code]
        assert f"item at {offset} " in found.problems[0].message


def test_a_data_file_of_another_size_is_a_problem(step, items):
    data = step["__0_0.distcp"]
    for damage in (data[:-1], data + b"\0", b""):
        assert codes(inspect_items("a.distcp", BytesSource(damage), items)) == ["size"]


def test_swapped_items_are_found(step, items):
    data = step["__0_0.distcp"]
    parts = [data[offset : offset + length] for offset, length in items]
    assert len({len(part) for part in parts}) > 1
    assert inspect_items("a.distcp", BytesSource(b"".join(sorted(parts, key=len, reverse=True))), items).problems


def test_raw_items_are_records_without_crc(saved):
    tensor = saved(torch.ones(4))
    data = b"raw bytes" + tensor + b"more"
    items = [(0, 9), (9, len(tensor)), (9 + len(tensor), 4)]
    found = inspect_items("a.distcp", BytesSource(data), items)
    assert not found.problems
    assert [r.length for r in found.records if r.crc32 is None] == [9, 4]


def test_a_large_item_is_read_piecewise(saved):
    tensor = saved(torch.randn(600_000))
    found = inspect_items("a.distcp", BytesSource(tensor * 2), [(0, len(tensor)), (len(tensor), len(tensor))])
    assert not found.problems
    assert len([record for record in found.records if record.length == 2_400_000]) == 2


def test_without_items_a_data_file_is_opaque(step):
    assert inspect_items("__0_0.distcp", BytesSource(step["__0_0.distcp"]), ()).format == "opaque"


def metadata(entries, *, module="torch.distributed.checkpoint.metadata", extra=None):
    """A `.metadata` made by pickling classes of that name: what the class is, a reader cannot know."""
    home = types.ModuleType(module)
    for name in ("Metadata", "MetadataIndex", "_StorageInfo", "Other"):
        setattr(home, name, type(name, (), {"__module__": module}))
    with patch.dict(sys.modules, {module: home}):  # torch's own module comes back at the end
        root = home.Metadata()
        root.storage_data = {}
        root.planner_data = extra(home) if extra else None
        for path, offset, length in entries:
            info = home._StorageInfo()
            info.__dict__.update(relative_path=path, offset=offset, length=length)
            root.storage_data[home.MetadataIndex()] = info
        return pickle.dumps(root)


def test_metadata_of_other_writers_is_read_by_its_fields(look):
    entries = [("__0_0.distcp", 10, 5), ("__0_0.distcp", 0, 10), ("__1_0.distcp", 0, 3), ("__0_0.distcp", 10, 5)]
    found = look(
        "iter_0000010/.metadata",
        metadata(entries, module="no_such_planner", extra=lambda home: [home.Other(), {1, 2}, slice(3), torch.float32]),
    )
    assert [(r.path, r.size, r.items) for r in found.references] == [
        ("iter_0000010/__0_0.distcp", 15, ((0, 10), (10, 5))),
        ("iter_0000010/__1_0.distcp", 3, ((0, 3),)),
    ]
    assert not found.problems


def test_metadata_without_storage_data_vouches_for_nothing(look):
    found = look(".metadata", metadata([]))
    assert (found.references, found.problems) == ((), ())


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (("../other.distcp", 0, 1), "reference"),
        (("/etc/passwd", 0, 1), "reference"),
        (("", 0, 1), "reference"),
        ((7, 0, 1), "unreadable"),
        (("a", "0", 1), "unreadable"),
        (("a", True, 1), "unreadable"),
        (("a", 0.5, 1), "unreadable"),
        (("a", -1, 1), "malformed"),
        (("a", 0, -1), "malformed"),
        (("a", 2**70, 1), "malformed"),
        (("a", 5, 10), "malformed"),  # overlaps the item below
    ],
)
def test_items_that_cannot_be_are_problems(look, entry, code):
    assert codes(look("d/.metadata", metadata([("a", 0, 6), entry]))) == [code]


class Command:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_nothing_in_a_pickle_is_executed(look, tmp_path):
    target = tmp_path / "executed"
    for call in (Command(open, str(target), "w"), Command(exec, f"open({str(target)!r}, 'w')")):
        with io.BytesIO() as buffer:
            pickle.dump([call], buffer)
            found = look(".metadata", buffer.getvalue())
        assert codes(found) == ["unreadable"]
    assert not target.exists()
    pickle.loads(pickle.dumps(Command(open, str(target), "w"))).close()
    assert target.exists()  # the same pickle, read as pickles are read, does it


NESTED = 400_000
HOSTILE = {
    "empty": b"",
    "zeros": bytes(500),
    "persistent id": b"\x80\x04N\x88Q.",
    "extension": b"\x80\x04\x82\x01.",
    "out-of-band buffer": b"\x80\x05\x97.",
    "frame of 2**62 bytes": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
    "bytes of 2**62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "integer of 2**31 bytes": b"\x80\x04\x8b" + struct.pack("<I", 2**31 - 1) + b".",
    "memo index of 2**31": b"\x80\x04Nr" + struct.pack("<I", 2**31 - 1) + b".",
    "key nested too deep to hash": b"\x80\x04})" + b"\x85" * NESTED + b"Ns.",
    "state nested too deep": b"\x80\x04" + b"]" * NESTED + b"a" * (NESTED - 1) + b".",
    "stack under-run": b"\x80\x04R.",
    "call of an instance": b"\x80\x04cos\nsystem\n)R)R.",
    "state of a class": b"\x80\x04cos\nsystem\n}b.",
    "not DCP": pickle.dumps({"a": 1}),
    "no storage": pickle.dumps(types.SimpleNamespace()),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pickles_are_problems_and_nothing_worse(look, data):
    assert codes(look(".metadata", data)) == ["unreadable" if data else "empty"]


def test_a_pickle_that_grows_in_memory_is_stopped_by_the_limit(look):
    (problem,) = look(".metadata", b"\x80\x04(" + b"\x8f" * 1_600_000 + b"l.").problems
    assert problem.code == "unreadable"
    assert "MemoryError" in problem.message


def test_truncated_and_extended_metadata_is_unreadable(step, look):
    data = step[".metadata"]
    for length in [*range(1, len(data), len(data) // 20), len(data) - 1]:
        assert codes(look(".metadata", data[:length])) == ["unreadable"], length
    assert codes(look(".metadata", data + b"\0")) == ["unreadable"]


def test_metadata_above_the_limit_is_unreadable(step, look, monkeypatch):
    monkeypatch.setattr(dcp_metadata, "METADATA_BYTES_MAX", 100)
    assert codes(look(".metadata", step[".metadata"])) == ["unreadable"]


def test_a_reader_that_hangs_is_stopped(step, look, monkeypatch):
    monkeypatch.setattr(dcp_metadata, "_TIMEOUT_S", 0)
    found = look(".metadata", step[".metadata"])
    assert codes(found) == ["unreadable"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_mutated_metadata_never_raises(step, look, data):
    mutated = bytearray(step[".metadata"])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        mutated[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    look(".metadata", bytes(mutated))
