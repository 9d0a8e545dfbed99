"""The values of one metric over the saves of a run: what people said of them, else what their JSON files tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
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
    """One metric, as the store knows it.

    Args:
        metric: its name; "" = none is asked for, and nothing is read.

    Attributes:
        said: the tags of that name, as of the last `refresh`.
    """

    metric: str = ""
    said: Said = field(default_factory=Said)
    _files: dict[str, float | None] = field(default_factory=dict)

    def refresh(self, remote: Remote) -> Values:
        """Look at the tags again, by one list. Returns itself. Raises StoreError."""
        with contextlib.suppress(ValueError):  # too long for a tag: only files can have it
            if self.metric:
                keys.quote_name(self.metric)
                self.said = read_said(remote, {self.metric}, pins=())
        return self

    def tagged(self, digests: Iterable[str]) -> float | None:
        """The tag of a save that the store knows by these digests; None = it has none."""
        return self.said.tag_of(self.metric, digests)

    def of_commit(self, remote: Remote, union: Union, digest: str) -> float | None:
        """The value of a commit: its tag, else its files, which are fetched once; None = neither tells.

        Raises:
            KeyMissing, CorruptObject: the file that could tell is damaged in the store.
            StoreError.
        """
        tag = self.tagged(_digests(union, digest))
        if tag is not None or not self.metric:
            return tag
        if digest not in self._files:
            self._files[digest] = metric_of_commit(remote, union, self.metric)
        return self._files[digest]

    def of_save(self, remote: Remote, union: Union, index: StepIndex, offered: Mapping[PartId, float]) -> float | None:
        """The value of a save that is not committed yet: its tag, what its holders say, else its files in the store.

        Raises StoreError.
        """
        tag = self.tagged(_digests(union, union.commit.digest))
        if tag is not None or not self.metric:
            return tag
        said = next((offered[part] for part in union.parts if part in offered), None)
        if said is not None:
            return said
        there = {path: found for path, found in union.files.items() if found[0].id in index.ready}
        try:
            return metric_of_commit(remote, replace(union, files=there), self.metric)
        except (KeyMissing, CorruptObject):
            return None


def _digests(union: Union, commit: str) -> list[str]:
    return [commit, *(part.digest for part in union.parts)]
