"""The values of one metric over the saves of a run: what people said of them, else what their JSON files tell."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ckptsync.errors import CorruptObject, KeyMissing
from ckptsync.model.manifest import PartId
from ckptsync.model.merge import Union
from ckptsync.store import keys
from ckptsync.sync.metrics import metric_of_commit
from ckptsync.sync.notes import Said, read_said
from ckptsync.sync.remote import Remote, StepIndex

__all__ = ["Values"]


@dataclass
class Values:
    """One metric: by tags in the store, by what nodes say of the parts that they hold, by the files of a step.

    Args:
        metric: its name; "" = none is asked for, and nothing is read.

    Attributes:
        said: the tags of that name, as of the last `refresh`.
        offered: what nodes say: tags that wait on their disks, and files that are not in the store yet.
    """

    metric: str = ""
    said: Said = field(default_factory=Said)
    offered: Mapping[PartId, float] = field(default_factory=dict)
    _files: dict[str, float | None] = field(default_factory=dict)

    def refresh(self, remote: Remote, offered: Mapping[PartId, float] | None = None) -> Values:
        """Look at the tags again, by one list. Returns itself. Raises StoreError."""
        self.offered = offered or {}
        with contextlib.suppress(ValueError):  # too long for a tag: only files can have it
            if self.metric:
                keys.quote_name(self.metric)
                self.said = read_said(remote, {self.metric}, pins=())
        return self

    def of_commit(self, remote: Remote, union: Union, digest: str) -> float | None:
        """The value of a commit; None = nobody and nothing tells it. Its files are fetched once.

        Raises:
            KeyMissing, CorruptObject: the file that could tell is damaged in the store.
            StoreError.
        """
        said = self._said_of(union, digest)
        if said is not None or not self.metric:
            return said
        if digest not in self._files:
            self._files[digest] = metric_of_commit(remote, union, self.metric)
        return self._files[digest]

    def of_save(self, remote: Remote, union: Union, index: StepIndex) -> float | None:
        """The value of a save that is not committed yet, of whose files only some may be in the store.

        Raises StoreError.
        """
        said = self._said_of(union, union.commit.digest)
        if said is not None or not self.metric:
            return said
        there = {path: found for path, found in union.files.items() if found[0].id in index.ready}
        try:
            return metric_of_commit(remote, replace(union, files=there), self.metric)
        except (KeyMissing, CorruptObject):
            return None

    def _said_of(self, union: Union, commit: str) -> float | None:
        tag = self.said.tag_of(self.metric, [commit, *(part.digest for part in union.parts)])
        return tag if tag is not None else next((self.offered[p] for p in union.parts if p in self.offered), None)
