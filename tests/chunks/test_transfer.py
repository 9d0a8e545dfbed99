"""Only the bytes that a chunk is named by are ever put under its name, or taken from it."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from ckptsync.chunks.codec import encode
from ckptsync.chunks.header import ROOM
from ckptsync.chunks.transfer import get_chunk, put_chunk
from ckptsync.errors import CorruptObject, KeyMissing, StepChanged
from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.store.objects import open_objects

RAW = (np.random.default_rng(3).standard_normal(50_000) * 0.02).astype("<f4").tobytes()
DIGEST = digest_of(RAW)
REF = ChunkRef(DIGEST, len(RAW))
KEY = f"run/chunks/{DIGEST[:2]}/{DIGEST}"


@pytest.fixture
def store():
    return open_objects(f"memory://{uuid.uuid4()}")


def roomy(raw):
    return lambda: memoryview(bytearray(ROOM) + raw)


def put(store, raw=RAW, **options):
    return put_chunk(store, KEY, DIGEST, roomy(raw), options.get("compression", "auto")).size


def test_what_is_put_is_got(store):
    sent = put(store)
    assert sent == store.head(KEY).size < 0.9 * len(RAW)
    assert get_chunk(store, KEY, REF) == RAW


def test_a_chunk_that_is_there_is_not_sent_again_whoever_encoded_it(store):
    put(store, compression="none")
    before = store.get(KEY, max_size=10**6)
    assert put(store, compression="auto") == 0
    assert store.get(KEY, max_size=10**6) == before


def test_bytes_that_are_not_the_verified_ones_are_never_put(store):
    with pytest.raises(StepChanged) as caught:
        put(store, RAW[:-1] + b"?")
    assert KEY in str(caught.value)
    assert store.head(KEY) is None


@pytest.mark.parametrize(
    "wrong",
    [b"", encode(RAW, compression="auto")[:-1], encode(RAW[::-1], compression="none"), bytes(2 * len(RAW))],
    ids=["empty", "torn", "other content", "too large"],
)
def test_a_wrong_object_is_refused_on_the_way_back_and_repaired_by_a_push(store, wrong, caplog):
    store.put(KEY, wrong)
    with pytest.raises(CorruptObject) as caught:
        get_chunk(store, KEY, REF)
    assert DIGEST in str(caught.value)
    assert put(store) == store.head(KEY).size
    assert "replacing it" in caplog.text
    assert get_chunk(store, KEY, REF) == RAW


def test_a_missing_chunk_says_so(store):
    with pytest.raises(KeyMissing):
        get_chunk(store, KEY, REF)


def test_a_chunk_that_vanishes_meanwhile_is_put_again(store, monkeypatch):
    created = type(store).put_new

    def create_and_lose(self, key, data):
        created(self, key, data)
        self.delete(key)
        return False

    monkeypatch.setattr(type(store), "put_new", create_and_lose)
    assert put(store) == store.head(KEY).size
    assert get_chunk(store, KEY, REF) == RAW


def test_a_suffixed_key_holds_the_same_content(store):
    ref = ChunkRef(f"{DIGEST}.0011223344556677", len(RAW))
    put_chunk(store, KEY + ".0011223344556677", ref.digest, roomy(RAW), "auto")
    assert get_chunk(store, KEY + ".0011223344556677", ref) == RAW
