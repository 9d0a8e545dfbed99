"""Being woken early when output_dir changes. A hint, never the truth: scans find everything by themselves."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

__all__ = ["Waker", "file_system_type"]

# these send no events for what other machines (or the server) write
_SILENT = re.compile(r"nfs4?|cifs|smb3?|lustre|gpfs|ceph|beegfs|glusterfs|9p|afs|virtiofs|fuse(\..*)?|wekafs|pvfs2")
_JOIN_SECONDS = 5.0


class Waker:
    """Sleeps until something in a directory tree changes, somebody calls `wake`, or the time is up.

    Args:
        path: the directory to watch.

    Attributes:
        hint: why changes do not wake us here (scans still see them), for the log; None = they do.
    """

    def __init__(self, path: str) -> None:
        self.hint: str | None = None
        self._event = threading.Event()
        self._observer: BaseObserver | None = None
        kind = file_system_type(path)
        if _SILENT.fullmatch(kind):
            self.hint = f"{path} is on {kind}, which reports no changes: they are found by scanning"
        else:
            self._start(path)

    def wait(self, timeout_s: float) -> bool:
        """Sleep at most `timeout_s` seconds. True = something woke us."""
        woken = self._event.wait(timeout_s)
        self._event.clear()
        return woken

    def wake(self) -> None:
        """End the present (or next) `wait`. Safe from any thread and from signal handlers."""
        self._event.set()

    def close(self) -> None:
        """Stop watching."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join(_JOIN_SECONDS)

    def _start(self, path: str) -> None:
        from watchdog import events  # noqa: PLC0415 - slow to load, and not needed by one-shot commands
        from watchdog.observers import Observer  # noqa: PLC0415 - as above

        wake = self.wake

        class _Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002 - which it was does not matter
                wake()

        # not opened, modified, closed-unwritten: our own reads and every write of a long save would wake us
        told = [
            events.FileCreatedEvent,
            events.FileClosedEvent,
            events.FileMovedEvent,
            events.FileDeletedEvent,
            events.DirCreatedEvent,
            events.DirMovedEvent,
            events.DirDeletedEvent,
        ]
        observer: BaseObserver | None = None
        try:
            observer = Observer()
            observer.schedule(_Handler(), path, recursive=True, event_filter=told)
            observer.start()
        except OSError as error:
            self.hint = f"cannot watch {path} ({os.strerror(error.errno or 0)}): changes are found by scanning"
            if observer is not None:
                observer.stop()
            return
        self._observer = observer


def file_system_type(path: str) -> str:
    """The type of the mount that holds `path`, as the kernel names it ("ext4", "nfs4"); "" if it does not say."""
    path = os.path.realpath(path)
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            fields = left.split()
            mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            below = (path + "/").startswith(mount.rstrip("/") + "/")
            if below and len(mount) >= len(best):  # of several mounts on one place the last is on top
                best, kind = mount, right.split()[0]
    return kind
