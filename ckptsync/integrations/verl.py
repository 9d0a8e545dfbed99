"""Tells ckptsync's daemon at once that a step is complete. One file: copy it to the trainer, or install ckptsync there.

verl 0.9.1 and later, V1 trainer (`verl/trainer/ppo/checkpoint_callback.py`): `trainer.checkpoint_callback_class` is a
dotted import path, so the file must lie in a directory of PYTHONPATH on the node where the driver runs:

    cp ckptsync/integrations/verl.py /workspace/ckptsync_callback.py
    export PYTHONPATH=/workspace
    python -m verl.trainer.main_ppo ... trainer.checkpoint_callback_class=ckptsync_callback.SaveCallback

The daemon's socket is `$CKPTSYNC_SOCKET`, under the name that it has here (in the container). Without the variable,
every `/run/ckptsync/<run>/control.sock` is told, and only the daemon of this directory listens. Any other trainer may
call `tell` after a save.

What is told is a hint: the daemon finds every step without it, only later. So nothing here ever raises or waits.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Any

__all__ = ["SaveCallback", "tell"]

VARIABLE = "CKPTSYNC_SOCKET"
DEFAULT_ROOT = "/run/ckptsync"
NAME = "control.sock"
_MESSAGE_BYTES_MAX = 8192  # as in the daemon
_ADDRESS_BYTES_MAX = 107  # sun_path of unix(7), without its end
_SOCKETS_MAX = 64
_WAIT_S = 0.2
_telling = threading.Lock()  # one at a time: where a dead network file system holds one up, the next are left out


class SaveCallback:
    """A checkpoint callback of verl. It needs no base class: verl calls what it was given (0.9.1)."""

    def __init__(self, config: object = None, *_: object, **__: object) -> None:
        self.config = config

    def on_save(
        self,
        trainer: object = None,  # noqa: ARG002 - verl's signature, by keyword
        global_step: Any = None,
        checkpoint_dir: Any = None,
        async_save: Any = False,
        *_: object,
        **__: object,
    ) -> None:
        """Called by verl's driver when a save has returned; what it raised would end the training."""
        tell(global_step, checkpoint_dir, async_save=async_save)


def tell(step: Any, directory: Any, *, async_save: Any = False) -> None:
    """Say that the trainer has written a step. Never raises; back after 0.2 s at the latest.

    Args:
        step: its number.
        directory: of the step, as this process sees it.
        async_save: files may still be written: the daemon only looks.
    """
    try:
        if not _telling.acquire(blocking=False):
            return
        try:
            sender = threading.Thread(target=_tell_all, args=(step, directory, async_save), daemon=True)
            sender.start()
        except Exception:
            _telling.release()
            raise
        sender.join(_WAIT_S)
    except Exception:  # noqa: BLE001, S110 - a hint that got lost must not cost a training step
        pass


def _tell_all(step: Any, directory: Any, async_save: Any) -> None:
    """In a thread of its own: any look at a file system may hang."""
    try:
        chosen = os.environ.get(VARIABLE, "")
        place = os.path.abspath(os.fsdecode(directory))
        message = {
            "format": 1,
            "saved": int(step),
            "directories": sorted({place, os.path.realpath(place)}),
            "settled": not async_save,
            "chosen": bool(chosen),
        }
        data = json.dumps(message).encode("ascii")
        if len(data) <= _MESSAGE_BYTES_MAX:
            for path in [chosen] if chosen else _found():
                _send(path, data)
    except Exception:  # noqa: BLE001, S110 - as above; in a thread it would be printed into the training's log
        pass
    finally:
        _telling.release()


def _found() -> list[str]:
    try:
        return [os.path.join(DEFAULT_ROOT, run, NAME) for run in sorted(os.listdir(DEFAULT_ROOT))[:_SOCKETS_MAX]]
    except OSError:
        return []


def _send(path: str, data: bytes) -> None:
    """One datagram, or nothing: nobody there, no right to write, a full buffer."""
    folder = None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            if len(os.fsencode(path)) > _ADDRESS_BYTES_MAX:  # a name for it that is short enough
                folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                path = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
            sender.connect(path)
            sender.send(data)
    except OSError:
        pass
    finally:
        if folder is not None:
            os.close(folder)
