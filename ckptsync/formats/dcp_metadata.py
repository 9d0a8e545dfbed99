"""`.metadata` of torch.distributed.checkpoint (also Megatron-Core's torch_dist): which file holds which item.

Source of facts: measured on torch 2.13 and Megatron-Core 0.16: `storage_data` maps an index to
(relative_path, offset, length), and the greatest offset + length of a file is its exact size. It is a bare pickle;
`pickle_child.py` reads it in a process of its own.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckptsync.formats.base import Format, Inspection, Record, Reference, Source
from ckptsync.formats.child import run_child
from ckptsync.formats.reading import Defect, exactly, failed, refuse_empty
from ckptsync.model.paths import check_relative

__all__ = ["METADATA_BYTES_MAX", "DcpMetadata"]

METADATA_BYTES_MAX = 256 * 1024 * 1024
_SLICE_BYTES = 1024 * 1024
_ANSWER_BYTES_MAX = 128 * 1024 * 1024
_TIMEOUT_S = 120
_MEMORY_BASE = 256 * 1024 * 1024
_MEMORY_PER_BYTE = 24
"""Reading takes about 11 bytes of memory for each byte of pickle: measured on metadata of 10,000 tensors."""
_INT_MAX = 2**63 - 1
_NAME = re.compile(r"(.*/)?(\.metadata|__\d+\.metadata)")


class DcpMetadata(Format):
    """`.metadata`, and `__<rank>.metadata` of saves without a coordinator."""

    name = "dcp_metadata"

    def claims(self, path: str, head: bytes) -> bool:  # noqa: ARG002 - an interface
        """By name."""
        return _NAME.fullmatch(path) is not None

    def inspect(self, path: str, source: Source) -> Inspection:
        """Problems: `empty`, `unreadable` (not such a pickle, or larger than `METADATA_BYTES_MAX`), `malformed`
        (items overlap), `reference` (a data file outside the directory).
        """
        try:
            files = _read(source)
            references = tuple(_reference(path, name, files[name]) for name in sorted(files))
        except Defect as defect:
            return failed(self.name, path, defect)
        return Inspection(self.name, (Record("pickle", 0, source.size),), references=references)


def _read(source: Source) -> dict[str, Any]:
    """Run the child on the whole file."""
    refuse_empty(source)
    if source.size > METADATA_BYTES_MAX:
        msg = f"has {source.size} bytes; the limit is {METADATA_BYTES_MAX}"
        raise Defect(msg, "unreadable")
    script = str(Path(__file__).with_name("pickle_child.py"))
    memory = _MEMORY_BASE + _MEMORY_PER_BYTE * source.size
    command = [sys.executable, "-I", "-S", script, str(memory), str(_TIMEOUT_S)]
    outcome = run_child(command, _slices(source), timeout_s=_TIMEOUT_S, output_max=_ANSWER_BYTES_MAX)
    try:
        answer = json.loads(outcome.output)
    except ValueError:
        why = outcome.stopped or f"the reading process ended with {outcome.code}"
        answer = {"error": why}
    if "files" not in answer:
        msg = f"cannot be read as DCP metadata: {answer['error']}"
        raise Defect(msg, "unreadable")
    files: dict[str, Any] = answer["files"]
    return files


def _slices(source: Source) -> Iterator[bytes]:
    for offset in range(0, source.size, _SLICE_BYTES):
        yield exactly(source, offset, min(_SLICE_BYTES, source.size - offset))


def _reference(path: str, name: str, items: list[list[int]]) -> Reference:
    """What `path` says of the data file `name`: distinct items, ascending."""
    try:
        target = check_relative(posixpath.join(posixpath.dirname(path), check_relative(name)))
    except ValueError as error:
        msg = f"names the data file {name!r:.120}, which {error}"
        raise Defect(msg, "reference") from None
    spans = sorted({(offset, length) for offset, length in items})
    at = 0
    for offset, length in spans:
        if offset < at or length < 0 or offset + length > _INT_MAX:
            msg = f"has items of {name!r:.120} that overlap or leave the file"
            raise Defect(msg)
        at = offset + length
    return Reference(target, at, tuple(spans))
