"""The saves on this disk that are whole by themselves: what a node alone can resume from without the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ckptsync.app import Node
from ckptsync.daemon.retention_plan import commit_of, digests_of
from ckptsync.disk.saves import Save
from ckptsync.model.manifest import PartId
from ckptsync.model.merge import Union
from ckptsync.model.step import Listing, LocalState
from ckptsync.sync.choose import local_unions
from ckptsync.sync.local import StepView
from ckptsync.sync.metrics import metric_of_listing
from ckptsync.sync.notes import Said, Waiting, identity
from ckptsync.sync.pull import SCOPE_MARK

__all__ = ["WholeHere", "value_here", "whole_here"]


@dataclass(frozen=True, slots=True)
class WholeHere:
    """The whole saves of this disk.

    Attributes:
        node: whose disk it is.
        metric: that is asked for; "" = none.
        unions: the saves, in store time.
    """

    node: Node
    metric: str
    unions: tuple[Union, ...] = ()
    _held: Mapping[PartId, tuple[Save, Listing]] = field(default_factory=dict)

    def value_of(self, union: Union, said: Said) -> float | None:
        """The metric of one of them: its tag, here or in the store, else what its files tell; None = neither does."""
        save, listing = self._held[next(iter(union.parts))]
        tag = said.tag_of(self.metric, digests_of(self.node, save, commit_of(self.node, save)))
        return tag if tag is not None else value_here(self.node, save, listing, self.metric)

    def commit_of(self, union: Union) -> str:
        """The digest of the commit that one of them is in, as far as this node knows; "" = none."""
        save, _ = self._held[next(iter(union.parts))]
        return commit_of(self.node, save)


def whole_here(node: Node, views: Iterable[StepView], offset_ns: int, metric: str = "") -> WholeHere:
    """Find them; what was restored in part is none.

    Args:
        node: this node.
        views: of its steps.
        offset_ns: store time minus this node's.
        metric: that will be asked for.
    """
    if node.local is None or node.layout is None:
        return WholeHere(node, metric)
    verified = [view for view in views if view.state is LocalState.VERIFIED]
    held = {view.save.part.id: (view.save, view.listing) for view in verified if view.save is not None}
    saves = [save for save in node.local.known if node.saves.mark_of(save, SCOPE_MARK) is None]
    listings = {view.step: view.listing for view in verified}
    unions = local_unions(saves, listings, node.layout, window_ns=node.window_ns, offset_ns=offset_ns)
    return WholeHere(node, metric, tuple(union for union in unions if next(iter(union.parts), None) in held), held)


def value_here(node: Node, save: Save, listing: Listing, metric: str) -> float | None:
    """The metric of a verified save: what was said of it here and waits for its commit, else what its files tell.

    Args:
        node: this node.
        save: the save.
        listing: its directory, unchanged since.
        metric: a name; "" = none.

    Returns:
        None if nothing here tells it.
    """
    if not metric:
        return None
    note = Waiting(node.config.state_dir).get(identity(save.part))
    if note is not None and metric in note.tags:
        return note.tags[metric]
    return metric_of_listing(listing, metric, save.part.step)
