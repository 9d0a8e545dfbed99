"""Moving `latest`: a link that names a verified step, switched atomically, and only after the step is on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from ckptsync.disk import durable
from ckptsync.disk.durable import crash_point
from ckptsync.disk.scan import ensure_unchanged
from ckptsync.errors import CheckpointError, ConfigError
from ckptsync.model.step import Listing, Problem

__all__ = ["Pointer", "promote"]


class Pointer:
    """`latest`, as one node keeps it.

    Args:
        link_path: the link; relative where it lies in `output_dir`, absolute elsewhere.
        output_dir: the directory of the step directories.
        temp_dir: where the new link is made before it is renamed (staging's, or the state directory).
    """

    def __init__(self, link_path: str, output_dir: str, temp_dir: str) -> None:
        self.path = os.path.abspath(link_path)
        self._output_dir = os.path.abspath(output_dir)
        self._temp_dir = temp_dir

    def obstacle(self) -> Problem | None:
        """Why promotion is off: what stands in its place is no link (it is never replaced), or it has no directory."""
        try:
            self._read()
        except ConfigError as error:
            return Problem(os.path.basename(self.path), "not-a-link", str(error))
        return None

    def current(self) -> str | None:
        """The name of the step directory that `latest` says, whether or not it still exists.

        None if there is no link, or it leads anywhere else than into `output_dir`.

        Raises:
            ConfigError: it is not a link, cannot be read, or its directory does not exist.
        """
        target = self._read()
        if target is None:
            return None
        directory, name = os.path.split(os.path.normpath(os.path.join(os.path.dirname(self.path), target)))
        same = os.path.realpath(directory) == os.path.realpath(self._output_dir)
        return name if same and name else None

    def point_to(self, name: str) -> None:
        """Make `latest` name the step directory `name`, durably. Does not look into the step: see `promote`.

        Raises:
            CheckpointError: no such directory.
            ConfigError: `latest` is not a link, or access is refused.
            NoSpaceError, CkptsyncError: the disk says no; `latest` is then the old or the new link, never none.
        """
        self._require_step(name)
        durable.replace_link(self.path, self._target(name), self._temp_dir)

    def withdraw(self) -> None:
        """Take `latest` away, durably; absent is success. Raises ConfigError if it is not a link."""
        durable.remove_link(self.path)

    def repair(self) -> None:
        """Remove the temporary links of killed processes; the caller holds the run's lock."""
        for directory in (self._temp_dir, os.path.dirname(self.path)):
            durable.remove_leftovers(directory, prefix=f".{os.path.basename(self.path)}#")

    def _read(self) -> str | None:
        if not os.path.isdir(os.path.dirname(self.path)):
            what, why = "cannot use the link", "its directory does not exist"
            raise ConfigError(
                what, where=self.path, why=why, remedy="create it, or set another place in [promote] link"
            )
        return durable.read_link(self.path)

    def _target(self, name: str) -> str:
        here = os.path.realpath(os.path.dirname(self.path)) == os.path.realpath(self._output_dir)
        return name if here else os.path.join(self._output_dir, name)

    def _require_step(self, name: str) -> None:
        path = os.path.join(self._output_dir, name)
        try:
            found = "/" not in name and name not in ("", ".", "..") and stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            found = False
        if not found:
            what = "cannot promote what is not a step directory"
            raise CheckpointError(what, where=path)


def promote(listing: Listing, pointer: Pointer, *, beat: Callable[[], None] = lambda: None) -> None:
    """Make a verified step durable, then let `latest` name it. When this returns, both survive a power cut.

    Args:
        listing: the step as it was verified; it must still be just that.
        pointer: `latest`.
        beat: see `durable.fsync_tree`.

    Raises:
        StepChanged: the step moved since it was listed; `latest` stays.
        CheckpointError: the disk lost data of the step; `latest` stays.
        ConfigError, NoSpaceError, CkptsyncError: as `Pointer.point_to`.
    """
    crash_point("promote.before-fsync")
    durable.fsync_tree(listing.path, listing.files, listing.dirs, beat=beat)
    durable.fsync_dir(os.path.dirname(listing.path))
    crash_point("promote.before-check")
    ensure_unchanged(listing)
    crash_point("promote.before-link")
    pointer.point_to(listing.name)
    crash_point("promote.after-link")
