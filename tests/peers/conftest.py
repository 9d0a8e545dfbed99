"""Real servers and clients on loopback, and peers that behave as badly as they can."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from contextlib import ExitStack

import pytest

from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.peers.auth import Secret
from ckptsync.peers.exchange import Exchange
from ckptsync.peers.limits import Limits

SECRET = Secret(b"the secret of all the nodes of this run")
PATIENT = Limits(silence_s=60, chunk_s=60, send_s=60, idle_s=60, linger_s=60)
"""For what must not fail on a machine that is busy."""


class Nodes:
    """Nodes that exchange chunks; all are closed at the end."""

    def __init__(self, stack, root):
        self._stack, self._root = stack, root

    def open(
        self,
        *,
        busy=False,
        limits=PATIENT,
        secret=SECRET,
        run="run",
        clock=time.monotonic,
        listen="127.0.0.1:0",
        members=(),
    ):
        made = Exchange(secret, run, listen, limits=limits, clock=clock, members=members)
        self._stack.enter_context(made)
        if not busy:  # it fetches nothing itself
            made.holdings.nothing_more()
        return made

    def give(self, node, data, *, place=None):
        """Have a node hold a chunk on its disk; returns how it is referred to."""
        digest = digest_of(data)
        path = place or self._root / digest[:16]
        path.write_bytes(data)
        node.holdings.placed(digest, str(path.parent), ((path.name, 0, len(data)),))
        return ChunkRef(digest, len(data))

    def evil(self, behave):
        """A peer that greets well, then does `behave(connection, digest)`."""
        peer = EvilPeer(behave)
        self._stack.callback(peer.close)
        return peer


class EvilPeer:
    """Greets like a server of ours, and then does as it likes."""

    def __init__(self, behave):
        outer = self
        self.asked = 0
        self.ended = threading.Event()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                line = self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                if b"/hello" in line:
                    told = json.dumps({"server": "0" * 32, "age": 1.0, "complete": False}).encode()
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(told))
                    self.wfile.write(told)
                    return
                outer.asked += 1
                digest = line.split()[1].rpartition(b"/")[2].decode()
                behave(self, digest)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True
            block_on_close = False

            def handle_error(self, request, client_address):
                pass  # the other side went away

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def nodes(tmp_path):
    with ExitStack() as stack:
        yield Nodes(stack, tmp_path)


@pytest.fixture
def chunk():
    """Fresh content of a chunk."""
    return lambda size=300_000: os.urandom(size)


@pytest.fixture
def ask():
    """Send bytes to an address and return all that comes back until the other side closes."""

    def send(address, data, *, half_close=False):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            found = b""
            while piece := connection.recv(65536):
                found += piece
        return found

    return send
