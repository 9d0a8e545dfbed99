"""The codecs alone, in one process and one thread: `python -m benchmarks.codec_worker STEP_DIRECTORY MEGABYTES ROUNDS`.

Prints JSON: {"bytes": raw bytes, "arms": {codec: {"encode s": [...], "decode s": [...], "size": [...]}}}. Seconds are
CPU seconds of the process: what else this machine does hardly disturbs them.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import zstandard

from ckptsync.chunks.codec import decode, encode
from ckptsync.disk.machine import keep_freed_memory

__all__ = ["main"]

CHUNK = 8 << 20
LEAST = 128 << 10


class Codec(NamedTuple):
    """Encode raw bytes; decode them, given their size."""

    encode: Callable[[bytearray], bytes]
    decode: Callable[[bytes, int], Any]


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _chunks(directory: Path, limit: int) -> tuple[str, list[bytes]]:
    """The dtype's name, and chunks of the step's tensors as ckptsync cuts them; an even sample of `limit` bytes."""
    found, name = [], ""
    for file in sorted((directory / "actor").glob("*_world_size_*.pt")):
        for tensor in _tensors(torch.load(file, weights_only=True, mmap=True)):
            if tensor.numel() * tensor.element_size() < LEAST:
                continue
            name = str(tensor.dtype).removeprefix("torch.")
            raw = tensor.contiguous().view(torch.uint8).flatten().numpy()
            found += [raw[start : start + CHUNK] for start in range(0, len(raw), CHUNK)]
    share = min(1.0, limit / sum(map(len, found)))
    kept = [piece for index, piece in enumerate(found) if int((index + 1) * share) > int(index * share)]
    return name, [piece.tobytes() for piece in kept]


def _codecs(dtype: str) -> dict[str, Codec]:
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    codecs = {
        "ckptsync": Codec(lambda raw: encode(raw, compression="auto"), decode),
        "zstd -1": Codec(packer.compress, lambda blob, _: unpacker.decompress(blob)),
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from zipnn import ZipNN
    except ImportError:
        return codecs
    zipnn = ZipNN(bytearray_dtype=dtype, threads=1)
    return {**codecs, "ZipNN": Codec(zipnn.compress, lambda blob, _: zipnn.decompress(blob))}


def _round(codec: Codec, chunks: list[bytes]) -> tuple[float, float, int]:
    """(CPU seconds to encode, to decode, bytes encoded)."""
    gc.collect()
    spent = [0.0, 0.0]
    size = 0
    for raw in chunks:
        given = bytearray(raw)  # ZipNN works in the buffer that it is given
        begun = time.process_time()
        blob = codec.encode(given)
        between = time.process_time()
        back = codec.decode(blob, len(raw))
        spent[1] += time.process_time() - between
        spent[0] += between - begun
        size += len(blob)
        assert bytes(back) == raw, "a codec lost something"
    return spent[0], spent[1], size


def main() -> None:
    """Measure, print."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as every command does
    directory, megabytes, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dtype, chunks = _chunks(directory, megabytes * 1_000_000)
    codecs = _codecs(dtype)
    arms: dict[str, dict[str, list[float]]] = {name: {"encode s": [], "decode s": [], "size": []} for name in codecs}
    for number in range(rounds + 1):
        for name, codec in codecs.items():
            figures = _round(codec, chunks if number else chunks[:2])  # the first round only warms up
            if number:
                for what, value in zip(arms[name], figures, strict=True):
                    arms[name][what].append(value)
    print(json.dumps({"bytes": sum(map(len, chunks)), "arms": arms}))


if __name__ == "__main__":
    main()
