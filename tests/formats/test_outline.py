"""What a torch file holds, told by a child that builds stubs alone, whatever the pickle wants."""

from __future__ import annotations

import collections
import io
import os
import pickle
import random
import sys

import numpy as np
import pytest
import torch

from ckptsync.disk.read import FileSource
from ckptsync.formats.outline import TorchPickle, outlines, torch_pickle
from ckptsync.formats.reading import BytesSource, Defect


def of(value, **options):
    """The outline of what torch makes of a value."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return outlines([torch_pickle(BytesSource(buffer.getvalue()))])[0]


def of_pickle(data):
    return outlines([TorchPickle(data, {})])[0]


def test_tensors_tell_how_many_bytes_the_file_holds_of_them():
    held = of({"a": torch.zeros(7, dtype=torch.uint8), "none": torch.zeros(0), "list": [torch.zeros(3)]})
    assert held.keys == ("a", "none", "list")
    assert held.get("a").tensor_bytes == 7
    assert held.get("none").tensor_bytes == 0
    assert [item.tensor_bytes for item in held.get("list").items()] == [12]
    assert held.get("absent") is None
    assert held.tensor_bytes is None


def test_plain_values_are_told_and_long_ones_measured():
    value = {"i": 3, "f": 0.5, "n": None, "b": True, "s": "x", "long": "y" * 300, "raw": b"12", "nan": float("nan")}
    held = of({**value, "huge": 10**5000, 7: "no text key", "t": (1, 2, 3), "o": collections.OrderedDict(a=1)})
    assert {name: held.get(name).outline for name in ("i", "f", "n", "b", "s", "nan")} == {
        "i": 3,
        "f": 0.5,
        "n": None,
        "b": True,
        "s": "x",
        "nan": "nan",
    }
    assert (held.get("long").length, held.get("raw").items()[0].outline, held.get("t").length) == (300, "12", 3)
    assert held.get("o").keys == ("a",)
    assert held.length == 12


def test_states_of_generators_can_be_looked_into():
    held = of({"numpy": np.random.RandomState(1).get_state(), "python": random.Random(1).getstate()})
    name, array, *_ = held.get("numpy").items()
    assert name.outline == "MT19937"
    assert array.state.items()[-1].items()[0].length == 2496
    assert [item.length for item in held.get("python").items()[1:2]] == [625]


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_nothing_in_a_pickle_is_executed(tmp_path):
    mark = tmp_path / "mark"
    held = of_pickle(pickle.dumps({"x": Evil(os.system, f"touch {mark}"), "y": Evil(eval, "1+1")}))
    assert held.get("x").outline[:2] == ["object", f"{os.system.__module__}.system"]
    assert held.get("y").outline[1] == "builtins.eval"
    assert not mark.exists()


def test_what_is_nested_or_shared_without_end_is_cut_off():
    deep, wide = [], []
    for _ in range(200):
        deep = [deep]
    for _ in range(40):
        wide = [wide] * 40
    assert of_pickle(pickle.dumps(deep)).length == 1
    assert of_pickle(pickle.dumps(wide)).length == 40
    assert of_pickle(pickle.dumps(list(range(10**6)))).length == 10**6


@pytest.mark.parametrize("data", [b"", b"junk", b"\x80\x02.", b"\x80\x02K", pickle.dumps([1])[:-1]])
def test_damaged_pickles_are_told_and_do_not_hide_others(data):
    bad, good = outlines([TorchPickle(data, {}), TorchPickle(pickle.dumps([1]), {})])
    assert bad.startswith("cannot be read: ")
    assert good.length == 1


def test_a_pickle_that_takes_all_memory_ends_its_reader_alone():
    bomb = b"\x80\x02" + b"r" + (2**31 - 1).to_bytes(4, "little") + b"."  # a memo index
    bomb = b"\x80\x02N" + bomb[2:]
    assert isinstance(of_pickle(bomb), str) or of_pickle(bomb).outline is None


def test_other_files_are_no_torch_files(tmp_path):
    for data in (b"", b"text", pickle.dumps({})):
        with pytest.raises(Defect):
            torch_pickle(BytesSource(data))
    buffer = io.BytesIO()
    torch.save({"a": 1}, buffer)
    with pytest.raises(Defect, match="cut short"):
        torch_pickle(BytesSource(buffer.getvalue()[:-10]))
    (tmp_path / "a.pt").write_bytes(buffer.getvalue())
    with FileSource(str(tmp_path / "a.pt")) as source:
        assert outlines([torch_pickle(source)])[0].get("a").outline == 1


def test_no_files_need_no_process(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert outlines([]) == []
