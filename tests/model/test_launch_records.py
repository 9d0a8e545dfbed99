"""A launch's record comes back as it was, and nothing that is not exactly one is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.model.launch import LaunchRecord, parse_launch, read_value, spell
from ckptsync.model.manifest import ManifestError, canonical

PLACE = {"run": "r", "run_id": "id", "attempt": "job-1", "node": "n0", "started_ns": 1_800_000_000 * 10**9}
RECORD = LaunchRecord(
    **PLACE,
    argv=("python3", "-m", "verl.trainer.main_ppo", "actor.lr=1e-6", "name=\udcff"),
    cwd="/work",
    settings={"actor.lr": 1e-06, "a.b": [1, {"x": None}], "c": "text", "d": True, "e": -3, "max": float("inf")},
    explicit=frozenset({"actor.lr", "a.b"}),
    complete=True,
    versions={"torch": "2.9.0"},
    datasets={"/data/a.parquet": {"rows": 7473, "schema": "abc"}},
    resumed_step=40,
    resumed_commit="ab" * 32,
)


def _parse(data):
    return parse_launch(data, **PLACE)


def test_it_comes_back():
    found = _parse(RECORD.to_bytes())
    assert found == replace(RECORD, settings={**RECORD.settings, "max": "inf"})
    assert found.to_bytes() == RECORD.to_bytes()
    bare = LaunchRecord(**PLACE)
    assert _parse(bare.to_bytes()) == bare


def test_it_never_holds_secrets():
    record = replace(
        RECORD,
        argv=("env", "HF_TOKEN=s3cr3t", "python3", "x.password=s3cr3t"),
        settings={"x.password": "s3cr3t", "y": {"api_key": "s3cr3t"}, "url": "s3://user:s3cr3t@host/b"},
        datasets={"s3://user:s3cr3t@host/a.parquet": {"rows": 1, "token": "s3cr3t"}},
    )
    assert b"s3cr3t" not in record.to_bytes()
    assert _parse(record.to_bytes()).settings["x.password"] == "***"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_values_keep_their_types_and_digits(value):
    found = read_value(spell(value))
    assert found == value
    assert spell(found) == spell(value)
    assert type(found) is type(value)


GONE = object()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, GONE) for key in ("run", "argv", "cwd", "settings", "explicit", "complete", "versions", "datasets")),
        *((key, GONE) for key in ("resumed_step", "resumed_commit", "started_ns", "node", "attempt", "run_id")),
        ("kind", "decision"),
        ("format", [2, 0]),
        ("run", "other"),
        ("node", "n1"),
        ("started_ns", float(PLACE["started_ns"])),
        ("started_ns", PLACE["started_ns"] + 1),
        ("started_ns", True),
        ("argv", "python3"),
        ("argv", ["python3", 1]),
        ("cwd", None),
        ("settings", []),
        ("settings", {"a": 1}),
        ("settings", {"a": "1.50"}),
        ("settings", {"a": "NaN"}),
        ("settings", {"a": "Infinity"}),
        ("settings", {"a": "{"}),
        ("settings", {"a": "[" * 100_000}),
        ("settings", {"a": '{"b": 1}'}),
        ("explicit", {"a": 1}),
        ("complete", 1),
        ("versions", {"torch": None}),
        ("datasets", {"/a": "[]"}),
        ("resumed_step", -2),
        ("resumed_step", 10**12),
        ("resumed_step", True),
        ("resumed_commit", 7),
    ],
)
def test_anything_else_is_refused(key, value):
    document = json.loads(RECORD.to_bytes())
    if value is GONE:
        del document[key]
    else:
        document[key] = value
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(ManifestError):
        _parse(data)


@given(
    st.binary(max_size=60)
    | st.dictionaries(st.text(max_size=9), json_values, max_size=4).map(lambda d: json.dumps(d).encode())
)
def test_noise_is_refused(data):
    with pytest.raises(ManifestError):
        _parse(data)


@given(st.data())
def test_no_damaged_byte_is_read(data):
    raw = bytearray(RECORD.to_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        found = _parse(bytes(raw))
    except ManifestError:
        return
    assert found.to_bytes() == bytes(raw)  # another word in the same place


def test_one_that_is_too_long_is_refused():
    document = json.loads(RECORD.to_bytes())
    document["cwd"] = "x" * 17_000_000
    with pytest.raises(ManifestError, match="longer"):
        _parse(canonical(document))
