"""Inside one file, never executing it.

`inspect` looks at a file by its path and first bytes; `inspect_items` at one whose inner structure another file tells.
Neither imports torch or numpy. Level `deep` is in `deep.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptsync.formats.base import Format, Inspection, Source
from ckptsync.formats.dcp_metadata import DcpMetadata
from ckptsync.formats.distcp import Distcp
from ckptsync.formats.distcp import inspect_items as _inspect_distcp_items
from ckptsync.formats.json_file import JsonFile
from ckptsync.formats.safetensors import Safetensors, WeightIndex
from ckptsync.formats.torch_zip import TorchZip

__all__ = ["FORMATS", "inspect", "inspect_items"]

FORMATS: tuple[Format, ...] = (DcpMetadata(), Distcp(), WeightIndex(), JsonFile(), Safetensors(), TorchZip())
"""In order of precedence: what a name says goes before what the first bytes say."""

_HEAD_BYTES = 16


def inspect(path: str, source: Source) -> Inspection:
    """Look at the structure of the file at `path` (relative to its step), by the first format that claims it.

    Every defect is a problem of the inspection.

    Raises:
        OSError: from the source; or a reading process cannot be started.
    """
    head = source.read(0, _HEAD_BYTES)
    for known in FORMATS:
        if known.claims(path, head):
            return known.inspect(path, source)
    return Inspection("opaque")


def inspect_items(path: str, source: Source, items: Sequence[tuple[int, int]]) -> Inspection:
    """As `inspect`, for a file whose items another file lists (`Reference.items`); without items, as `inspect`.

    Raises:
        OSError: from the source.
    """
    if not items:
        return inspect(path, source)
    return _inspect_distcp_items(path, source, items)
