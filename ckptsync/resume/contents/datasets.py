"""What a dataset is, told cheaply: rows and schema from the footers of parquet files, and a fingerprint of the content.

The fingerprint is the BLAKE3 of a file's size, its parquet footer (which holds the statistics of every column), and 16
pieces of 16 KiB, evenly spaced from its first to its last byte; of files in a store, whose bytes cost requests, of size
and footer alone. So it notices a file that was made anew, filtered, shuffled or cut; a change of a few bytes between
two pieces that leaves the footer alone, it does not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3

from ckptsync.app import Node
from ckptsync.resume.contents.datafiles import DataFile, Place, Unavailable, expand, open_file, place_of
from ckptsync.resume.contents.models import describe_model, model_path
from ckptsync.resume.settings import Settings

__all__ = ["TRAIN", "VAL", "describe", "describe_inputs", "files_of", "has_pyarrow"]

TRAIN, VAL = "data.train_files", "data.val_files"
"""verl 0.9.1, trainer/config/data/legacy_data.yaml: a path or a list; .parquet, .json or .jsonl; * is followed."""

_PIECES, _PIECE_BYTES = 16, 16 * 1024
_FOOTER_BYTES_MAX = 64 * 1024 * 1024
_MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")
_LINES_BYTES_MAX = 128 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024
_WORKERS = 8
_FILES_MAX = 2000


def files_of(settings: Settings, name: str) -> tuple[str, ...] | None:
    """The paths that a setting names, in its order; () = none; None = it is not known."""
    known = settings.get(name)
    if known is None:
        return None
    value = known.value
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(str(item) for item in items if item not in (None, ""))


def describe_inputs(settings: Settings, node: Node, cwd: str) -> dict[str, Mapping[str, object]]:
    """What a launch record keeps of the data and the model that a start uses: path -> what was found there.

    A file that cannot be looked at is in it with its error: it was there to be read, and nobody knows what was in it.
    """
    place = place_of(node, cwd)
    paths = [path for name in (TRAIN, VAL) for path in files_of(settings, name) or ()]
    found: dict[str, Mapping[str, object]] = {**describe(paths, place)}
    model = model_path(settings)
    if model is not None and (said := describe_model(place.here(model))):
        found[model] = said
    return found


def describe(paths: Iterable[str], place: Place | None = None) -> dict[str, dict[str, object]]:
    """Every file that `paths` mean, and what it holds.

    Returns:
        For each file `bytes`, `fingerprint`, and where they can be known `rows` and `schema` (a digest of the columns'
        names and types); or `error` (`missing`, `denied`, `damaged`, `unknown`) and `why`. Parquet files have `rows`
        and `schema` only where pyarrow is installed; .json and .jsonl have `rows` (their lines) up to 128 MiB on a
        local disk.
    """
    place = place or Place()
    names: dict[str, dict[str, object]] = {}
    for path in dict.fromkeys(paths):
        names.update(_expanded(path, place))
    todo = [name for name, said in names.items() if not said]
    for name in todo[_FILES_MAX:]:
        names[name] = {"error": "unknown", "why": f"more than {_FILES_MAX} files"}
    todo = todo[:_FILES_MAX]
    with ThreadPoolExecutor(_WORKERS) as pool:
        names.update(zip(todo, pool.map(lambda name: _describe(name, place), todo), strict=True))
    return names


def _expanded(path: str, place: Place) -> dict[str, dict[str, object]]:
    try:
        return {name: {} for name in expand(path, place)} or {path: {"error": "missing", "why": "nothing matches"}}
    except Unavailable as error:
        return {path: {"error": error.code, "why": str(error)}}


def has_pyarrow() -> bool:
    """Whether rows and schema of parquet files can be read."""
    import importlib.util  # noqa: PLC0415 - not needed where nothing is skipped

    return importlib.util.find_spec("pyarrow") is not None


def _describe(path: str, place: Place) -> dict[str, object]:
    try:
        with open_file(path, place) as file:
            parquet = path.endswith(".parquet")
            footer = _footer(file) if parquet else b""
            found: dict[str, object] = {"bytes": file.size, "fingerprint": _fingerprint(file, footer)}
            found.update(_columns(footer) if parquet else _lines(file))
            return found
    except Unavailable as error:
        return {"error": error.code, "why": str(error)}


def _footer(file: DataFile) -> bytes:
    """The metadata at a parquet file's end, with their length and magic (parquet-format, README, File format)."""
    tail = file.read(max(0, file.size - _TAIL.size), _TAIL.size)
    length, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    if magic != _MAGIC or not 0 < length <= min(file.size - _TAIL.size, _FOOTER_BYTES_MAX):
        msg = "it is no parquet file: its end is not a footer"
        raise Unavailable("damaged", msg)
    return file.read(file.size - _TAIL.size - length, length) + tail


def _columns(footer: bytes) -> dict[str, object]:
    """Rows and schema, by pyarrow, which is given nothing but the footer."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError:
        return {}
    try:
        metadata = parquet.read_metadata(pa.BufferReader(_MAGIC + footer))
        columns = [(field.name, str(field.type)) for field in metadata.schema.to_arrow_schema()]
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = f"its footer cannot be read: {str(error).partition(chr(10))[0]}"
        raise Unavailable("damaged", msg) from None
    return {"rows": metadata.num_rows, "schema": _digest(columns)}


def _digest(columns: list[tuple[str, str]]) -> str:
    return hashlib.sha256(repr(columns).encode()).hexdigest()[:16]


def _lines(file: DataFile) -> dict[str, object]:
    """Rows of a file with a JSON object on each line; {} for other JSON, and what is too large to count."""
    if not file.local or file.size > _LINES_BYTES_MAX or file.read(0, 1) != b"{":
        return {}
    rows, last = 0, b"\n"
    for block in _blocks(file):
        rows += block.count(b"\n")
        last = block[-1:]
    return {"rows": rows + (last != b"\n")}


def _blocks(file: DataFile) -> Iterator[bytes]:
    for offset in range(0, file.size, _BLOCK_BYTES):
        block = file.read(offset, _BLOCK_BYTES)
        if not block:
            return
        yield block


def _fingerprint(file: DataFile, footer: bytes) -> str:
    """See the module; the words before the colon say of what."""
    digest = blake3(str(file.size).encode())
    digest.update(footer)
    if not file.local:
        return f"size+footer:{digest.hexdigest(16)}" if footer else f"size:{digest.hexdigest(16)}"
    step = max(file.size - _PIECE_BYTES, 0) / (_PIECES - 1)
    for number in range(_PIECES):
        digest.update(file.read(int(number * step), _PIECE_BYTES))
    return f"size+footer+pieces:{digest.hexdigest(16)}" if footer else f"size+pieces:{digest.hexdigest(16)}"
