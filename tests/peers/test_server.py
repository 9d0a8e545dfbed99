"""What a node gives: chunks it has, to who knows the secret, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.peers.auth import Secret, Verifier, sign
from ckptsync.peers.holdings import Holdings
from ckptsync.peers.limits import Limits
from ckptsync.peers.server import PeerServer


def request(target, *headers, method="GET"):
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode()


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


def signed(node, target, *, secret=None, run="run", method="GET", headers=()):
    """A signed request to a node."""
    verifier = node._server._verifier
    header = sign(secret or verifier._secret, run, verifier.server, verifier.age_s, target)
    return request(target, f"Authorization: {header}", *headers, method=method)


def path(ref):
    return f"/v1/chunks/{ref.digest}"


def test_a_chunk_comes_as_it_is(nodes, chunk, ask):
    node, data = nodes.open(), chunk()
    ref = nodes.give(node, data)
    answer = ask(node.address, signed(node, path(ref)))
    assert status(answer) == 200
    assert answer.partition(b"\r\n\r\n")[2] == data


@pytest.mark.parametrize("kind", ["none", "wrong", "replayed", "other target"])
def test_who_does_not_know_the_secret_gets_nothing(nodes, chunk, ask, kind):
    node = nodes.open()
    ref = nodes.give(node, chunk())
    good = signed(node, path(ref))
    if kind == "replayed":
        assert status(ask(node.address, good)) == 200
    bad = {
        "none": request(path(ref)),
        "wrong": signed(node, path(ref), secret=Secret(b"another secret of no node")),
        "replayed": good,
        "other target": signed(node, "/v1/chunks/" + "0" * 64).replace(b"0" * 64, ref.digest.encode(), 1),
    }[kind]
    answer = ask(node.address, bad)
    assert status(answer) == 401
    assert len(answer) < 500
    assert node.given == (300_000 if kind == "replayed" else 0)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chunks/../../../../etc/passwd",
        "/v1/chunks/..%2f..%2fetc%2fpasswd",
        "/v1/chunks//etc/passwd",
        "/v1/chunks/{digest}/",
        "/v1/chunks/{digest}/../{digest}",
        "/v1/chunks/{digest}?x=1",
        "/v1/chunks/{digest}%00",
        "/v1/chunks/{upper}",
        "/v1/chunks/{short}",
        "/v1//chunks/{digest}",
        "/V1/chunks/{digest}",
        "/",
        "/v1/chunks/",
        "/v1/chunks/" + "0" * 64,
    ],
)
def test_nothing_but_a_digest_finds_anything(nodes, chunk, ask, target):
    node = nodes.open()
    digest = nodes.give(node, chunk()).digest
    target = target.format(digest=digest, upper=digest.upper(), short=digest[:-1])
    assert status(ask(node.address, signed(node, target))) in {400, 404}
    assert node.given == 0


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_there_is_only_get(nodes, chunk, ask, method):
    node = nodes.open()
    ref = nodes.give(node, chunk())
    assert status(ask(node.address, signed(node, path(ref), method=method))) == 405
    assert node.given == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/hello HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /v1/hello HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(200)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello in another language\r\n\r\n",
        b"GET /v1/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_what_is_large_or_no_request_is_refused(nodes, ask, bad):
    node = nodes.open()
    assert status(ask(node.address, bad)) == 400
    assert status(ask(node.address, request("/v1/hello"))) == 200


def test_what_was_rewritten_in_place_is_not_given(nodes, chunk, ask, tmp_path):
    node, place = nodes.open(), tmp_path / "shard"
    ref = nodes.give(node, chunk(), place=place)
    with open(place, "r+b") as file:
        file.seek(1000)
        file.write(b"another step's bytes")
    assert status(ask(node.address, signed(node, path(ref)))) == 404
    place.unlink()
    assert status(ask(node.address, signed(node, path(ref)))) == 404
    place.symlink_to("/etc/passwd")
    assert status(ask(node.address, signed(node, path(ref)))) == 404
    assert node.given == 0


def test_what_is_about_to_come_is_waited_for(nodes, chunk, ask):
    node, data = nodes.open(), chunk()
    node.holdings.expect([digest_of(data)])
    wanted = signed(node, path(ChunkRef(digest_of(data), len(data))))
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(node.address, wanted)))
    asking.start()
    while not node.holdings._waiting:
        time.sleep(0.01)
    nodes.give(node, data)
    asking.join()
    assert status(answers[0]) == 200
    assert not node.holdings._waiting


def test_before_a_node_knows_what_will_come_it_may_be_anything(nodes, ask):
    node = nodes.open(busy=True, limits=Limits(hold_s=0.05))
    assert status(ask(node.address, signed(node, "/v1/chunks/" + "ab" * 32))) == 503
    node.holdings.expect(["cd" * 32])
    assert status(ask(node.address, signed(node, "/v1/chunks/" + "ab" * 32))) == 404
    assert status(ask(node.address, signed(node, "/v1/chunks/" + "cd" * 32))) == 503


def test_what_does_not_come_soon_is_not_here_yet(nodes, ask):
    node = nodes.open(limits=Limits(hold_s=0.05))
    node.holdings.expect(["ab" * 32])
    assert status(ask(node.address, signed(node, "/v1/chunks/" + "ab" * 32))) == 503
    assert not node.holdings._waiting
    node.holdings.nothing_more()
    assert status(ask(node.address, signed(node, "/v1/chunks/" + "ab" * 32))) == 404


def closed_by_server(connection):
    connection.settimeout(60)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /v1/he", b"GET /v1/hello HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_client_that_does_not_get_to_the_point_is_cut_off(nodes, sent):
    node = nodes.open(limits=Limits(idle_s=0.2))
    host, port = node.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(sent)
        assert closed_by_server(connection)


def test_a_client_that_does_not_take_what_it_asked_for_is_cut_off(nodes, chunk):
    node = nodes.open(limits=Limits(send_s=0.3, sends=1))
    ref = nodes.give(node, chunk(16 * 1024 * 1024))
    host, port = node.address.split(":")
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect((host, int(port)))
        lazy.sendall(signed(node, path(ref)))
        while node._server._sends.locked() is False and node.given == 0:
            time.sleep(0.01)
        while node._server._sends.locked():  # it is the only one that may be sent to
            time.sleep(0.01)
        assert closed_by_server(lazy)
    assert node.given == 0


def test_one_connection_too_many_is_closed(nodes, ask):
    node = nodes.open(limits=Limits(connections=2))
    host, port = node.address.split(":")
    kept = [socket.create_connection((host, int(port))) for _ in range(2)]
    try:
        while len(node._server._http.connections) < 2:
            time.sleep(0.01)
        with socket.create_connection((host, int(port))) as third:
            assert closed_by_server(third)
        while len(node._server._http.connections) > 2:
            time.sleep(0.01)
    finally:
        for connection in kept:
            connection.close()


def test_a_second_process_takes_a_port_above(nodes):
    from ckptsync.errors import ConfigError  # noqa: PLC0415 - here alone
    from ckptsync.peers.exchange import Exchange  # noqa: PLC0415 - here alone

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Exchange(Secret(b"x" * 16), "run", f"127.0.0.1:{port}", spare_ports=7) as second:
            assert port < int(second.address.partition(":")[2]) <= port + 7
        with pytest.raises(ConfigError, match="cannot listen for peers"):
            Exchange(Secret(b"x" * 16), "run", f"127.0.0.1:{port}").__enter__()
    with pytest.raises(ConfigError, match="cannot listen for peers"):
        Exchange(Secret(b"x" * 16), "run", "192.0.2.1:0").__enter__()


def test_a_connection_that_is_accepted_while_the_server_ends_is_closed():
    """Not left to the collector of garbage, which would warn of it, and fail this test."""

    async def end_in_the_middle():
        secret = Secret(b"the secret of all the nodes of this run")
        server = PeerServer(Holdings(), Verifier(secret, "run"), Limits(), ThreadPoolExecutor(1))
        port = await server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)) as client:
            await asyncio.sleep(0)  # the loop sees it
            await asyncio.sleep(0)  # and is about to make its transport
            await server.stop()
            for _ in range(4):
                await asyncio.sleep(0)
            client.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""

    asyncio.run(end_in_the_middle())
    gc.collect()
