"""Deleting a step directory: one rename takes it out of everybody's sight, and its files go later, at idle priority.

Whatever a killed process leaves in the trash is removed by the next pass. Used under the run's lock, but for `empty`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from ckptsync.disk import durable, syscalls
from ckptsync.disk.durable import crash_point
from ckptsync.disk.faults import guarded
from ckptsync.disk.scan import list_step
from ckptsync.disk.space import given_back
from ckptsync.disk.stage import Staging
from ckptsync.errors import CheckpointError, CkptsyncError, StepChanged
from ckptsync.model.step import Listing

__all__ = ["Trash"]

_NICE = 19


class Trash:
    """The trash of one output_dir.

    Args:
        staging: the directory beside output_dir that holds it.
        output_dir: where step directories are taken from.
    """

    def __init__(self, staging: Staging, output_dir: str) -> None:
        self._staging, self._output_dir = staging, os.path.abspath(output_dir)
        self._worker: threading.Thread | None = None
        self._fault: CkptsyncError | None = None

    def take(self, listing: Listing, *, ignored: Callable[[str], bool]) -> None:
        """Move a step directory into the trash if it is still exactly what was listed.

        It is looked at once more after the rename: a trainer that wrote into it at that moment gets it back.

        Args:
            listing: what was judged.
            ignored: see `list_step`; the same as when it was listed.

        Raises:
            StepChanged: it is gone, or is not what was listed; whatever is in it stays.
            NoSpaceError, ConfigError, CkptsyncError: as the disk says; it stays where it is.
        """
        if os.path.dirname(listing.path) != self._output_dir or os.path.islink(listing.path):
            raise _changed(listing, "it is no directory of output_dir")
        now = _listed(listing, listing.path, ignored)
        if now is None or now.dirs.keys() != listing.dirs.keys() or not now.unchanged_since(listing):
            raise _changed(listing, "it is not what was judged")
        target = self._staging.new_trash(listing.name)
        crash_point("trash.before-rename")
        try:
            durable.move_dir(listing.path, target)
        except FileNotFoundError as error:
            raise _changed(listing, "it is gone") from error
        crash_point("trash.after-rename")
        moved = _listed(listing, target, ignored)
        # less than before is a trainer that deletes it, too
        if moved is not None and not _within(moved, listing):
            self._give_back(listing, target)
            raise _changed(listing, "it was written to just now")

    def _give_back(self, listing: Listing, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the trainer deleted it while it was here
            try:
                durable.move_dir(target, listing.path)
            except CkptsyncError:
                # a new directory stands there: both are the trainer's, and neither is deleted
                durable.move_dir(target, self._staging.superseded_path(listing.name, "changed"))

    @property
    def returning(self) -> int:
        """Bytes that come back once the trash is empty."""
        return given_back(self._staging.trashed())

    @property
    def busy(self) -> bool:
        """Whether something is being deleted."""
        return self._worker is not None and self._worker.is_alive()

    def empty(self) -> None:
        """Delete everything in the trash, at idle priority. Raises as `durable.remove_tree`."""
        syscalls.idle_io()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        for path in self._staging.trashed():
            crash_point("trash.before-delete")
            durable.remove_tree(path, within=self._staging.root)

    def empty_beside(self) -> None:
        """`empty` in a thread of its own; nothing while one is at it. What failed is raised by the next call."""
        if self.busy:
            return
        fault, self._fault = self._fault, None
        if self._staging.trashed():
            self._worker = threading.Thread(target=self._empty_quietly, name="trash", daemon=True)
            self._worker.start()
        if fault is not None:
            raise fault

    def wait(self) -> None:
        """Until the thread of `empty_beside` has ended. Raises what failed in it."""
        if self._worker is not None:
            self._worker.join()
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _empty_quietly(self) -> None:
        try:
            with guarded("cannot delete", self._staging.root):
                self.empty()
        except (CkptsyncError, OSError) as error:
            self._fault = error if isinstance(error, CkptsyncError) else CkptsyncError("cannot delete", why=str(error))


def _listed(listing: Listing, path: str, ignored: Callable[[str], bool]) -> Listing | None:
    """The step at `path` now; None if it is gone. Raises StepChanged if it cannot be told."""
    try:
        return list_step(path, ignored=ignored)
    except StepChanged:
        return None
    except CheckpointError as error:
        raise _changed(listing, error.why) from error


def _within(now: Listing, judged: Listing) -> bool:
    """Whether nothing is in `now` that was not judged."""
    return (
        now.dirs.keys() <= judged.dirs.keys()
        and now.links.items() <= judged.links.items()
        and all(path in judged.files and found.unchanged_since(judged.files[path]) for path, found in now.files.items())
    )


def _changed(listing: Listing, why: str) -> StepChanged:
    return StepChanged("the step is not deleted", where=listing.path, why=why)
