"""The daemon's side of `[peer]`: what lies verified on this disk is given to nodes that pull."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptsync.app import Node
from ckptsync.errors import ConfigError
from ckptsync.peers.opening import open_exchange
from ckptsync.sync.local import StepView
from ckptsync.sync.pull import local_content

if TYPE_CHECKING:
    from ckptsync.peers.exchange import Exchange

__all__ = ["Giving"]

_log = logging.getLogger("ckptsync")


class Giving:
    """Nothing without `[peer] listen`. A port that is taken (by a pull, for a while) is tried again at each `show`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._exchange: Exchange | None = None
        self._shown: frozenset[tuple[str, str]] | None = None
        self._told = ""

    def show(self, views: Iterable[StepView]) -> None:
        """Give the steps that a pass has found verified, and no others."""
        if self._node.config.peer.listen is None or not self._open():
            return
        saves = {view.name: view.save for view in views if view.save is not None}
        shown = frozenset((name, save.name) for name, save in saves.items())
        if shown != self._shown and self._exchange is not None:
            self._shown = shown
            listings = {view.name: view.listing for view in views}
            found = local_content(saves.values(), listings, self._node.output_dir)
            self._exchange.holdings.verified({digest: ("/", pieces) for digest, pieces in found.chunks.items()})

    def close(self) -> None:
        """Give nothing any more."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _open(self) -> bool:
        if self._exchange is not None:
            return True
        exchange = open_exchange(self._node.config, give=True)
        try:
            if exchange is not None:
                exchange.__enter__()
                exchange.serve()
        except ConfigError as error:
            if str(error) != self._told:
                _log.warning("%s", error)
            self._told = str(error)
            return False
        self._exchange = exchange
        if exchange is not None:
            _log.info("giving chunks to other nodes at %s", exchange.address)
        return exchange is not None
