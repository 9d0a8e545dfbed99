"""The value of a metric of a step: from the JSON files that trainers put into it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

from ckptsync.chunks.transfer import get_chunk
from ckptsync.disk.read import FileSource
from ckptsync.formats.json_text import parse_json
from ckptsync.formats.reading import Defect
from ckptsync.model.merge import Union
from ckptsync.model.step import Listing
from ckptsync.store import keys
from ckptsync.sync.remote import Remote

__all__ = ["METRIC_FILES", "metric_files", "metric_of_commit", "metric_of_listing", "value_in"]

METRIC_FILES = ("metrics.json", "metric.json", "eval_results.json", "all_results.json", "trainer_state.json")
"""Where a metric is looked up, in this order: our name, OpenRLHF's, and those of transformers' Trainer."""
_BYTES_MAX = 64 * 1024 * 1024


def metric_files(metric: str, paths: Iterable[str]) -> list[str]:
    """Those of a step's `paths` that may tell the metric; `FILE.json:FIELD` names one."""
    file, colon, _ = metric.rpartition(".json:")
    wanted: Sequence[str] = (f"{file}.json",) if colon else METRIC_FILES
    there = set(paths)
    return [path for path in wanted if path in there]


def value_in(data: bytes, metric: str, step: int) -> float | None:
    """The metric in one JSON file; None if it is not there, or is no finite number.

    A field of the document; "a/b" also one inside an object `a`; else the last entry of `log_history` (the Trainer's
    record of a whole run) that has it and is not from after `step`.
    """
    field = metric.rpartition(".json:")[2] or metric
    try:
        document = parse_json(data)
    except Defect:
        return None
    if not isinstance(document, dict):
        return None
    history = document.get("log_history")
    entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    past = [entry for entry in reversed(entries) if (_number(entry.get("step")) or 0) <= step]
    found = (_number(candidate) for candidate in (document.get(field), _nested(document, field)))
    recorded = (_number(entry.get(field)) for entry in past)
    return next((value for value in (*found, *recorded) if value is not None), None)


def _nested(document: object, field: str) -> object:
    for name in field.split("/"):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def metric_of_listing(listing: Listing, metric: str, step: int) -> float | None:
    """The metric from the files of a step directory; None if they do not tell it."""
    for path in metric_files(metric, listing.files):
        if listing.files[path].size > _BYTES_MAX:
            continue
        try:
            with FileSource(os.path.join(listing.path, path)) as source:
                value = value_in(source.read(0, min(source.size, _BYTES_MAX)), metric, step)
        except OSError:
            continue
        if value is not None:
            return value
    return None


def metric_of_commit(remote: Remote, union: Union, metric: str) -> float | None:
    """The metric from the files of a commit, which are fetched for it. Raises StoreError."""
    for path in metric_files(metric, union.files):
        part, entry = union.files[path]
        if entry.size > _BYTES_MAX:
            continue
        data = bytearray()
        for extent in entry.extents:
            ref = part.chunks[extent.chunk]
            raw = get_chunk(remote.store, keys.chunk_key(remote.run, ref.key), ref)
            data += raw[extent.offset : extent.offset + extent.length]
        value = value_in(bytes(data), metric, union.step)
        if value is not None:
            return value
    return None
