"""The file formats behind the checkpoint generators: torch zips, safetensors and DCP metadata, without torch.

What is written here loads in torch (`weights_only=True`) and in safetensors, and has the same records, alignment,
CRCs and order of entries as theirs.
"""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = [
    "Pause",
    "Scribe",
    "dcp_item",
    "dcp_metadata",
    "pickled_dict",
    "pickled_int",
    "pickled_tensor",
    "pickled_text",
    "safetensors_bytes",
    "torch_archive",
    "torch_zip",
]

Pause = Callable[[str], None]
_ALIGN = 64
_LOCAL_HEADER = 30
_ITEM_BYTES = 1024
_META = "torch.distributed.checkpoint.metadata"


class Scribe:
    """Writes the files of one step directory, in the order of the calls, and calls `pause` after each.

    Like the trainers it writes straight to the final name, with `renamed` (and for safetensors) under a temporary one.
    """

    def __init__(self, root: Path, step: str, *, seed: str, n: int, real: bool, pause: Pause | None) -> None:
        self.root = Path(root)
        self.directory = self.root / step
        self.n = n
        self._seed, self._real, self._pause = seed, real, pause

    def noise(self, key: str, length: int) -> bytes:
        """Incompressible bytes that depend on seed, step and `key` only."""
        return random.Random(f"{self._seed}:{key}").randbytes(length)  # noqa: S311 - reproducible, no secret

    def base64(self, key: str, length: int) -> str:
        """`noise` as text."""
        return base64.b64encode(self.noise(key, length)).decode()

    def torch_bytes(self, stem: str, noise: bytes) -> bytes:
        """What `torch.save` writes for one float32 tensor, by torch itself if the scribe is a real one."""
        return _by_torch(noise) if self._real else torch_zip(stem, noise)

    def torch(self, path: str, length: int | None = None, *, key: str = "") -> None:
        """A torch file with `length` bytes of tensor data; `key` makes its bytes independent of step and seed."""
        length = self.n if length is None else length
        noise = random.Random(key).randbytes(length) if key else self.noise(path, length)  # noqa: S311 - as above
        self.raw(path, self.torch_bytes(Path(path).stem, noise))

    def saved(self, path: str, data: bytes) -> None:
        """A torch file whose content is at hand; written again by torch itself if the scribe is a real one."""
        self.raw(path, _again(data) if self._real else data)

    def safetensors(self, path: str, tensor: str) -> None:
        """A safetensors file with one tensor, under `.tmpXXXXXX` until it is whole."""
        data = safetensors_bytes(tensor, self.noise(path, self.n))
        temporary = str(Path(path).with_name(f".tmp{self.noise(path, 3).hex()}"))
        self._write(temporary, data)
        (self.directory / temporary).replace(self.directory / path)
        self._tell(path)

    def json(self, path: str, document: Mapping[str, object], *, renamed: bool = False) -> None:
        """A JSON file."""
        self.raw(path, json.dumps(document).encode(), renamed=renamed)

    def text(self, path: str, text: str) -> None:
        """A text file."""
        self.raw(path, text.encode())

    def raw(self, path: str, data: bytes, *, renamed: bool = False) -> None:
        """Any file; `renamed` = written as `<path>.tmp` first."""
        if not renamed:
            self._write(path, data)
            return
        self._write(f"{path}.tmp", data)
        (self.directory / f"{path}.tmp").replace(self.directory / path)
        self._tell(path)

    def beside(self, name: str, text: str) -> None:
        """A text file in `root` (the tracker), truncated and written in place."""
        (self.root / name).write_text(text)
        if self._pause:
            self._pause(name)

    def _write(self, path: str, data: bytes) -> None:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self._tell(path)

    def _tell(self, path: str) -> None:
        if self._pause:
            self._pause(f"{self.directory.name}/{path}")


def torch_zip(stem: str, noise: bytes) -> bytes:
    """A torch file ({"weight": float32 tensor}) around `noise`, cut to whole numbers; `stem` names the records."""
    count = len(noise) // 4
    weight = {"weight": pickled_tensor("FloatStorage", "0", count)}
    return torch_archive(stem, pickled_dict(weight), (noise[: 4 * count],))


def torch_archive(stem: str, value: bytes, storages: Sequence[bytes]) -> bytes:
    """What `torch.save` makes of a value (its pickle's opcodes) whose tensors lie in `storages`, by their number."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (
            ("data.pkl", b"\x80\x02" + value + b"."),
            (".format_version", b"1"),
            (".storage_alignment", b"64"),
            ("byteorder", b"little"),
            *((f"data/{key}", data) for key, data in enumerate(storages)),
            ("version", b"3\n"),
            (".data/serialization_id", b"0" * 40),
        ):
            info = zipfile.ZipInfo(f"{stem}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            info.extra = _padding(buffer.tell() + _LOCAL_HEADER + len(info.filename.encode()))
            archive.writestr(info, data)
    return buffer.getvalue()


def _padding(offset: int) -> bytes:
    """An extra field that moves the entry's data from `offset` + 4 to the next multiple of 64."""
    length = -(offset + 4) % _ALIGN
    return struct.pack("<2sH", b"FB", length) + b"Z" * length


def pickled_tensor(storage: str, key: str, count: int) -> bytes:
    """A tensor of `count` numbers that lie in the storage `key`, as torch pickles it (protocol 2)."""
    where = pickled_text("storage") + f"ctorch\n{storage}\n".encode() + pickled_text(key) + pickled_text("cpu")
    size = pickled_int(count)
    shape = b"K\x00" + size + b"\x85" + b"K\x01\x85" + b"\x89" + b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n((" + where + size + b"tQ" + shape + b"tR"


def _by_torch(noise: bytes) -> bytes:
    import torch  # noqa: PLC0415 - only real files need it

    buffer = io.BytesIO()
    numbers = torch.frombuffer(bytearray(noise[: len(noise) // 4 * 4]), dtype=torch.int32)
    torch.save({"weight": numbers.to(torch.float32)}, buffer)
    return buffer.getvalue()


def _again(data: bytes) -> bytes:
    import torch  # noqa: PLC0415 - as above

    buffer = io.BytesIO()
    torch.save(torch.load(io.BytesIO(data), weights_only=False), buffer)  # our own bytes, just made
    return buffer.getvalue()


def safetensors_bytes(tensor: str, noise: bytes) -> bytes:
    """A safetensors file with one U8 tensor."""
    header = {tensor: {"dtype": "U8", "shape": [len(noise)], "data_offsets": [0, len(noise)]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + noise


def dcp_item(scribe: Scribe, key: str) -> bytes:
    """One tensor inside a `.distcp` file: a whole torch file of its own."""
    return scribe.torch_bytes("archive", scribe.noise(key, min(scribe.n, _ITEM_BYTES)))


def dcp_metadata(files: Mapping[str, Sequence[tuple[str, int]]]) -> bytes:
    """DCP's `.metadata` for `files`: name -> its items as (tensor name, bytes), one after the other."""
    storage = []
    for file, items in files.items():
        offset = 0
        for name, length in items:
            index = _object(_META, "MetadataIndex", {"fqn": pickled_text(name), "offset": b"N", "index": b"N"})
            fields = {"relative_path": pickled_text(file), "offset": pickled_int(offset), "length": pickled_int(length)}
            info = _object("torch.distributed.checkpoint.filesystem", "_StorageInfo", fields)
            storage.append((index, info))
            offset += length
    fields = {"state_dict_metadata": b"}", "planner_data": b"N", "storage_data": _dict(storage), "storage_meta": b"N"}
    return b"\x80\x02" + _object(_META, "Metadata", fields) + b"."


def pickled_text(text: str) -> bytes:
    """A text's opcodes."""
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def pickled_int(number: int) -> bytes:
    """The opcodes of a number of 32 bits."""
    return b"J" + struct.pack("<i", number)


def pickled_dict(items: Mapping[str, bytes]) -> bytes:
    """The opcodes of a dict with text keys, whose values are opcodes already."""
    pairs = [(pickled_text(key), value) for key, value in items.items()]
    return b"}" + b"".join(pairs[0]) + b"s" if len(pairs) == 1 else _dict(pairs)


def _dict(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def _object(module: str, name: str, fields: Mapping[str, bytes]) -> bytes:
    state = _dict([(pickled_text(field), value) for field, value in fields.items()])
    return f"c{module}\n{name}\n".encode() + b")\x81" + state + b"b"
