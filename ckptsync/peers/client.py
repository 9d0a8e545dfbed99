"""Asking the other nodes for chunks. Whatever goes wrong with one of them, the answer is: take it from the store."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import aiohttp

from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.peers.auth import WRONG_SIGNATURE, Secret, sign
from ckptsync.peers.limits import Limits
from ckptsync.peers.pace import Pace
from ckptsync.peers.ranking import Ranking
from ckptsync.peers.server import CHUNKS, HELLO, chunk_path

__all__ = ["PeerClient"]

_log = logging.getLogger("ckptsync")
_HELLO_BYTES_MAX = 1024
_WHY_BYTES_MAX = 64
_BUSY_S = 0.05
_DIGEST_BYTES = 32
_BODY_BYTES_MAX = 64 * 1024 * 1024
"""Of a list of names: 2 million chunks, 16 TB. A chunk has the size that its manifest says."""
_READ_BYTES = 256 * 1024
_OK, _REFUSED, _ABSENT, _NOT_YET = 200, 401, 404, 503
_GREETINGS_MAX = 3
_SECRETS_DIFFER = f"{WRONG_SIGNATURE}: is [peer] secret_file the same on all nodes?"
_NO_CKPTSYNC = "it is no ckptsync: its greeting cannot be read"


class _Fault(Exception):
    """Why a peer is dropped."""


@dataclass(slots=True, eq=False)
class _Peer:
    """A node that may be asked.

    `server` is its server's name, which began at `born` by our clock; `slow` counts its slow chunks in a row.
    """

    address: str
    server: str = ""
    born: float = 0.0
    slow: int = 0
    dropped: bool = False


class PeerClient:
    """The client's side of one pull. All methods but `wants` and `given` belong to its event loop.

    Args:
        secret, run: sign the requests.
        me: this node's own address; "" = it gives nothing.
        limits: see there.
        pool: hashes what comes.
        clock: seconds that only go forward.

    Attributes:
        pace: what is known of the store's speed.
        taken: bytes that peers gave.
    """

    def __init__(
        self,
        secret: Secret,
        run: str,
        me: str,
        limits: Limits,
        pool: Executor,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pace = Pace(limits)
        self.taken = 0
        self._secret, self._run, self._me, self._limits, self._pool = secret, run, me, limits, pool
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._ranking = Ranking(())
        self._holders: dict[bytes, list[_Peer]] = {}
        self._enough = 0  # digests with as many holders as may be asked
        self._members: set[str] = set()
        self._refused = False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=600),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.silence_s, sock_read=limits.silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # a proxy on the way to the store is none between nodes
            read_bufsize=_READ_BYTES,
        )

    def join(self, members: Iterable[str], daemons: Iterable[str] = ()) -> None:
        """Say who takes part, this node included or not, and who only gives; replaces those of before."""
        members = {*members, self._me} - {""}
        self._ranking = Ranking(members)
        self._peers = {m: self._peers.get(m) or _Peer(m) for m in sorted({*members, *daemons}) if m != self._me}
        self._members = members - {self._me}

    @property
    def alone(self) -> bool:
        """Whether there is nobody to ask."""
        return all(peer.dropped for peer in self._peers.values())

    @property
    def others(self) -> int:
        """How many other nodes take part, dropped ones included: they may still ask this one."""
        return len(self._members)

    def mine(self, digest: str) -> bool:
        """Whether this node is the one to fetch a chunk from the store; any thread may ask."""
        return self.alone or next(iter(self._ranking.order(digest)), "") == self._me

    async def get(self, ref: ChunkRef) -> bytes | None:
        """The chunk's bytes, checked; None = take it from the store. Never raises, and never takes long."""
        for peer in self._to_ask(ref.digest):
            raw = None if peer.dropped else await self._ask(peer, ref)
            if raw is not None:
                self.taken += len(raw)
                return raw
        return None

    def _to_ask(self, digest: str) -> list[_Peer]:
        """Who is before us in the chunk's order, then who has it on its disk.

        All of them ask the first of the order, and that one asks who has it: a node with the whole step gives each
        chunk once, like the store.
        """
        order = [self._peers.get(member) for member in self._ranking.order(digest)]  # None = this node
        before = list(itertools.takewhile(lambda peer: peer is not None, order))
        holding = self._holders.get(bytes.fromhex(digest), [])
        first, then = ([p for p in peers if p is not None and not p.dropped] for peers in (before, holding))
        return list(dict.fromkeys([*first[: self._limits.asked], *then[: self._limits.asked]]))

    async def learn(self, wanted: frozenset[bytes]) -> None:
        """Ask the peers what their disks hold, until there are enough for each digest; who does not say holds nothing.

        Each node asks in an order of its own, and keeps of the answers only what it wants.
        """
        self._holders, self._enough = {}, 0
        order = iter(Ranking(self._peers).order(digest_of(self._me.encode())))

        async def ask_some() -> None:
            for member in order:
                if self._enough < len(wanted) and not self._peers[member].dropped:
                    await self._learn(self._peers[member], wanted)

        await asyncio.gather(*(ask_some() for _ in range(self._limits.sends)))

    async def _learn(self, peer: _Peer, wanted: frozenset[bytes]) -> None:
        names = await self._guarded(peer, self._fetch(peer, CHUNKS, None), "") or b""
        for at in range(0, len(names), _DIGEST_BYTES):
            if (name := names[at : at + _DIGEST_BYTES]) in wanted:
                found = self._holders.setdefault(name, [])
                if len(found) < self._limits.asked:
                    found.append(peer)
                    self._enough += len(found) == self._limits.asked

    async def complete(self) -> bool:
        """Whether no peer wants anything any more; one that cannot be asked does not."""
        states = await asyncio.gather(*(self._is_complete(self._peers[member]) for member in self._members))
        return all(states)

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def _is_complete(self, peer: _Peer) -> bool:
        try:
            return bool((await asyncio.wait_for(self._hello(peer), self._limits.silence_s)).get("complete", True))
        except (_Fault, aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):
            return True

    async def _ask(self, peer: _Peer, ref: ChunkRef) -> bytes | None:
        """The chunk from one peer; a peer that fails in any way but not having it is dropped."""
        raw = await self._guarded(peer, self._fetch(peer, chunk_path(ref.digest), ref.size), "a chunk")
        if raw is None:
            return None
        digest = await asyncio.get_running_loop().run_in_executor(self._pool, digest_of, raw)
        if digest == ref.digest:
            return raw
        self._drop(peer, "it gave other bytes than the chunk has")
        return None

    async def _guarded(self, peer: _Peer, asking: Coroutine[Any, Any, bytes | None], what: str) -> bytes | None:
        """The answer; None if there is none, or the peer has just been dropped. It may be late with "" alone."""
        limit_s = self.pace.limit_s
        try:
            return await asyncio.wait_for(asking, limit_s)
        except _Fault as fault:
            self._drop(peer, str(fault))
        except (TimeoutError, asyncio.TimeoutError) as error:
            if what or isinstance(error, aiohttp.ClientError):  # the latter: it said nothing at all
                self._drop(peer, f"{what or 'an answer'} did not come within {limit_s:.0f} s")
        except aiohttp.ClientConnectorError as error:
            self._drop(peer, f"it cannot be reached: {error.strerror or error.os_error}")
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError) as error:
            self._drop(peer, str(error) or type(error).__name__)
        return None

    async def _fetch(self, peer: _Peer, target: str, size: int | None) -> bytes | None:
        """Ask until the peer has it; None = it will not have it. The caller bounds the time. Raises _Fault."""
        greeted = 0
        while True:
            if not peer.server:
                await self._hello(peer)
                greeted += 1
            status, raw = await self._request(peer, target, size)
            if status == _OK:
                return raw
            if status == _ABSENT:
                return None
            if status == _NOT_YET:
                await asyncio.sleep(_BUSY_S)
                continue
            why = raw.decode("ascii", "replace")
            if status != _REFUSED or why == WRONG_SIGNATURE or greeted == _GREETINGS_MAX:
                raise _Fault(_SECRETS_DIFFER if why == WRONG_SIGNATURE else f"it answers {status}: {why!r}")
            peer.server = ""  # it has begun again, under another name

    async def _request(self, peer: _Peer, target: str, size: int | None) -> tuple[int, bytes]:
        """Status, and the body; `size` is what a chunk must have, None = this is the list of names."""
        header = sign(self._secret, self._run, peer.server, self._clock() - peer.born, target)
        url, headers = f"http://{peer.address}{target}", {"Authorization": header}
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != _OK:
                return response.status, await response.content.read(_WHY_BYTES_MAX)
            told = response.content_length
            if told is None or told != (told if size is None else size) or told > _BODY_BYTES_MAX:
                raise _Fault(f"it offers {told} bytes")
            begun = self._clock()
            raw = await response.content.readexactly(told)
            if size is not None:
                self._judge(peer, self._clock() - begun, size)
            return _OK, raw

    def _judge(self, peer: _Peer, took_s: float, size: int) -> None:
        """Notice a peer that is slower than the store, for several chunks in a row."""
        peer.slow = peer.slow + 1 if self.pace.is_slow(took_s, size) else 0
        if peer.slow >= self._limits.strikes:
            self._drop(peer, f"it is slower than the store: {took_s:.1f} s for {size} bytes")

    async def _hello(self, peer: _Peer) -> dict[str, Any]:
        asked = self._clock()
        async with self._session.get(f"http://{peer.address}{HELLO}", allow_redirects=False) as response:
            if response.status != _OK:
                raise _Fault(f"it answers with status {response.status}")
            if not 0 < (response.content_length or 0) <= _HELLO_BYTES_MAX:
                raise _Fault(_NO_CKPTSYNC)
            told = _parse_hello(await response.read())
        peer.server, peer.born = told["server"], asked - told["age"]
        return told

    def _drop(self, peer: _Peer, why: str) -> None:
        if peer.dropped:
            return
        peer.dropped = True
        # with a wrong secret here, all would refuse: one line is enough
        quiet = why == _SECRETS_DIFFER and self._refused
        self._refused = self._refused or why == _SECRETS_DIFFER
        level = logging.DEBUG if quiet else logging.WARNING
        _log.log(level, "peer %s is not asked any more, the store is: %s", peer.address, why)


def _parse_hello(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
        return {"server": str(told["server"]), "age": float(told["age"]), "complete": told["complete"] is not False}
    except (ValueError, KeyError, TypeError):
        raise _Fault(_NO_CKPTSYNC) from None
