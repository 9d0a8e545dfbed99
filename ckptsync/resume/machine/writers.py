"""Whether a directory may still be written once the trainer and all that it started have ended."""

from __future__ import annotations

from ckptsync.disk.watch import file_system_type
from ckptsync.resume.machine.processes import look

__all__ = ["others_may_write"]

_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay"))
"""File systems of one machine; all others may be written by several."""


def others_may_write(path: str) -> bool:
    """By other machines, or by the workers of a Ray that is not the trainer's own: they end some time after it.

    Args:
        path: a directory.
    """
    return file_system_type(path) not in _LOCAL or any(each.kind in {"ray", "actor"} for each in look().values())
