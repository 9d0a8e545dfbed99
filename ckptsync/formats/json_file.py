"""`*.json`: must parse. Lists of lines (`.jsonl`) are opaque."""

from __future__ import annotations

from ckptsync.formats.base import Format, Inspection, Record, Source
from ckptsync.formats.json_text import check_json
from ckptsync.formats.reading import Defect, all_of, failed

__all__ = ["JSON_BYTES_MAX", "JsonFile"]

JSON_BYTES_MAX = 64 * 1024 * 1024


class JsonFile(Format):
    """Configurations, tokenizers, trainer states."""

    name = "json"

    def claims(self, path: str, head: bytes) -> bool:  # noqa: ARG002 - an interface
        """By suffix."""
        return path.endswith(".json")

    def inspect(self, path: str, source: Source) -> Inspection:
        """Problems: `empty`, `malformed`. Longer than `JSON_BYTES_MAX`: opaque. One record, the whole file."""
        if source.size > JSON_BYTES_MAX:
            return Inspection("opaque")
        try:
            check_json(all_of(source))
        except Defect as defect:
            return failed(self.name, path, defect)
        return Inspection(self.name, (Record("text", 0, source.size),))
