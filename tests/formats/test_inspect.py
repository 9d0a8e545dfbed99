"""The dispatch, and JSON: every file gets an answer."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckptsync.formats import FORMATS, inspect_items, json_file
from ckptsync.formats.reading import BytesSource, Window

NAMES = [
    "a.pt", "a.pth", "a.bin", "a.ckpt", "a.pkl", "a.distcp", "a.safetensors", "model.safetensors.index.json",
    "config.json", "log.jsonl", "README.md", "tokenizer.model",
]  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.binary(max_size=300), st.sampled_from([b"", b"PK\3\4", b"PK\5\6", b"{", bytes(16)]))
def test_arbitrary_bytes_never_raise(look, name, data, head):
    look(name, head + data)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 60), st.integers(1, 60))
@example(b"PK\3\4" + bytes(60), 0, 64)
def test_arbitrary_items_never_raise(hold, data, offset, length):
    found = inspect_items("a.distcp", BytesSource(data), [(offset, length)])
    hold(found, len(data))
    assert found.problems or offset + length == len(data)


@pytest.mark.parametrize("name", ["log.jsonl", "README.md", "__0_0.distcp", "modeling.py", "latest"])
def test_unknown_files_are_opaque(look, name):
    for data in (b"", b"\0" * 40, b"text"):
        found = look(name, data)
        assert (found.format, found.records, found.problems) == ("opaque", (), ())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"a": [1, 2.5, NaN, "\\u00e9"]}', None),
        (b"1" * 10_000, None),
        (b"", "empty"),
        (b" ", "malformed"),
        (b'{"a": [1, 2', "malformed"),
        (b"{}{}", "malformed"),
        (b'{"a": "\xff"}', "malformed"),
        (bytes(100), "malformed"),
        (b"[" * 1_000_000, "malformed"),
    ],
)
def test_json_must_parse(look, text, code):
    found = look("huggingface/config.json", text)
    assert found.format == "json"
    assert [problem.code for problem in found.problems] == ([code] if code else [])
    assert [(r.offset, r.length) for r in found.records] == ([] if code else [(0, len(text))])


def test_json_above_the_limit_is_opaque(look, monkeypatch):
    monkeypatch.setattr(json_file, "JSON_BYTES_MAX", 3)
    assert look("a.json", b"{{{{").format == "opaque"


def test_a_window_never_shows_what_is_outside():
    window = Window(BytesSource(b"0123456789"), 2, 5)
    assert window.size == 5
    assert window.read(0, 100) == b"23456"
    assert window.read(3, 2) == b"56"
    assert window.read(9, 4) == b""


def test_looking_at_formats_imports_neither_torch_nor_numpy():
    script = "import sys, ckptsync.formats, ckptsync.formats.deep; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_format_has_its_own_name():
    assert len({known.name for known in FORMATS}) == len(FORMATS)
