"""Chunks to the store and back; every byte is checked against the chunk's name on both ways.

The codec, and with it numpy, is imported with the first chunk: commands that only look have none.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptsync.chunks.header import ROOM, Compression, codec_of, encoded_max, frame
from ckptsync.errors import CorruptObject, KeyMissing, StepChanged
from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.store.base import Blob, Store

if TYPE_CHECKING:
    from ckptsync.chunks.frames import Buffer

__all__ = ["Sent", "get_chunk", "put_chunk", "room_for"]

_log = logging.getLogger(__name__)


def room_for(size: int) -> memoryview:
    """Fresh memory for `ROOM` bytes and a chunk of `size` raw ones, as `put_chunk` wants it.

    From numpy, which asks for huge pages: with small ones, faulting them in took more time than all else that is done
    to a chunk that is sent as it is (0.25 of 0.85 s per GB).
    """
    import numpy as np  # noqa: PLC0415 - see above

    return np.empty(ROOM + size, np.uint8).data


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a chunk: bytes sent (0 = the store had it), how it was encoded, and seconds in each stage."""

    size: int
    codec: str
    read_s: float
    hash_s: float
    encode_s: float
    put_s: float


def put_chunk(store: Store, key: str, digest: str, read: Callable[[], memoryview], compression: Compression) -> Sent:
    """Make sure that `key` holds the chunk.

    Args:
        store: where to.
        key: the full key of the object.
        digest: BLAKE3 of the raw bytes, as verification found it.
        read: gives `ROOM` bytes, then the raw ones as they are now, and keeps nothing of them.
        compression: see `codec.encode`. The item size is left to its sample: knowing it would save 8 % of encoding.

    Raises:
        StepChanged: they are not what was verified.
        StoreError: as the store says.
    """
    times = [time.perf_counter()]
    roomy = read()
    raw, size = roomy[ROOM:], len(roomy) - ROOM
    times.append(time.perf_counter())
    if digest_of(raw) != digest:
        what = "the step changed while it was pushed"
        raise StepChanged(what, where=key, why="its bytes are not the verified ones")
    times.append(time.perf_counter())
    blob: Blob = frame(roomy) if compression == "none" else _encode(raw, compression)
    del raw, roomy  # what is encoded takes less memory while it is on its way
    times.append(time.perf_counter())
    sent = len(blob) if _put(store, key, ChunkRef(digest, size), blob) else 0
    times.append(time.perf_counter())
    return Sent(sent, codec_of(blob), *(end - begin for begin, end in itertools.pairwise(times)))


def _encode(raw: memoryview, compression: Compression) -> bytes:
    from ckptsync.chunks.codec import encode  # noqa: PLC0415 - see above

    return encode(raw, compression=compression)


def _put(store: Store, key: str, ref: ChunkRef, blob: Blob) -> bool:
    """False: it was there already."""
    if store.put_new(key, blob):
        return True
    try:
        get_chunk(store, key, ref)
    except KeyMissing:
        _log.warning("%s: chunk vanished while it was pushed, putting it again", key)
    except CorruptObject as error:
        # The name is the digest of the content, so there is exactly one right content and it is at hand: replacing
        # a torn object repairs every step that refers to it, and cannot take anything from anyone.
        _log.warning("%s; replacing it", error)
    else:
        return False
    store.put(key, blob)
    return True


def get_chunk(store: Store, key: str, ref: ChunkRef) -> bytes | memoryview:
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


def _decode(key: str, blob: Buffer, size: int) -> bytes | memoryview:
    from ckptsync.chunks.codec import decode  # noqa: PLC0415 - see above

    try:
        return decode(blob, size)
    except CorruptObject as error:
        error.where = key
        raise
