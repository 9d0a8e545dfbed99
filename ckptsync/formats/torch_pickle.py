"""What a torch file says besides its tensors' data: the object that `torch.save` was given, as plain values.

The pickle inside is read in a process of its own, where every class is a stub (`torch_pickle_child.py`); nothing of it
is executed, and torch is not needed.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

from ckptsync.formats.child import run_child

__all__ = ["Unreadable", "read_object"]

_PICKLE_BYTES_MAX = 64 * 1024 * 1024
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_TIMEOUT_S = 10
_MEMORY_BASE = 256 * 1024 * 1024
_MEMORY_PER_BYTE = 64
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"


class Unreadable(ValueError):
    """The file is no such thing, or is damaged, or is larger than what is read; the message says which."""


def read_object(path: str) -> object:
    """The object in a file of `torch.save` (zip format).

    Returns:
        None, booleans, numbers, text, lists (for tuples and sets, too) and dicts with text keys. Everything else is a
        dict: `{"class": "module.name", "args": [...], "state": ...}`, or `{"bytes": length}`. A tensor is of the class
        `torch._utils._rebuild_tensor_v2`, and its third argument is the shape; its storage has the class `storage`.

    Raises:
        Unreadable: it cannot be read as one.
        OSError: from the file system.
    """
    pickle = _pickle(path)
    script = str(Path(__file__).with_name("torch_pickle_child.py"))
    memory = _MEMORY_BASE + _MEMORY_PER_BYTE * len(pickle)
    command = [sys.executable, "-I", "-S", script, str(memory), str(_TIMEOUT_S)]
    outcome = run_child(command, [pickle], timeout_s=_TIMEOUT_S, output_max=_ANSWER_BYTES_MAX)
    try:
        answer = json.loads(outcome.output)
    except (ValueError, RecursionError):
        answer = {"error": outcome.stopped or f"the reading process ended with {outcome.code}"}
    if "object" not in answer:
        msg = f"cannot be read as a torch file: {answer['error']}"
        raise Unreadable(msg)
    found: object = answer["object"]
    return found


def _pickle(path: str) -> bytes:
    """The `data.pkl` of a zip; bounded, and checked against its CRC."""
    with open(path, "rb") as file:
        if file.read(len(_LEGACY_MAGIC)) == _LEGACY_MAGIC:
            msg = "is in torch's legacy format, which has no parts"
            raise Unreadable(msg)
        try:
            with zipfile.ZipFile(file) as archive:
                info = next((i for i in archive.infolist() if os.path.basename(i.filename) == "data.pkl"), None)
                if info is None or info.file_size > _PICKLE_BYTES_MAX:
                    msg = "holds no data.pkl" if info is None else f"holds a pickle of {info.file_size} bytes"
                    raise Unreadable(msg)
                return archive.read(info)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            msg = f"is no whole zip: {error}"
            raise Unreadable(msg) from None
