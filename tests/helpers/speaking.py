"""What trainers say to the control socket."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from ckptsync.integrations import verl

CALLBACK = Path(verl.__file__)
SAVED = {"format": 1, "saved": 20, "directories": ["/c/global_step_20"], "settled": True, "chosen": True}


def say(path, data):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(str(path))
        sender.send(data if isinstance(data, bytes) else json.dumps(data).encode())


def refused(path, data):
    """Whether the buffer is full."""
    try:
        say(path, data)
    except BlockingIOError:
        return True
    return False


def trainer(directory, step, path, *, environ=None):
    """A process of the trainer's, with nothing but the copied file."""
    code = f"import sys; sys.path.insert(0, {str(CALLBACK.parent)!r}); import verl; "
    code += (
        f"verl.SaveCallback(config=None).on_save(trainer=None, global_step={step}, checkpoint_dir={str(directory)!r})"
    )
    named = {} if path is None else {"CKPTSYNC_SOCKET": str(path)}
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env={**named, **(environ or {})})
