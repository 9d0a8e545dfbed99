"""TCP ports of this machine: which are free, and who holds one."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

__all__ = ["PortHolder", "holder", "is_free", "next_free"]

_PORT_MAX = 65535
_TRIED_MAX = 100
_FAMILIES = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))  # noqa: S104 - tried, and closed at once


@dataclass(frozen=True, slots=True)
class PortHolder:
    """Who holds a port.

    Attributes:
        pid: the process; None = another user's, which we may not look into.
        address: where the port is held.
    """

    pid: int | None
    address: str


def is_free(port: int) -> bool:
    """Whether somebody could listen on the port now, on every address. Where that is not allowed: nobody listens."""
    return all(_can_bind(port, family, address) for family, address in _FAMILIES)


def _can_bind(port: int, family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an ended connection holds nothing
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
    except PermissionError:
        return holder(port) is None
    except OSError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return True  # a machine without this family
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def holder(port: int) -> PortHolder | None:
    """Who holds it, a listener before others; None = nobody that can be seen."""
    import psutil  # noqa: PLC0415 - only a preflight needs it

    found = []
    for each in psutil.net_connections(kind="tcp"):
        if getattr(each.laddr, "port", None) == port and each.status != psutil.CONN_TIME_WAIT:
            rank = (each.status != psutil.CONN_LISTEN, each.pid is None, each.pid or 0)
            found.append((rank, PortHolder(each.pid, getattr(each.laddr, "ip", ""))))
    return min(found, key=lambda item: item[0], default=(None, None))[1]


def next_free(port: int, taken: frozenset[int]) -> int | None:
    """The first port above `port` that is free and not in `taken`; None = none of the next hundred."""
    for other in range(port + 1, min(port + _TRIED_MAX, _PORT_MAX) + 1):
        if other not in taken and is_free(other):
            return other
    return None
