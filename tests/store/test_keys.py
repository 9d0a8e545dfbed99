from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.store import keys

DIGEST = "0123456789abcdef" * 4


def test_layout_of_a_run():
    assert keys.run_key("r") == "r/run.json"
    assert keys.chunk_key("r", DIGEST) == f"r/chunks/01/{DIGEST}"
    assert keys.chunk_key("r", f"{DIGEST}.x1") == f"r/chunks/01/{DIGEST}.x1"
    assert keys.part_key("r", 7, f"n@{DIGEST}") == f"r/steps/000000000007/parts/n@{DIGEST}.json.zst"
    assert keys.ready_key("r", 7, f"n@{DIGEST}") == f"r/steps/000000000007/ready/n@{DIGEST}"
    assert keys.commit_key("r", 7, DIGEST) == f"r/steps/000000000007/commits/{DIGEST}.json"
    assert keys.gc_prefix("r") == "r/gc"
    assert keys.list_key("r", 3) == "r/gc/000003/list"
    assert keys.sweep_key("r", 3) == "r/gc/000003/sweep"
    assert keys.pin_key("r", DIGEST) == f"r/pins/{DIGEST}"
    assert keys.tag_key("r", DIGEST, "val/reward") == f"r/tags/{DIGEST}/val%2Freward"
    assert keys.bad_key("r", DIGEST) == f"r/bad/{DIGEST}"
    assert keys.probe_key("r", "n") == "r/probes/n"
    assert keys.wanted_key("r", 7, f"n@{DIGEST}") == f"r/steps/000000000007/wanted/n@{DIGEST}"


def test_layout_of_an_attempt():
    assert keys.offer_key("r", "job/1", 2, "n") == "r/attempts/job%2F1/000002/offers/n.json"
    assert keys.withdrawn_key("r", "a", 2, f"n@{DIGEST}") == f"r/attempts/a/000002/withdrawn/n@{DIGEST}"
    assert keys.progress_key("r", "a", 2, "n") == "r/attempts/a/000002/progress/n"
    assert keys.peer_key("r", "a", 2, "n/1", "[::1]:70") == "r/attempts/a/000002/peers/n%2F1@%5B%3A%3A1%5D%3A70"
    assert keys.decision_key("r", "a", 2) == "r/attempts/a/000002/decision.json"
    assert keys.done_key("r", "a", 2, "n") == "r/attempts/a/000002/done/n"
    with pytest.raises(ValueError, match="out of range"):
        keys.decision_key("r", "a", 0)


def test_layout_of_a_launch():
    key = keys.launch_key("r", "job/1", 7, "n/1@x", "record.json")
    assert key == "r/attempts/job%2F1/launches/00000000000000000007@n%2F1%40x/record.json"
    assert keys.parse_launch("r", key) == ("job/1", 7, "n/1@x", "record.json")
    assert keys.parse_launch("other", key) is None
    assert keys.parse_launch("r", keys.decision_key("r", "launches", 2)) is None
    assert keys.parse_launch("r", key.replace("0000007@", "000007@")) is None
    assert keys.parse_launch("r", key.replace("%40", "@")) is None
    assert keys.parse_launch("r", f"{key}/x") is None
    for started_ns, name in ((-1, "alive"), (2**63, "alive"), (1, "a/b"), (1, "A"), (1, ".."), (1, "x.json.json")):
        with pytest.raises(ValueError, match="not a document of a launch"):
            keys.launch_key("r", "a", started_ns, "n", name)


@pytest.mark.parametrize("run", ["r", "a/b ü"])
def test_a_key_tells_what_it_names(run):
    node = "node@1/2"
    assert keys.kind_of(run, keys.commit_key(run, 7, DIGEST)) == "commit"
    assert keys.kind_of(run, keys.part_key(run, 7, f"{node}@{DIGEST}")) == "part"
    assert keys.kind_of(run, keys.ready_key(run, 7, f"{node}@{DIGEST}")) == "ready"
    assert keys.kind_of(run, keys.wanted_key(run, 7, f"{node}@{DIGEST}")) == "ready"
    assert keys.kind_of(run, keys.chunk_key(run, DIGEST)) == "chunk"
    assert keys.kind_of(run, keys.chunk_key(run, f"{DIGEST}.x1")) == "chunk"
    assert keys.kind_of("other", keys.chunk_key(run, DIGEST)) is None


@pytest.mark.parametrize(
    "key",
    [
        "r/run.json",
        "r/gc/000001/list",
        f"r/pins/{DIGEST}",
        f"r/tags/{DIGEST}/loss",
        f"r/bad/{DIGEST}",
        f"r/chunks/02/{DIGEST}",
        f"r/chunks/01/{DIGEST}/x",
        f"r/chunks/{DIGEST}",
        f"r/steps/7/commits/{DIGEST}.json",
        f"r/steps/000000000007/commits/{DIGEST}.json.zst",
        f"r/steps/000000000007/commits/{DIGEST}.json\n",
        f"r/steps/000000000007/parts/{DIGEST}.json.zst",
        f"r/steps/000000000007/parts/a/b@{DIGEST}.json.zst",
        f"rr/chunks/01/{DIGEST}",
        f"r/../s/chunks/01/{DIGEST}",
    ],
)
def test_other_keys_are_nothing_that_may_be_collected(key):
    assert keys.kind_of("r", key) is None


@pytest.mark.parametrize("number", [0, 10**6])
def test_collections_are_numbered_within_bounds(number):
    with pytest.raises(ValueError, match="out of range"):
        keys.list_key("r", number)
    assert [keys.parse_number(text) for text in ("000001", "1", "000000x", "0000001")] == [1, None, None, None]


def test_every_key_is_valid_and_below_its_prefix():
    run, node = "a/b ü", "node@1/2"
    below = {
        keys.chunk_key(run, DIGEST): keys.chunks_prefix(run),
        keys.part_key(run, 10**12 - 1, f"{node}@{DIGEST}"): keys.step_prefix(run, 10**12 - 1),
        keys.step_prefix(run, 1): keys.steps_prefix(run),
    }
    for key, prefix in below.items():
        assert keys.check(key).startswith(prefix + "/")
        assert key.startswith(keys.quote_name(run) + "/")


def test_step_numbers_sort_as_numbers():
    steps = [0, 1, 2, 9, 10, 11, 100, 10**12 - 1]
    assert sorted(steps, key=lambda step: keys.step_prefix("r", step)) == steps
    for step in steps:
        assert keys.parse_step(keys.step_prefix("r", step).rpartition("/")[2]) == step


@pytest.mark.parametrize(
    "name", ["", "7", "00000000007", "0000000000007", "00000000000x", "-00000000007", "\u0660" * 12]
)
def test_foreign_names_are_no_steps(name):
    assert keys.parse_step(name) is None


def test_foreign_names_are_none():
    assert keys.parse_commit(f"{DIGEST}.json") == DIGEST
    assert keys.parse_commit(DIGEST) == DIGEST
    assert keys.parse_commit("x.json") is None


@given(st.binary(min_size=1, max_size=60))
def test_names_come_back_byte_for_byte(raw):
    name = os.fsdecode(raw)
    quoted = keys.quote_name(name)
    assert "/" not in quoted
    assert keys.check(quoted) == quoted
    assert keys.unquote_name(quoted) == name
    assert keys.unquote_name(f"{quoted}@{DIGEST}") == f"{name}@{DIGEST}"


@given(st.text(max_size=20), st.text(max_size=20))
def test_different_names_have_different_keys(one, other):
    if one and other and one != other:
        assert keys.quote_name(one) != keys.quote_name(other)


@pytest.mark.parametrize("text", ["%2e", "%41", "a b", "é", "%zz", "", "a@b@c", "..", "~"])
def test_other_spellings_are_refused(text):
    with pytest.raises(ValueError, match="not"):
        keys.unquote_name(text)


@pytest.mark.parametrize(
    "build",
    [
        lambda: keys.quote_name(""),
        lambda: keys.quote_name("x" * 239),
        lambda: keys.chunk_key("r", "../x"),
        lambda: keys.chunk_key("r", DIGEST + "\n"),
        lambda: keys.part_key("r", 1, "no digest"),
        lambda: keys.part_key("r", 1, f"@{DIGEST}"),
        lambda: keys.commit_key("r", 1, "x"),
        lambda: keys.step_prefix("r", -1),
        lambda: keys.step_prefix("r", 10**12),
        lambda: keys.check("a/../b"),
        lambda: keys.check("a" * 239),
        lambda: keys.check("/".join(["a" * 200] * 6)),
        lambda: keys.check("a\n"),
    ],
)
def test_what_cannot_be_a_key_is_refused(build):
    with pytest.raises(ValueError, match=r"not|out of range"):
        build()
