"""Zstandard frames: compressors that fit checkpoints, and a decompressor that believes no frame.

A frame declares its own size and window, and a hostile or torn one lies: `decompress(max_output_size=...)` ignores
the limit once a size is declared, ignores what follows the frame, and a stream reader takes a missing end for the
end. Here a frame must declare exactly the size the caller expects, and its end must be the end of the data.
"""

from __future__ import annotations

import threading

import zstandard

from ckptsync.model.manifest import CHUNK_BYTES_MAX

__all__ = ["Buffer", "FrameError", "pack", "pack_numbers", "pack_runs", "unpack"]

Buffer = bytes | bytearray | memoryview

LEVEL = 3


class FrameError(ValueError):
    """The data is not one whole frame of the expected size."""


def _fast(target_length: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, min_match=7, target_length=target_length
        )
    )


class _Contexts(threading.local):
    """One set per thread: a context must not be used by two threads at a time, and making one costs megabytes."""

    def __init__(self) -> None:
        self.general = zstandard.ZstdCompressor(level=LEVEL)
        # A byte plane has a skewed distribution of values and hardly a repeated string: the search for matches may be
        # as quick as it gets (a table of 64 entries stays in L1), so that nearly all time goes to entropy coding.
        self.numbers = _fast(target_length=0)
        # A target length above 0 makes zstd skip faster and leave out entropy coding.
        self.runs = _fast(target_length=16)
        self.reader = zstandard.ZstdDecompressor(max_window_size=CHUNK_BYTES_MAX)


_contexts = _Contexts()


def pack(data: Buffer) -> bytes:
    """One frame, for data of any kind."""
    return _contexts.general.compress(data)


def pack_numbers(data: Buffer) -> bytes:
    """One frame, for a plane whose values are unevenly distributed: several times faster than `pack`."""
    return _contexts.numbers.compress(data)


def pack_runs(data: Buffer) -> bytes:
    """One frame, for a plane of noise with stretches of zeros in it: several times faster still."""
    return _contexts.runs.compress(data)


def unpack(frame: Buffer, size: int) -> bytes:
    """The content of `frame`, exactly `size` (> 0) bytes. Allocates nothing before the declared sizes are checked.

    Raises:
        FrameError: anything else than one whole frame of that size.
    """
    try:
        declared = zstandard.get_frame_parameters(frame)
        if declared.content_size != size or not size:
            msg = f"a zstd frame of {_size_name(declared.content_size)} where {size} bytes belong"
            raise FrameError(msg)
        if declared.window_size > CHUNK_BYTES_MAX:
            msg = f"a zstd frame with a window of {declared.window_size} bytes"
            raise FrameError(msg)
        return _contexts.reader.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        msg = f"not a whole zstd frame: {error}"
        raise FrameError(msg) from error


def _size_name(size: int) -> str:
    return "undeclared size" if size == zstandard.CONTENTSIZE_UNKNOWN else f"{size} bytes"
