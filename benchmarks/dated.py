"""An HTTP proxy on 127.0.0.1 that gives a run's objects the times they would have after a training of days."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.server import Server

__all__ = ["dated", "redated"]

_OBJECT = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_STEP = re.compile(rb"<Key>[^<]*/steps/(\d+)/")
_TIME = re.compile(rb"(?<=<LastModified>)[^<]*")
_OURS = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})


def redated(listing: bytes, modified_s: Callable[[int], float]) -> bytes:
    """A page of a list, with the objects of each step as old as `modified_s(step)` says (seconds since the epoch)."""

    def object_(match: re.Match[bytes]) -> bytes:
        step = _STEP.search(match[0])
        if step is None:
            return match[0]
        when = datetime.fromtimestamp(modified_s(int(step[1])), timezone.utc)
        return _TIME.sub(when.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode(), match[0])

    return _OBJECT.sub(object_, listing)


@contextmanager
def dated(server: Server, modified_s: Callable[[int], float]) -> Iterator[Server]:
    """The same server, at an address where each list goes through `redated`. It costs a few milliseconds a request."""
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server.endpoint.removeprefix("http://"), modified_s))
    serving = threading.Thread(target=proxy.serve_forever)
    serving.start()
    endpoint = f"http://127.0.0.1:{proxy.server_port}"
    try:
        yield server.at(endpoint)
    finally:
        proxy.shutdown()
        serving.join()
        proxy.server_close()


def _handler(target: str, modified_s: Callable[[int], float]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self._server = HTTPConnection(target)

        def finish(self) -> None:
            super().finish()
            self._server.close()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base's name
            """Nothing: requests are counted elsewhere."""

        def forward(self) -> None:
            """Pass a request on as it is, for its signature covers the address that was asked."""
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._server.request(self.command, self.path, body or None, dict(self.headers.items()))
            reply = self._server.getresponse()
            data = reply.read()
            if "list-type=" in self.path:
                data = redated(data, modified_s)
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in _OURS:
                    self.send_header(name, value)
            size = reply.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", size)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815 - the base's names

    return Handler
