"""One node's part in the giving and taking of chunks: a server and a client in a thread of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from ckptsync.errors import ConfigError
from ckptsync.model.manifest import ChunkRef
from ckptsync.peers.auth import Secret, Verifier
from ckptsync.peers.client import PeerClient
from ckptsync.peers.holdings import Holdings
from ckptsync.peers.limits import Limits
from ckptsync.peers.server import PeerServer

__all__ = ["Exchange", "split_address"]

T = TypeVar("T")
_log = logging.getLogger("ckptsync")
_READERS = 4
_POLL_S = 0.25
_LAST_TURNS = 4  # of the loop: a connection that was just let in is made in one, cut off in the next, closed after that
_END_S = 5.0
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - to be told apart, not to be bound
_NOWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}  # RFC 5737 and 3849: documentation


class _PortTaken(ConfigError):
    """Another process listens there: the daemon, or another run's pull."""


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of a checked `host:port`, an IPv6 host without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Exchange:
    """A context manager: it gives what `holdings` has for as long as it is open.

    Args:
        secret: shared by all nodes.
        run: the run's name.
        listen: `host:port` to listen at; "" = only take.
        spare_ports: how many ports above that to try while another process (the daemon) has it.
        needed: False = where it cannot listen, say so and only take.
        members: addresses of the nodes of this pull, as far as they are known.
        daemons: addresses of nodes that fetch nothing, and may have the step on their disks.
        limits: see there.
        clock: seconds that only go forward.

    Attributes:
        holdings: what this node gives.
        address: where others reach it; "" = it does not listen.
    """

    def __init__(
        self,
        secret: Secret,
        run: str,
        listen: str,
        *,
        spare_ports: int = 0,
        needed: bool = True,
        members: Iterable[str] = (),
        daemons: Iterable[str] = (),
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holdings = Holdings()
        self.address = ""
        self._secret, self._run, self._listen = secret, run, listen
        self._spare, self._needed = spare_ports, needed
        self._members, self._daemons = tuple(members), tuple(daemons)
        self._limits, self._clock = limits or Limits(), clock
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="peers")
        self._thread = threading.Thread(target=self._loop.run_forever, name="peers", daemon=True)
        self._server: PeerServer | None = None
        self._client: PeerClient | None = None

    def __enter__(self) -> Exchange:  # noqa: PYI034 - typing.Self is not in Python 3.10
        """Raises ConfigError: the address cannot be listened at, and it is needed."""
        self._thread.start()
        try:
            self._call(self._open(), _END_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- taking

    def join(self, members: Iterable[str]) -> None:
        """Say which nodes take part, by their addresses; this one may be among them."""
        members = tuple(members)

        async def tell() -> None:
            self._taker.join(members, self._daemons)

        self._call(tell(), _END_S)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to take from."""
        return self._taker.alone

    def learn(self, wanted: Collection[str]) -> None:
        """Ask who has which of these chunks on their disks already. Waits for a bounded time, and raises nothing."""
        with contextlib.suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            self._call(self._taker.learn(frozenset(map(bytes.fromhex, wanted))), self._taker.pace.limit_s)

    def mine(self, digest: str) -> bool:
        """Whether this node is the one to fetch a chunk from the store."""
        return self._taker.mine(digest)

    def get(self, ref: ChunkRef) -> bytes | None:
        """A chunk from a peer, checked; None = take it from the store. Waits for a bounded time, and raises nothing."""
        future = asyncio.run_coroutine_threadsafe(self._taker.get(ref), self._loop)
        try:
            return future.result(2 * self._limits.asked * (self._taker.pace.limit_s + _END_S))
        except concurrent.futures.CancelledError:
            return None
        except concurrent.futures.TimeoutError:
            future.cancel()
            return None
        except Exception:  # noqa: BLE001 - a fault of ours in asking must not cost anybody a restore
            _log.exception("asking peers for a chunk failed")
            return None

    def fetched(self, took_s: float, size: int) -> None:
        """The store gave a chunk of `size` raw bytes: what peers are measured by."""
        self._taker.pace.fetched(took_s, size)

    # -- giving

    def linger(self, *, stop: Callable[[], bool] = lambda: False, say: Callable[[str], None] = lambda _: None) -> None:
        """This node has all it wants: go on giving until the others have, too, or nobody asks any more; bounded."""
        self.holdings.nothing_more()
        if self._server is None or not self._taker.others:
            return
        self._server.complete = True
        begun, told = self._loop.time(), False
        while not stop() and not self._is_over(begun):
            if not told:
                told = True
                say("the step is here; other nodes still take chunks from this one")
            time.sleep(_POLL_S)

    def serve(self) -> None:
        """Give without taking part in a pull, as a daemon does: nobody has to wait for this node."""
        self.holdings.nothing_more()
        if self._server is not None:
            self._server.complete = True

    def _is_over(self, begun: float) -> bool:
        assert self._server is not None, "asked by who gives"
        now, limits = self._loop.time(), self._limits
        if now - begun > limits.linger_s or now - max(begun, self._server.asked_at) > limits.linger_idle_s:
            return True
        try:
            return bool(self._call(self._taker.complete(), limits.silence_s + _END_S))
        except (concurrent.futures.TimeoutError, RuntimeError):
            return True

    @property
    def given(self) -> int:
        """Bytes of chunks that this node has sent."""
        return self._server.given if self._server is not None else 0

    # -- the thread

    @property
    def _taker(self) -> PeerClient:
        assert self._client is not None, "it is open"
        return self._client

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    async def _open(self) -> None:
        if self._listen:
            try:
                await self._listen_for_peers()
            except ConfigError as error:
                if self._needed:
                    raise
                _log.warning("this node gives no chunks to others: %s", error)
        self._client = PeerClient(self._secret, self._run, self.address, self._limits, self._pool, clock=self._clock)
        self._client.join(self._members, self._daemons)

    async def _listen_for_peers(self) -> None:
        server = PeerServer(self.holdings, Verifier(self._secret, self._run, self._clock), self._limits, self._pool)
        host, port = split_address(self._listen)
        self.address = _join(_reachable(host), await self._bind(server, host, port))
        self._server = server

    async def _bind(self, server: PeerServer, host: str, port: int) -> int:
        ports = range(port, port + self._spare + 1)
        for candidate in ports[:-1]:
            with contextlib.suppress(_PortTaken):
                return await self._listen_at(server, host, candidate)
        return await self._listen_at(server, host, ports[-1])

    async def _listen_at(self, server: PeerServer, host: str, port: int) -> int:
        try:
            return await server.start(host, port)
        except OSError as error:
            kind = _PortTaken if error.errno == errno.EADDRINUSE else ConfigError
            what, remedy = "cannot listen for peers", "correct [peer] listen: an address of this node, a free port"
            raise kind(what, where=self._listen, why=error.strerror or str(error), remedy=remedy) from None

    def close(self) -> None:
        """End all of it. Idempotent."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):
            self._call(self._close(), _END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self._loop.close()
        self.holdings.close()

    async def _close(self) -> None:
        self.holdings.nothing_more()
        if self._server is not None:
            await self._server.stop()
        if self._client is not None:
            await self._client.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)


def _reachable(host: str) -> str:
    """The address to announce: for a wildcard, that of the interface with the default route."""
    if host not in _WILDCARDS:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_NOWHERE[family], 9))  # sends nothing: it only picks a route
        return str(probe.getsockname()[0])
    return socket.gethostname()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
