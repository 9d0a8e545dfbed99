"""The splitter loses no byte, keeps what is frozen frozen, and makes few objects of many small files."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptsync import formats
from ckptsync.chunks.split import CHUNK_CUT, GLUE_MAX, OWN_CHUNK_MIN, ChunkDigests, FileShape, split
from ckptsync.errors import StepChanged
from ckptsync.formats.base import Record
from ckptsync.formats.reading import BytesSource
from ckptsync.model.manifest import CHUNK_BYTES_MAX, Extent, digest_of

KIB = 1024
LENGTHS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([OWN_CHUNK_MIN - 1, OWN_CHUNK_MIN, OWN_CHUNK_MIN + 1, 3 * OWN_CHUNK_MIN]),
)
BIG = st.sampled_from(
    [GLUE_MAX, CHUNK_CUT - 1, CHUNK_CUT, CHUNK_CUT + 1, CHUNK_CUT + OWN_CHUNK_MIN, 20 * KIB * KIB + 3]
)


@st.composite
def shapes(draw, lengths=LENGTHS):
    names = draw(st.lists(st.sampled_from(["a", "b", "d/a", "d/b", "d/e/f", "z"]), unique=True, max_size=6))
    files = []
    for name in names:
        position, records = 0, []
        for index in range(draw(st.integers(0, 5))):
            position += draw(lengths)
            length = draw(lengths)
            records.append(Record(f"r{index}", position, length, draw(st.sampled_from([0, 2, 4]))))
            position += length
        files.append(FileShape(name, position + draw(lengths), tuple(records)))
    return files


def content(files, seed=0):
    return {file.path: random.Random(f"{seed}{file.path}").randbytes(file.size) for file in files}


def naive(plan, data):
    return [b"".join(data[r.path][r.offset : r.offset + r.length] for r in chunk) for chunk in plan.chunks]


def shape_of(path, data):
    return FileShape(path, len(data), formats.inspect(path, BytesSource(data)).records)


def digests_by_read_pass(plan, data, piece=1 << 20):
    sink = ChunkDigests(plan)
    for path in sorted(data):
        for offset in range(0, len(data[path]), piece):
            sink.feed(path, offset, data[path][offset : offset + piece])
    return sink.digests()


@settings(deadline=None, max_examples=50)
@given(files=shapes())
def test_extents_put_every_file_together_again(files):
    plan, data = split(files), content(files)
    chunks = naive(plan, data)
    assert plan.extents.keys() == data.keys()
    for path, extents in plan.extents.items():
        assert b"".join(chunks[e.chunk][e.offset : e.offset + e.length] for e in extents) == data[path]


@settings(deadline=None, max_examples=50)
@given(files=shapes(st.one_of(LENGTHS, BIG)))
def test_ranges_cover_every_byte_once_in_chunks_of_allowed_size(files):
    plan = split(files)
    covered = {file.path: [] for file in files}
    for chunk, size in zip(plan.chunks, plan.sizes(), strict=True):
        assert 0 < size <= CHUNK_CUT + OWN_CHUNK_MIN <= CHUNK_BYTES_MAX
        for piece in chunk:
            assert piece.length > 0
            covered[piece.path].append((piece.offset, piece.length))
    for file in files:
        position = 0
        for offset, length in sorted(covered[file.path]):
            assert offset == position
            position += length
        assert position == file.size
    assert len(plan.itemsizes) == len(plan.chunks)


@settings(deadline=None, max_examples=50)
@given(files=shapes(), piece=st.integers(1, 300_000))
def test_one_read_pass_gives_the_digests_of_all_chunks(files, piece):
    plan, data = split(files), content(files)
    piece = max(piece, max((file.size for file in files), default=1) // 50)
    assert list(digests_by_read_pass(plan, data, piece)) == [digest_of(chunk) for chunk in naive(plan, data)]


@settings(deadline=None, max_examples=50)
@given(files=shapes(), seed=st.integers(0, 100))
def test_the_order_of_the_argument_does_not_matter(files, seed):
    shuffled = random.Random(seed).sample(files, len(files))
    assert split(shuffled) == split(files)


def test_a_record_is_cut_from_its_own_beginning_and_keeps_its_item_size():
    record = Record("w", 100, CHUNK_CUT + OWN_CHUNK_MIN, 2)
    plan = split([FileShape("f", record.length + 300, (record,))])
    assert plan.sizes() == (300, CHUNK_CUT, OWN_CHUNK_MIN)
    assert plan.itemsizes == (0, 2, 2)
    assert plan.extents["f"][0] == Extent(0, 0, 100)
    assert plan.extents["f"][-1] == Extent(0, 100, 200)


def test_a_remainder_too_small_for_a_chunk_stays_with_the_last_one():
    plan = split([FileShape("f", 2 * CHUNK_CUT + OWN_CHUNK_MIN - 1)])
    assert plan.sizes() == (CHUNK_CUT, CHUNK_CUT + OWN_CHUNK_MIN - 1)


def test_twenty_thousand_small_files_become_a_few_chunks():
    files = [FileShape(f"d/{i % 97:02x}/{i}", 6 * KIB) for i in range(20_000)]
    plan = split(files)
    assert len(plan.chunks) == -(-20_000 // (GLUE_MAX // (6 * KIB)))
    assert all(len(extents) == 1 for extents in plan.extents.values())


def test_empty_files_have_no_extents():
    plan = split([FileShape("a", 0), FileShape("b", 1), FileShape("c", 0)])
    assert (plan.extents["a"], plan.extents["b"], plan.extents["c"]) == ((), (Extent(0, 0, 1),), ())
    assert split([]).chunks == ()


def test_a_large_opaque_file_does_not_depend_on_its_neighbours():
    frozen = random.Random(1).randbytes(300 * KIB)
    before = {"a.json": b"1" * 10, "tokenizer.json": frozen, "z": b"zz"}
    after = {"a.json": b"2" * 999, "b.json": b"new", "tokenizer.json": frozen, "z": b"other"}
    assert digest_of(frozen) in digests_of(before)
    assert digest_of(frozen) in digests_of(after)


def test_a_file_with_much_glue_keeps_it_to_itself():
    records = tuple(Record(f"r{i}", i * 1000, 1000) for i in range(200))
    plan = split([FileShape("a", 50), FileShape("many", 200_000, records), FileShape("z", 60)])
    assert plan.sizes() == (110, 200_000)
    assert {piece.path for piece in plan.chunks[0]} == {"a", "z"}


def digests_of(data):
    plan = split([shape_of(path, data[path]) for path in data])
    return set(digests_by_read_pass(plan, data))


def saved(path, **tensors):
    torch.save(tensors, path)
    return path.read_bytes()


def test_a_frozen_tensor_is_the_same_chunk_whatever_its_neighbours_do(tmp_path):
    generator = torch.Generator().manual_seed(0)
    frozen = torch.randn(300, 1000, generator=generator)
    small = torch.randn(10, generator=generator)

    def step(name, *neighbours):
        tensors = {"first": neighbours[0], "frozen": frozen, "small": small, "last": neighbours[1]}
        return {"model.pt": saved(tmp_path / name, **tensors)}

    a = torch.randn(200, 1000, generator=generator)
    b = torch.randn(70_000, generator=generator)
    steps = [step("1.pt", a, b), step("2.pt", a + 1, b * 2), step("3.pt", torch.ones(77), torch.ones(500_000))]
    found = [digests_of(data) for data in steps]
    raw = frozen.numpy().tobytes()
    assert all(digest_of(raw) in digests for digests in found)
    assert digest_of(b.numpy().tobytes()) in found[0] - found[1]
    assert len(found[0] & found[1]) == 1


@pytest.mark.parametrize(
    "records",
    [
        (Record("a", 0, 60), Record("b", 50, 10)),
        (Record("b", 50, 10), Record("a", 0, 10)),
        (Record("a", 90, 11),),
        (Record("a", 0, -1),),
    ],
    ids=["overlap", "descending", "too long", "negative"],
)
def test_impossible_records_are_a_bug_of_the_caller(records):
    with pytest.raises(ValueError, match="does not fit"):
        split([FileShape("f", 100, records)])


def test_a_path_given_twice_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="twice"):
        split([FileShape("f", 1), FileShape("f", 1)])


def test_a_file_that_grew_is_a_changed_step():
    sink = ChunkDigests(split([FileShape("f", 10)]))
    with pytest.raises(StepChanged, match="grew"):
        sink.feed("f", 0, bytes(11))


def test_a_file_that_ends_early_leaves_its_chunks_without_digest():
    files = [FileShape("a", 10), FileShape("b", 10), FileShape("c", OWN_CHUNK_MIN)]
    sink = ChunkDigests(split(files))
    sink.feed("a", 0, bytes(9))
    sink.feed("b", 0, bytes(10))
    sink.feed("c", 0, bytes(OWN_CHUNK_MIN))
    with pytest.raises(StepChanged, match="1 chunks are incomplete"):
        sink.digests()


def test_a_gap_in_the_reading_is_a_bug_of_the_caller():
    sink = ChunkDigests(split([FileShape("f", 10)]))
    sink.feed("f", 0, bytes(3))
    with pytest.raises(ValueError, match="bytes at 5 where those at 3 come next"):
        sink.feed("f", 5, bytes(1))
