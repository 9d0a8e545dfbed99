"""A TCP proxy on 127.0.0.1 that counts the requests on their way to a server, and the bytes that come back."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.server import Server

__all__ = ["Counts", "counting"]

_REQUEST = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_PIECE = 256 << 10


@dataclass
class Counts:
    """What has passed so far.

    Attributes:
        requests: "LIST" for the first page of a list, "PAGE" for each further one, else the method.
        answered: bytes from the server, headers included.
    """

    requests: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, data: bytes) -> None:
        """Count the request lines in what a client sent. One split over two pieces is missed: clients send it whole."""
        for method, target in _REQUEST.findall(data):
            kind = method.decode()
            if method == b"GET" and b"list-type=" in target:
                kind = "PAGE" if b"continuation-token=" in target else "LIST"
            with self._lock:
                self.requests[kind] += 1

    def answer(self, data: bytes) -> None:
        """Count what a server sent."""
        with self._lock:
            self.answered += len(data)


@contextmanager
def counting(server: Server) -> Iterator[tuple[Server, Counts]]:
    """The same server, at an address where its requests are counted."""
    counts = Counts()
    host, _, port = server.endpoint.removeprefix("http://").rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=_accept, args=(listener, (host, int(port)), counts))
        accepting.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield server.at(endpoint), counts
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket, target: tuple[str, int], counts: Counts) -> None:
    """Serve connections until the listener is shut down and all clients have gone."""
    threads = []
    with suppress(OSError):  # shut down: the end
        while True:
            client, _ = listener.accept()
            threads.append(threading.Thread(target=_serve, args=(client, target, counts)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(client: socket.socket, target: tuple[str, int], counts: Counts) -> None:
    with client, socket.create_connection(target) as server:
        answering = threading.Thread(target=_pump, args=(server, client, counts.answer))
        answering.start()
        _pump(client, server, counts.ask)
        answering.join()


def _pump(source: socket.socket, sink: socket.socket, count: Callable[[bytes], None]) -> None:
    """Pass on until the source ends, then end the sink."""
    with suppress(OSError):
        while data := source.recv(_PIECE):
            count(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
