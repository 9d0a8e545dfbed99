"""From `[peer]` to an exchange. aiohttp is imported only where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptsync.config import Config
from ckptsync.errors import ConfigError
from ckptsync.peers.auth import read_secret

if TYPE_CHECKING:
    from ckptsync.peers.exchange import Exchange

__all__ = ["open_exchange"]


def open_exchange(config: Config, *, give: bool, spare_ports: int = 0) -> Exchange | None:
    """Where chunks are given to other nodes and taken from them, yet to be entered; None = nowhere.

    Args:
        config: [peer], and the run's name.
        give: listen, if `[peer] listen` is set.
        spare_ports: see `Exchange`.

    Raises:
        ConfigError: the secret cannot be used, or aiohttp is not installed.
    """
    peer = config.peer
    listen = (peer.listen or "") if give else ""
    if peer.secret_file is None or not (listen or peer.daemons):
        return None
    try:
        from ckptsync.peers.exchange import Exchange  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise ConfigError(
            "[peer] needs a package that is not installed",
            where=error.name or "aiohttp",
            remedy="pip install 'ckptsync[peers]', or remove [peer]",
        ) from None
    secret = read_secret(peer.secret_file)
    return Exchange(secret, config.run.name, listen, spare_ports=spare_ports, daemons=peer.daemons)
