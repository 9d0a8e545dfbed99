"""Nothing that is not exactly a part or a commit gets past the parser; nothing but ManifestError comes out of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync.model.manifest import (
    Commit,
    DirEntry,
    FileEntry,
    LinkEntry,
    ManifestError,
    PartId,
    canonical,
    digest_of,
    pieces_of,
)
from ckptsync.model.parse import parse_canonical, parse_commit, parse_part, parse_part_id
from ckptsync.model.step import Expectation

HEX = "0123456789abcdef" * 4


def _rich(make_part):
    """A valid part with something of everything."""
    part = make_part(files={"actor/a.pt": ("aaaa", 1.0), "actor/b.pt": ("bb", 2.0), "data.pt": ("d", 3.0)}, closed=True)
    return replace(
        part,
        links=(LinkEntry("actor/z", "../data.pt"), LinkEntry("hf", "actor")),
        dirs=(DirEntry("", 0o755, 1), DirEntry("actor", 0o700, 2), DirEntry("empty", 0o755, 3)),
        expects=(Expectation("actor/b.pt", 2, "actor/a.pt"), Expectation("x", None, "data.pt")),
    )


def _set(*keys):
    """A mutation: walk `keys`, put the last one in place of what is there."""
    *path, last, value = keys

    def mutate(document):
        for key in path:
            document = document[key]
        if value is _GONE:
            del document[last]
        else:
            document[last] = value

    return mutate


_GONE = object()
_PATH_MESSAGE = "the path .*(component|absolute|NUL|longer|canonical|ascii|surrogates|empty|not a string)"


def _add(field, *items):
    return lambda document: document[field].extend(items)


def _file(path, **changes):
    return {"path": path, "size": 0, "mode": 0, "mtime_ns": 0, "blake3": HEX, "extents": [], **changes}


def _link(path, target):
    return {"path": path, "target": target}


PATHS = {
    "climbs": "../evil",
    "climbs inside": "actor/../../evil",
    "climbs and returns": "actor/../data.pt",
    "absolute": "/etc/passwd",
    "double slash": "actor//x",
    "trailing slash": "zz/",
    "dot": "./x",
    "inner dot": "zz/./x",
    "empty": "",
    "NUL": "a%00b",
    "too long": "z" * 4097,
    "raw newline": "a\nb",
    "lower-case escape": "a%e9",
    "needless escape": "%41",
    "encoded slash": "a%2Fb",
    "encoded climb": "%2E%2E/x",
    "half character": "a\ud800",
    "not ASCII": "é",
    "broken escape": "a%",
    "not a string": 7,
    "null": None,
}

DOCUMENTS = {
    "no format": (_set("format", _GONE), "no format version"),
    "format of one number": (_set("format", [1]), "no format version"),
    "format of text": (_set("format", ["1", "0"]), "no format version"),
    "format of truth values": (_set("format", [True, False]), "no format version"),
    "negative format": (_set("format", [-1, 0]), "no format version"),
    "format zero": (_set("format", [0, 9]), "no format 0"),
    "newer major": (_set("format", [2, 0]), "upgrade ckptsync"),
    "another kind": (_set("kind", "commit"), "not a part"),
    "kind of another type": (_set("kind", ["part"]), "not a part"),
    "unknown field": (_set("extra", 1), "does not have"),
    "unknown field in a file": (_set("files", 0, "extra", 1), "does not have"),
    "unknown field in a link": (_set("links", 0, "extra", 1), "does not have"),
    "no run": (_set("run", _GONE), "run is not"),
    "empty run": (_set("run", ""), "run is not"),
    "run is a number": (_set("run", 1), "run is not"),
    "long run": (_set("run", "r" * 256), "run is not"),
    "node with a line end": (_set("node", "n0\nERROR"), "node is not"),
    "node with an escape": (_set("node", "n\x1b[2J"), "node is not"),
    "node with half a character": (_set("node", "n\udc80"), "node is not"),
    "step is negative": (_set("step", -1), "step is not"),
    "step is huge": (_set("step", 10**12), "step is not"),
    "step is true": (_set("step", True), "step is not"),
    "step is text": (_set("step", "20"), "step is not"),
    "name of two components": (_set("name", "a/b"), "not a single name"),
    "name climbs": (_set("name", ".."), "component"),
    "name is empty": (_set("name", ""), "is empty"),
    "below climbs": (_set("below", "../x"), "component"),
    "below is absolute": (_set("below", "/x"), "absolute"),
    "unknown level": (_set("level", "fullest"), "verification level"),
    "closed is a number": (_set("closed", 1), "closed is not"),
    "closed is null": (_set("closed", None), "closed is not"),
    "negative save time": (_set("saved_ns", -1), "saved_ns is not"),
    "save time beyond 64 bits": (_set("saved_ns", 2**63), "saved_ns is not"),
    "offset beyond 64 bits": (_set("offset_ns", -(2**63)), "offset_ns is not"),
    "files is an object": (_set("files", {}), "files is not a list"),
    "files is null": (_set("files", None), "files is not a list"),
    "a file is a list": (_add("files", ["zz", 0]), "entry is not an object"),
    "a file without size": (_set("files", 0, "size", _GONE), "size is not"),
    "a negative size": (_set("files", 0, "size", -4), "size is not"),
    "a huge size": (_set("files", 0, "size", 2**70), "size is not"),
    "a size that is not the sum of its extents": (_set("files", 0, "size", 5), "add up"),
    "no extents": (_set("files", 0, "extents", []), "add up"),
    "mode with setuid": (_set("files", 0, "mode", 0o4755), "permission bits"),
    "mode of a device": (_set("files", 0, "mode", 0o60644), "permission bits"),
    "negative mode": (_set("files", 0, "mode", -1), "mode is not"),
    "directory mode with the sticky bit": (_set("dirs", 0, "mode", 0o1777), "permission bits"),
    "mtime beyond 64 bits": (_set("files", 0, "mtime_ns", 2**63), "mtime_ns is not"),
    "short digest": (_set("files", 0, "blake3", "ab"), "not a digest"),
    "upper-case digest": (_set("files", 0, "blake3", HEX.upper()), "not a digest"),
    "extent of a chunk that is not there": (_set("files", 0, "extents", [[9, 0, 4]]), "leaves its chunk"),
    "extent past its chunk": (_set("files", 0, "extents", [[0, 1, 4]]), "leaves its chunk"),
    "extent far past its chunk": (_set("files", 0, "extents", [[0, 2**80, 4]]), "leaves its chunk"),
    "empty extent": (_set("files", 0, "extents", [[0, 0, 4], [0, 0, 0]]), "leaves its chunk"),
    "negative extent": (_set("files", 0, "extents", [[0, -1, 4]]), "not .chunk, offset, length"),
    "extent from the end": (_set("files", 0, "extents", [[-1, 0, 1]]), "not .chunk, offset, length"),
    "extent of truth values": (_set("files", 0, "extents", [[False, False, 4]]), "not .chunk, offset, length"),
    "extent of four": (_set("files", 0, "extents", [[0, 0, 4, 0]]), "not .chunk, offset, length"),
    "extent that is text": (_set("files", 0, "extents", ["004"]), "not .chunk, offset, length"),
    "extents that overlap to the wrong sum": (_set("files", 0, "extents", [[0, 0, 4], [0, 2, 2]]), "add up"),
    "files not sorted": (lambda d: d["files"].reverse(), "sorted"),
    "dirs not sorted": (lambda d: d["dirs"].reverse(), "sorted"),
    "links not sorted": (lambda d: d["links"].reverse(), "sorted"),
    "a file twice": (lambda d: d["files"].insert(0, d["files"][0]), "repeated"),
    "a link twice": (lambda d: d["links"].insert(0, d["links"][0]), "repeated"),
    "a directory twice": (lambda d: d["dirs"].insert(0, d["dirs"][0]), "repeated"),
    "a file below a file": (_add("files", _file("data.pt/x")), "below a file"),
    "a file deep below a file": (_add("files", _file("data.pt/x/y/z")), "below a file"),
    "a file below a link": (_add("files", _file("hf/x")), "below a file or a link"),
    "a link below a link": (_add("links", _link("hf/x", "y")), "below a file or a link"),
    "a link below a file": (lambda d: d["links"].insert(1, _link("data.pt/l", "x")), "below a file"),
    "a directory below a file": (lambda d: d["dirs"].insert(2, {**d["dirs"][1], "path": "data.pt/d"}), "below a file"),
    "a directory below a link": (_add("dirs", {"path": "hf/d", "mode": 0, "mtime_ns": 0}), "below a file or a link"),
    "a file and a link": (_add("files", _file("hf")), "two things"),
    "a file and a directory": (_add("files", _file("empty")), "two things"),
    "a link and a directory": (_set("links", 1, "path", "empty"), "two things"),
    "link to an absolute path": (_set("links", 0, "target", "/etc/shadow"), "leaves the step"),
    "link out of the step": (_set("links", 0, "target", "../../x"), "leaves the step"),
    "link out of the step from its top": (_set("links", 1, "target", ".."), "leaves the step"),
    "link out of the step and back": (_set("links", 1, "target", "../step/actor"), "leaves the step"),
    "link that climbs behind a name": (_set("links", 0, "target", "../hf/../../x"), "leaves the step|spelled"),
    "link that could climb through a link": (_set("links", 0, "target", "../hf/../data.pt"), "spelled"),
    "link with a dot": (_set("links", 1, "target", "./actor"), "spelled"),
    "link with a slash at its end": (_set("links", 1, "target", "actor/"), "spelled"),
    "link with an empty component": (_set("links", 0, "target", "..//data.pt"), "spelled"),
    "link to nothing at all": (_set("links", 0, "target", ""), "leaves the step"),
    "link with a NUL": (_set("links", 1, "target", "a%00b"), "NUL"),
    "link that is too long": (_set("links", 1, "target", "z" * 4097), "longer"),
    "link in another spelling": (_set("links", 1, "target", "%61ctor"), "canonical"),
    "link target that is a number": (_set("links", 0, "target", 5), "not a string"),
    "link without a target": (_set("links", 0, "target", _GONE), "not a string"),
    "link that is a list": (_add("links", []), "entry is not an object"),
    "expectation with a size below none": (_set("expects", 0, "size", -2), "size is not"),
    "expectation without a voucher": (_set("expects", 0, "voucher", _GONE), "not a string"),
    "expectation that climbs": (_set("expects", 0, "path", "../x"), "component"),
    "chunk that is an object": (_add("chunks", {"key": HEX}), "not .key, size"),
    "chunk without a size": (_add("chunks", [HEX]), "not .key, size"),
    "chunk with a true size": (_add("chunks", [HEX, True]), "not .key, size"),
    "chunk key that climbs": (_add("chunks", ["../../run.json", 1]), "not a chunk's key"),
    "chunk key that is short": (_add("chunks", [HEX[1:], 1]), "not a chunk's key"),
    "chunk key in upper case": (_add("chunks", [HEX.upper(), 1]), "not a chunk's key"),
    "chunk key with an empty suffix": (_add("chunks", [f"{HEX}.", 1]), "not a chunk's key"),
    "chunk key with a slash": (_add("chunks", [f"{HEX}.a/b", 1]), "not a chunk's key"),
    "chunk key with two suffixes": (_add("chunks", [f"{HEX}.a.b", 1]), "not a chunk's key"),
    "chunk key with a long suffix": (_add("chunks", [f"{HEX}.{'a' * 33}", 1]), "not a chunk's key"),
    "chunk key with foreign digits": (_add("chunks", [f"{HEX}.٣", 1]), "not a chunk's key"),
    "empty chunk": (_add("chunks", [HEX, 0]), "out of range"),
    "chunk of more than 16 MiB": (_add("chunks", [HEX, 16 * 1024 * 1024 + 1]), "out of range"),
    **{f"file path: {name}": (_add("files", _file(path)), _PATH_MESSAGE) for name, path in PATHS.items()},
    **{f"link path: {name}": (_add("links", _link(path, "x")), _PATH_MESSAGE) for name, path in PATHS.items()},
    **{
        f"directory path: {name}": (_add("dirs", {"path": path, "mode": 0, "mtime_ns": 0}), _PATH_MESSAGE)
        for name, path in PATHS.items()
        if path != ""  # the step itself
    },
}


@pytest.mark.parametrize(("mutate", "message"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_hostile_part_is_refused_for_its_own_fault(make_part, mutate, message):
    data = _rich(make_part).to_bytes()
    assert parse_part(data).files  # the control: without the mutation it is read
    document = json.loads(data)
    mutate(document)
    with pytest.raises(ManifestError, match=message) as caught:
        parse_part(canonical(document))
    assert len(str(caught.value)) <= 500


@pytest.mark.parametrize("path", ["zz", "zz/deep/x", "~", "actor.pt", "actor-x/y", "z%0Az", "z%FF", "zz/..."])
def test_the_same_places_take_harmless_paths(make_part, path):
    document = json.loads(_rich(make_part).to_bytes())
    document["files"] = sorted([*document["files"], _file(path)], key=lambda file: file["path"])
    assert len(parse_part(canonical(document)).files) == 4


TEXTS = {
    "nothing": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"kind":"part","run":"\xff"}',
    "a list": b"[]",
    "a number": b"7",
    "a float": b'{"format":[1,0],"kind":"part","step":1.0}',
    "an exponent": b'{"format":[1,0],"kind":"part","step":1e3}',
    "NaN": b'{"format":[1,0],"kind":"part","step":NaN}',
    "infinity": b'{"format":[1,0],"kind":"part","step":-Infinity}',
    "a number of 5000 digits": b'{"format":[1,0],"kind":"part","step":' + b"9" * 5000 + b"}",
    "a format of 4000 digits": b'{"format":[' + b"9" * 4000 + b',0],"kind":"part"}',
    "lists 100000 deep": b'{"kind":"part","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects 100000 deep": b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    "two documents": b"{}{}",
    "a gzip": b"\x1f\x8b\x08\x00",
}


@pytest.mark.parametrize("data", TEXTS.values(), ids=TEXTS)
def test_other_bytes_are_refused(data):
    for parse in (parse_part, parse_commit, lambda text: parse_canonical(text, "run")):
        with pytest.raises(ManifestError):
            parse(data)


@pytest.mark.parametrize("depth", [50, 400, 700, 900, 980, 1000, 3000])
def test_nesting_of_any_depth_ends_in_an_answer(depth):
    """Reading and writing have limits of their own: what the one takes can be too much for the other."""
    document = b'{"format":[1,1],"kind":"run","x":' + b"[" * depth + b"]" * depth + b"}"
    try:
        assert parse_canonical(document, "run")["kind"] == "run"
    except ManifestError as error:
        assert "not valid JSON" in str(error)  # noqa: PT017 - whether it raises depends on the interpreter
        assert depth > 50  # shallow nesting in a field we do not know is no fault


@settings(max_examples=80)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(data):
    for parse in (parse_part, parse_commit, lambda text: parse_part_id(text.decode("latin-1"))):
        with pytest.raises(ManifestError):
            parse(data)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=5)
    | st.sampled_from(["..", "%00", HEX]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.integers(0, 2**32), JUNK)
def test_a_real_part_with_anything_anywhere_never_raises_anything_else(make_part, seed, junk):
    data = _rich(make_part).to_bytes()
    document = json.loads(data)
    _replace_somewhere(document, random.Random(seed), junk)
    try:
        mutated = canonical(document)
        part = parse_part(mutated)
    except ManifestError:
        return
    assert part.to_bytes() == mutated  # harmless: another number, another name
    assert part.id.digest == digest_of(mutated)
    assert len(pieces_of(part)) == len(part.chunks)


def _replace_somewhere(document, chooser, junk):
    while True:
        keys = sorted(document) if isinstance(document, dict) else range(len(document))
        key = chooser.choice(list(keys))
        inner = document[key]
        if isinstance(inner, (dict, list)) and inner and chooser.random() < 0.8:
            document = inner
            continue
        document[key] = junk
        return


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_real_part_with_damaged_bytes_never_raises_anything_else(make_part, seed):
    chooser = random.Random(seed)
    whole = _rich(make_part).to_bytes()
    data = bytearray(whole)
    for _ in range(chooser.randint(1, 3)):
        data[chooser.randrange(len(data))] = chooser.randrange(256)
    try:
        assert parse_part(bytes(data)).to_bytes() == data
    except ManifestError:
        assert bytes(data) != whole


def test_hundreds_of_deep_paths_are_checked_without_building_every_parent(make_part):
    """600 paths of 1,990 components: all parents of all of them would be 2 GB of text."""
    deep = "d/" * 1_990
    files = tuple(FileEntry(f"{deep}{number:05d}", 0, 0o644, 0, HEX, ()) for number in range(600))
    part = replace(make_part(), files=files, chunks=())
    assert len(parse_part(part.to_bytes()).files) == 600
    clash = FileEntry(f"{deep}00100/x", 0, 0o644, 0, HEX, ())
    hostile = replace(part, files=tuple(sorted([*files, clash], key=lambda file: file.path)))
    with pytest.raises(ManifestError, match="lies below"):
        parse_part(hostile.to_bytes())


# -- commits


def _commit():
    return Commit("r", "id", 20, (PartId("n0", HEX), PartId("n1", HEX)))


def test_a_commit_is_read_back_and_does_not_depend_on_the_order_of_its_parts():
    commit = _commit()
    assert parse_commit(commit.to_bytes()) == commit
    assert replace(commit, parts=commit.parts[::-1]).digest == commit.digest


COMMITS = {
    "no parts": (_set("parts", []), "missing, repeated or not sorted"),
    "parts twice": (_set("parts", [f"n0@{HEX}"] * 2), "missing, repeated or not sorted"),
    "parts not sorted": (lambda d: d["parts"].reverse(), "missing, repeated or not sorted"),
    "a part without a node": (_set("parts", [f"@{HEX}"]), "not a part's name"),
    "a part without a digest": (_set("parts", ["n0@"]), "not a part's name"),
    "a part without an @": (_set("parts", [HEX]), "not a part's name"),
    "a part that is a number": (_set("parts", [1]), "not a string"),
    "a part with a line end": (_set("parts", [f"n\n@{HEX}"]), "not a part's name"),
    "a part with a long node": (_set("parts", [f"{'n' * 256}@{HEX}"]), "not a part's name"),
    "a part with half a character": (_set("parts", [f"n\ud800@{HEX}"]), "not a part's name"),
    "parts is text": (_set("parts", f"n0@{HEX}"), "not a list"),
    "another kind": (_set("kind", "part"), "not a commit"),
    "a huge step": (_set("step", 10**12), "step is not"),
    "no run": (_set("run", _GONE), "run is not"),
    "a further field": (_set("note", "x"), "does not have"),
    "newer major": (_set("format", [9, 0]), "upgrade ckptsync"),
}


@pytest.mark.parametrize(("mutate", "message"), COMMITS.values(), ids=COMMITS)
def test_a_hostile_commit_is_refused_for_its_own_fault(mutate, message):
    document = json.loads(_commit().to_bytes())
    assert parse_commit(canonical(document)) == _commit()
    mutate(document)
    with pytest.raises(ManifestError, match=message):
        parse_commit(canonical(document))


def test_a_node_may_have_an_at_sign_in_its_name():
    assert parse_part_id(f"a@b@{HEX}") == PartId("a@b", HEX)
