from __future__ import annotations

import json
import os
import posixpath
import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.model.manifest import (
    ChunkRef,
    Commit,
    DirEntry,
    Extent,
    FileEntry,
    LinkEntry,
    ManifestError,
    Part,
    PartId,
    canonical,
    digest_of,
    pieces_of,
)
from ckptsync.model.parse import parse_canonical, parse_commit, parse_part
from ckptsync.model.paths import check_relative, check_target, inside, quote, tree_clash, unquote
from ckptsync.model.step import Expectation, Level

ODD_BYTES = st.sampled_from(
    [b"\xff", b"\x80", b"%", b"%2F", b"\n", b'"', b"\\", b" ", b"\x7f", b"\xc3\xa9", b"..", b"'"]
)
COMPONENT = (
    st.lists(st.one_of(ODD_BYTES, st.binary(min_size=1, max_size=6)), min_size=1, max_size=4)
    .map(lambda pieces: b"".join(pieces).replace(b"/", b"|").replace(b"\0", b"0"))
    .filter(lambda raw: raw not in (b".", b".."))
    .map(os.fsdecode)
)
PATH = st.lists(COMPONENT, min_size=1, max_size=4).map("/".join)
NAME = st.text(string.ascii_letters + string.digits + "._-é@", min_size=1, max_size=20)
TIME = st.integers(0, 2**63 - 1)
HEX = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
MODE = st.integers(0, 0o777)


@st.composite
def chunk_tables(draw):
    suffix = st.one_of(st.just(""), st.text(string.ascii_letters + string.digits, min_size=1, max_size=32))
    keys = draw(st.lists(st.tuples(HEX, suffix), max_size=4, unique=True))
    sizes = st.integers(1, 16 * 1024 * 1024)
    return tuple(ChunkRef(f"{digest}.{end}" if end else digest, draw(sizes)) for digest, end in keys)


@st.composite
def file_entries(draw, path, chunks):
    extents = []
    for _ in range(draw(st.integers(0, 3)) if chunks else 0):
        index = draw(st.integers(0, len(chunks) - 1))
        offset = draw(st.integers(0, chunks[index].size - 1))
        extents.append(Extent(index, offset, draw(st.integers(1, chunks[index].size - offset))))
    mtime = draw(st.integers(-(2**63) + 1, 2**63 - 1))
    return FileEntry(path, sum(e.length for e in extents), draw(MODE), mtime, draw(HEX), tuple(extents))


@st.composite
def parts(draw):
    """Parts whose paths form a tree: a path that clashes with those before it is left out."""
    tree: dict[str, str] = {}
    for path in draw(st.lists(PATH, max_size=6, unique=True)):
        kind = draw(st.sampled_from(["file", "link", "dir"]))
        leaves = [p for p, k in {**tree, path: kind}.items() if k != "dir"]
        if tree_clash(leaves, [p for p, k in {**tree, path: kind}.items() if k == "dir"]) is None:
            tree[path] = kind
    chunks = draw(chunk_tables())
    of = {kind: sorted(path for path in tree if tree[path] == kind) for kind in ("file", "link", "dir")}
    return Part(
        run=draw(NAME),
        run_id=draw(NAME),
        step=draw(st.integers(0, 10**12 - 1)),
        name=draw(COMPONENT),
        below=draw(st.one_of(st.just(""), PATH)),
        node=draw(NAME),
        node_id=draw(NAME),
        layout=draw(NAME),
        level=draw(st.sampled_from(Level)),
        saved_ns=draw(TIME),
        closed=draw(st.booleans()),
        previous_ns=draw(TIME),
        offset_ns=draw(st.integers(-(2**63) + 1, 2**63 - 1)),
        files=tuple(draw(file_entries(path, chunks)) for path in of["file"]),
        links=tuple(LinkEntry(path, "../" * path.count("/") + draw(PATH.map(_not_upwards))) for path in of["link"]),
        dirs=tuple(DirEntry(path, draw(MODE), draw(TIME)) for path in of["dir"]),
        expects=tuple(draw(st.lists(st.builds(Expectation, PATH, st.none() | TIME, PATH), max_size=2))),
        chunks=chunks,
    )


def _not_upwards(path: str) -> str:
    """Under a name that no link's own directories have, so that the target has one spelling."""
    return f"elsewhere~{path}"


@settings(max_examples=60)
@given(parts())
def test_what_is_written_is_read_back_with_every_odd_name(part):
    data = part.to_bytes()
    assert data.isascii()
    assert b"\n" not in data
    again = parse_part(data)
    assert again == part
    assert again.to_bytes() == data
    assert again.id == PartId(part.node, digest_of(data))


RESPELLINGS = {
    "white space": lambda data: json.dumps(json.loads(data), sort_keys=True).encode(),
    "order": lambda data: json.dumps(dict(reversed(json.loads(data).items())), separators=(",", ":")).encode(),
    "line end": lambda data: data + b"\n",
    "leading space": lambda data: b" " + data,
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "escapes": lambda data: data.replace(b'"closed"', b'"\\u0063losed"'),
    "minus zero": lambda data: data.replace(b'"offset_ns":0', b'"offset_ns":-0'),
    "repeated key": lambda data: data.replace(b'"closed"', b'"closed":false,"closed"'),
}


@pytest.mark.parametrize("respell", RESPELLINGS.values(), ids=RESPELLINGS)
def test_no_second_spelling_of_a_part_is_read(make_part, respell):
    part = make_part()
    assert parse_part(part.to_bytes()) == part
    respelled = respell(part.to_bytes())
    assert respelled != part.to_bytes()
    with pytest.raises(ManifestError, match=r"canonical spelling|not valid JSON"):
        parse_part(respelled)


@given(st.binary(min_size=1, max_size=40).map(lambda raw: raw.replace(b"\0", b"")).map(os.fsdecode))
def test_quoting_gives_one_printable_spelling_for_any_bytes(path):
    text = quote(path)
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set('"\\')
    assert unquote(text) == path


@pytest.mark.parametrize("text", ["%41", "%2f", "%2F", "a%", "a%zz", "%e9", '"', "\\", "\n", "é", "\udcff"])
def test_a_spelling_that_quote_does_not_write_is_refused(text):
    with pytest.raises(ValueError, match=r"canonical|ascii"):
        unquote(text)


DIRECTORY = st.lists(st.sampled_from("abc"), max_size=3).map("/".join)


@given(DIRECTORY, DIRECTORY, st.lists(st.sampled_from(["..", ".", "", "a", "b"]), max_size=6).map("/".join))
def test_a_links_target_has_exactly_one_spelling(directory, resolved, text):
    spelled = posixpath.relpath(f"/{resolved}", f"/{directory}")
    assert check_target(directory, spelled) == spelled
    assert inside(directory, spelled) == resolved
    if inside(directory, text) == resolved:
        assert _accepted(directory, text) == (text == spelled)


def _accepted(directory: str, target: str) -> bool:
    try:
        return check_target(directory, target) == target
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("directory", "target"),
    [
        ("a/b", "../c"),
        ("a/b", ".."),
        ("a/b", "../.."),
        ("a/b", "."),
        ("", "."),
        ("", "x/y"),
        ("a", "b"),
        ("a", "../b/a"),
    ],
)
def test_targets_inside_the_step_are_taken(directory, target):
    assert check_target(directory, target) == target


@pytest.mark.parametrize(
    ("directory", "target"),
    [
        ("", ".."),
        ("a/b", "../../.."),
        ("", "/etc"),
        ("", ""),
        ("a", "../a/b"),  # = b
        ("", "a/../b"),
        ("", "./a"),
        ("", "a//b"),
        ("", "a/"),
        ("", "a\0b"),
        ("", "a/" * 2048 + "b"),
    ],
)
def test_every_other_target_is_refused(directory, target):
    with pytest.raises(ValueError, match=r"leaves|spelled|NUL"):
        check_target(directory, target)


def test_checking_a_target_does_not_ask_for_the_working_directory(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        os.getcwd()  # the control: there is none
    assert check_target("a/b", "../c") == "../c"


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "./a", "a/.", "..", "a/../b", "a\0b", "a" * 4097, "\ud800"])
def test_a_path_that_leaves_its_directory_or_has_two_spellings_is_refused(path):
    with pytest.raises(ValueError, match=r"."):
        check_relative(path)


@pytest.mark.parametrize("path", ["a", "...", "a..b", ".metadata", "a/b", "a" * 4096, "a\nb", "\udcff"])
def test_other_paths_are_taken_as_they_are(path):
    assert check_relative(path) == path


@given(
    st.lists(st.lists(st.sampled_from("ab.-"), min_size=1, max_size=3).map("/".join), max_size=6),
    st.lists(st.lists(st.sampled_from("ab.-"), min_size=1, max_size=3).map("/".join), max_size=4, unique=True),
)
def test_a_tree_is_found_to_be_one_exactly_when_the_plain_definition_says_so(leaves, dirs):
    below = any(path.startswith(f"{leaf}/") for leaf in leaves for path in [*leaves, *dirs])
    twice = len(set(leaves)) < len(leaves) or bool(set(leaves) & set(dirs))
    assert (tree_clash(leaves, ["", *dirs]) is not None) == (below or twice)


# -- names that follow from bytes


def test_a_part_is_named_by_its_bytes_and_a_changed_part_by_others(make_part):
    part = make_part()
    assert part.id == PartId("n0", digest_of(part.to_bytes()))
    changed = replace(part, step=21)  # after the name was asked for: it must not be inherited
    assert changed.id == PartId("n0", digest_of(changed.to_bytes()))
    assert changed.id != part.id


def _newer(document: dict[str, object], **fields: object) -> bytes:
    return canonical({**document, "format": [1, 7], **fields})


def test_a_newer_minor_version_may_add_fields_and_keeps_its_name(make_part):
    document = json.loads(make_part().to_bytes())
    document["files"][0]["colour"] = "red"
    data = _newer(document, signature="x")
    part = parse_part(data)
    assert part.id.digest == digest_of(data)
    assert parse_part(part.to_bytes()) == part
    assert part.to_bytes() == data
    assert part == make_part()  # what we know of it is the same
    assert replace(part, step=21).id.digest == digest_of(replace(make_part(), step=21).to_bytes())


def test_a_newer_minor_commit_keeps_its_name():
    commit = Commit("r", "id", 20, (PartId("n0", "0" * 64),))
    data = _newer(json.loads(commit.to_bytes()), signature="x")
    assert parse_commit(data).digest == digest_of(data)
    assert parse_commit(data) == commit


@pytest.mark.parametrize("where", ["part", "file"])
def test_the_version_we_write_has_no_further_fields(make_part, where):
    document = json.loads(make_part().to_bytes())
    (document if where == "part" else document["files"][0])["colour"] = "red"
    with pytest.raises(ManifestError, match="fields that its format does not have"):
        parse_part(canonical(document))


def test_a_newer_major_version_is_refused_with_the_remedy(make_part):
    document = {**json.loads(make_part().to_bytes()), "format": [2, 0]}
    with pytest.raises(ManifestError, match=r"format 2.*upgrade ckptsync") as caught:
        parse_part(canonical(document))
    assert caught.value.too_new


def test_other_documents_go_through_the_same_gate():
    data = canonical({"kind": "run", "format": [1, 3], "later": True})
    assert parse_canonical(data, "run")["later"] is True
    with pytest.raises(ManifestError, match="not a part"):
        parse_canonical(data, "part")


# -- how chunks are made from files again


def test_the_pieces_of_a_chunk_are_the_ranges_of_files_it_is_made_of(make_part):
    files = (
        FileEntry("a", 6, 0o644, 0, "0" * 64, (Extent(0, 0, 4), Extent(1, 0, 2))),
        FileEntry("b", 7, 0o644, 0, "0" * 64, (Extent(1, 2, 3), Extent(0, 0, 4))),
    )
    part = make_part(files={}, saved=0.0)
    part = replace(part, files=files, chunks=(ChunkRef("1" * 64, 4), ChunkRef("2" * 64, 5)))
    assert pieces_of(part) == [(("a", 0, 4),), (("a", 4, 2), ("b", 0, 3))]
    assert pieces_of(replace(part, files=files[:1])) == [(("a", 0, 4),), ()]
