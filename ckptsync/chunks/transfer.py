"""Chunks to the store and back; every byte is checked against the chunk's name on both ways."""

from __future__ import annotations

import logging

import numpy as np

from ckptsync.chunks.codec import ROOM, Compression, decode, encode, encoded_max, frame
from ckptsync.chunks.frames import Buffer
from ckptsync.errors import CorruptObject, KeyMissing, StepChanged
from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.store.base import Store

__all__ = ["get_chunk", "put_chunk", "room_for"]

_log = logging.getLogger(__name__)


def room_for(size: int) -> memoryview:
    """Fresh memory for `codec.ROOM` bytes and a chunk of `size` raw ones, as `put_chunk` wants it.

    From numpy, which asks for huge pages: with small ones, faulting them in took more time than all else that is done
    to a chunk that is sent as it is (0.25 of 0.85 s per GB).
    """
    return np.empty(ROOM + size, np.uint8).data


def put_chunk(
    store: Store, key: str, digest: str, roomy: memoryview, compression: Compression, itemsize: int = 0
) -> int:
    """Make sure that `key` holds the chunk.

    Args:
        store: where to.
        key: the full key of the object.
        digest: BLAKE3 of the raw bytes, as verification found it.
        roomy: `codec.ROOM` bytes, then the raw ones as read now; not to be used any more.
        compression: see `codec.encode`.
        itemsize: see `codec.encode`.

    Returns:
        Bytes sent; 0 if the store had the chunk already.

    Raises:
        StepChanged: they are not what was verified.
        StoreError: as the store says.
    """
    raw = roomy[ROOM:]
    if digest_of(raw) != digest:
        what = "the step changed while it was pushed"
        raise StepChanged(what, where=key, why="its bytes are not the verified ones")
    blob = frame(roomy) if compression == "none" else encode(raw, compression=compression, itemsize=itemsize)
    if store.put_new(key, blob):
        return len(blob)
    ref = ChunkRef(digest, len(raw))
    try:
        get_chunk(store, key, ref)
    except KeyMissing:
        _log.warning("%s: chunk vanished while it was pushed, putting it again", key)
    except CorruptObject as error:
        # The name is the digest of the content, so there is exactly one right content and it is at hand: replacing
        # a torn object repairs every step that refers to it, and cannot take anything from anyone.
        _log.warning("%s; replacing it", error)
    else:
        return 0
    store.put(key, blob)
    return len(blob)


def get_chunk(store: Store, key: str, ref: ChunkRef) -> bytes:
    """The raw bytes of a chunk.

    Args:
        store: where from.
        key: the full key of the object.
        ref: what the manifest says of it.

    Raises:
        KeyMissing: it is not there.
        CorruptObject: it is not what its name says; names the key.
        StoreError: as the store says.
    """
    raw = _decode(key, store.get(key, max_size=encoded_max(ref.size)), ref.size)
    if digest_of(raw) != ref.digest:
        what = "damaged chunk"
        raise CorruptObject(what, where=key, why="its content does not have the digest it is named by")
    return raw


def _decode(key: str, blob: Buffer, size: int) -> bytes:
    try:
        return decode(blob, size)
    except CorruptObject as error:
        error.where = key
        raise
