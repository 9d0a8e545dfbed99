"""`scrub`: this node's verified steps against their digests, and the store's chunks against theirs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ckptsync.app import Node
from ckptsync.daemon.collector import scrub_by_node
from ckptsync.errors import UsageError
from ckptsync.sync.restore import digest_of_file
from ckptsync.sync.scrub import Scrubbed

__all__ = ["LocalScrub", "parse_share", "scrub_here", "scrub_store"]

_WHOLE = 100.0


@dataclass(slots=True)
class LocalScrub:
    """Files and bytes that were read, and those that are not what was verified, though nobody has written them."""

    files: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)


def parse_share(text: str) -> float:
    """The share (0 to 1) in "5%". Raises UsageError."""
    try:
        share = float(text.removesuffix("%")) / _WHOLE
    except ValueError:
        share = -1.0
    if not text.endswith("%") or not 0 < share <= 1:
        raise UsageError("bad --sample", where=text, remedy='write it like "5%"')
    return share


def scrub_here(node: Node) -> LocalScrub:
    """Read every file of this node's verified steps again that has not moved since. Raises ConfigError."""
    found, local = LocalScrub(), node.recognise()
    if local is None:
        return found
    for save in node.saves.load():
        root = os.path.join(node.output_dir, save.part.name)
        for entry in save.part.files:
            path = os.path.join(root, entry.path)
            if not _unmoved(path, save.stats[entry.path].mtime_ns, entry.size):
                continue  # written again, or gone: the daemon looks after that
            found.files += 1
            found.bytes += entry.size
            if not _is(path, entry.digest) and _unmoved(path, save.stats[entry.path].mtime_ns, entry.size):
                found.damaged.append(f"{path}: its bytes are not the verified ones, and nobody has written it")
    return found


def scrub_store(node: Node, share: float) -> Scrubbed:
    """Scrub a share of what the store holds. Raises StoreError."""
    node.recognise()
    return scrub_by_node(node, sample=share)


def _is(path: str, digest: str) -> bool:
    try:
        return digest_of_file(path) == digest
    except OSError:
        return False  # gone meanwhile, or the disk cannot read it


def _unmoved(path: str, mtime_ns: int, size: int) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_mtime_ns, found.st_size) == (mtime_ns, size)
