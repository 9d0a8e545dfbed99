"""From `[peer]` to an exchange. aiohttp is imported only where it is asked for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ckptsync.config import Config
from ckptsync.errors import ConfigError
from ckptsync.peers.auth import Secret, read_secret

if TYPE_CHECKING:
    from ckptsync.peers.exchange import Exchange

__all__ = ["check_peers", "open_exchange"]


def open_exchange(config: Config, *, give: bool, spare_ports: int = 0) -> Exchange | None:
    """Where chunks are given to other nodes and taken from them, yet to be entered; None = nowhere.

    Args:
        config: [peer], and the run's name.
        give: listen, if `[peer] listen` is set.
        spare_ports: see `Exchange`; with any, a node that cannot listen only takes.

    Raises:
        ConfigError: the secret cannot be used, or aiohttp is not installed.
    """
    peer = config.peer
    listen = (peer.listen or "") if give else ""
    if peer.secret_file is None or not (listen or peer.daemons):
        return None
    secret = check_peers(config)
    from ckptsync.peers.exchange import Exchange  # noqa: PLC0415 - see above

    return Exchange(
        secret, config.run.name, listen, spare_ports=spare_ports, needed=not spare_ports, daemons=peer.daemons
    )


def check_peers(config: Config) -> Secret:
    """Whether what [peer] needs is there. Raises ConfigError, as `open_exchange`."""
    if config.peer.secret_file is None:
        return Secret(b"")
    if find_spec("aiohttp") is None:
        what, remedy = "[peer] needs a package that is not installed", "pip install 'ckptsync[peers]', or remove [peer]"
        raise ConfigError(what, where="aiohttp", remedy=remedy)
    return read_secret(config.peer.secret_file)
