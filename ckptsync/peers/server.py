"""Giving chunks to the other nodes: `GET /v1/chunks/<digest>`, and `GET /v1/chunks`: which ones lie here already.

`GET /v1/hello` needs no signature, since it is asked for in order to sign: it tells the server's random name, its age
in seconds, and whether this node still wants chunks itself. A chunk is answered with its raw bytes (200), "not yet"
(503), or "not here" (404). No part of a request ever becomes a path: a digest is looked up among those that this
node's verified saves and its running pull have, and what is read is sent only if it has that digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from aiohttp import web

from ckptsync.peers.auth import Refusal, Verifier
from ckptsync.peers.holdings import Holdings
from ckptsync.peers.limits import Limits

__all__ = ["CHUNKS", "HELLO", "PeerServer", "chunk_path"]

HELLO = "/v1/hello"
CHUNKS = "/v1/chunks"
_CHUNK = re.compile(r"/v1/chunks/([0-9a-f]{64})", re.ASCII)
_SLICE_BYTES = 1024 * 1024
_HEADER_BYTES_MAX = 1024
_HEADERS_MAX = 16
_quiet = logging.getLogger("ckptsync.peers.http")
_quiet.setLevel(logging.CRITICAL)  # what a stranger sends is no news, and must not fill the log
_log = logging.getLogger("ckptsync")


def chunk_path(digest: str) -> str:
    """The path and query of a request for a chunk."""
    return f"{CHUNKS}/{digest}"


class PeerServer:
    """The server's side of one node. All methods belong to its event loop.

    Args:
        holdings: what it gives.
        verifier: whom it answers.
        limits: its bounds.
        pool: reads the disk.

    Attributes:
        given: bytes of chunks sent.
        asked_at: when the last signed request came, by the loop's clock; 0.0 = never.
        complete: this node wants nothing from others any more.
    """

    def __init__(self, holdings: Holdings, verifier: Verifier, limits: Limits, pool: Executor) -> None:
        self.given = 0
        self.asked_at = 0.0
        self.complete = False
        self._holdings, self._verifier, self._limits, self._pool = holdings, verifier, limits, pool
        self._sends = asyncio.Semaphore(limits.sends)
        self._http: _Bounded | None = None
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (for port 0). Raises OSError."""
        self._http = _Bounded(self._answer, self._limits)
        self._listening = await asyncio.get_running_loop().create_server(self._http, host, port, backlog=128)
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and cut off who is still there."""
        if self._http is not None:
            self._http.let_nobody_in()
        if self._listening is not None:
            for each in self._listening.sockets:
                asyncio.get_running_loop().remove_reader(each.fileno())
            await asyncio.sleep(
                0
            )  # who was accepted just now is made: once it is closed, nobody would close their socket
            self._listening.close()
        if self._http is not None:
            await self._http.shutdown(0.5)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request comes through here."""
        try:
            return await self._judge(request)
        except ConnectionError:
            raise  # the client went away
        except Exception:
            _log.exception("a peer's request failed")
            raise

    async def _judge(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            return _refuse(405, "GET only")
        if request.body_exists:
            return _refuse(400, "a request has no body")
        if request.raw_path == HELLO:
            told = {"server": self._verifier.server, "age": self._verifier.age_s, "complete": self.complete}
            return web.json_response(told)
        try:
            self._verifier.check(request.headers.get("Authorization"), request.raw_path)
        except Refusal as refusal:
            return _refuse(401, str(refusal))
        self.asked_at = asyncio.get_running_loop().time()
        if request.raw_path == CHUNKS:
            names = self._holdings.names()
            return web.Response(status=503, text="not yet") if names is None else await self._send(request, names)
        match = _CHUNK.fullmatch(request.raw_path)
        return _refuse(404, "no such thing") if match is None else await self._chunk(request, match[1])

    async def _chunk(self, request: web.BaseRequest, digest: str) -> web.StreamResponse:
        if not await self._has_come(digest):
            return web.Response(status=503, text="not yet")
        async with self._sends:
            loop = asyncio.get_running_loop()
            raw = await loop.run_in_executor(self._pool, self._holdings.read, digest)
            if raw is None:
                return web.Response(status=404, text="not here")
            response = await self._send(request, raw)
        self.given += len(raw)
        return response

    async def _has_come(self, digest: str) -> bool:
        """Wait a little for a chunk that this node is about to have; false = it has not come yet."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(come.set)

        if not self._holdings.await_chunk(digest, tell):
            return True
        try:
            await asyncio.wait_for(come.wait(), self._limits.hold_s)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        finally:
            self._holdings.forget(digest, tell)
        return True

    async def _send(self, request: web.BaseRequest, raw: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = len(raw)
        try:
            await asyncio.wait_for(_write(request, response, memoryview(raw)), self._limits.send_s)
        except (TimeoutError, asyncio.TimeoutError):
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client takes too long") from None
        return response


async def _write(request: web.BaseRequest, response: web.StreamResponse, raw: memoryview) -> None:
    await response.prepare(request)
    for start in range(0, len(raw), _SLICE_BYTES):
        await response.write(raw[start : start + _SLICE_BYTES])
    await response.write_eof()


def _refuse(status: int, why: str) -> web.Response:
    response = web.Response(status=status, text=why)
    response.force_close()
    return response


class _Bounded(web.Server):
    """The HTTP server with a bound on its connections."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], limits: Limits) -> None:
        super().__init__(
            answer,
            logger=_quiet,
            access_log=None,
            keepalive_timeout=limits.idle_s,
            lingering_time=0,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
            max_headers=_HEADERS_MAX,
        )
        self._most = limits.connections

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """As the base class has it; one too many is closed, and one that was let in just before the end."""
        super().connection_made(handler, transport)
        if len(self.connections) > self._most:
            transport.abort()

    def let_nobody_in(self) -> None:
        """From now on."""
        self._most = 0
