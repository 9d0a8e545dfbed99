"""Taking chunks from other nodes: what is right is taken, and whoever behaves badly is dropped in bounded time."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

import pytest

from ckptsync.errors import ConfigError
from ckptsync.model.manifest import ChunkRef, digest_of
from ckptsync.peers.auth import Secret
from ckptsync.peers.limits import Limits
from ckptsync.peers.pace import Pace
from ckptsync.peers.ranking import Ranking

SOON = Limits(silence_s=0.3, hold_s=0.2, chunk_s=1.0)


def ref_of(data):
    return ChunkRef(digest_of(data), len(data))


def taker(nodes, *members, **options):
    """A node that only takes, so that every chunk is another's."""
    return nodes.open(listen="", members=members, **options)


def test_a_chunk_comes_from_the_node_that_has_it(nodes, chunk):
    giver, data = nodes.open(), chunk(3_000_000)
    ref = nodes.give(giver, data)
    assert taker(nodes, giver.address).get(ref) == data
    assert giver.given == len(data)


def test_addresses_may_be_of_the_sixth_version(nodes, chunk):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        giver, data = nodes.open(listen="[::1]:0"), chunk()
    except ConfigError:
        pytest.skip("no IPv6 on loopback")
    assert giver.address.startswith("[::1]:")
    assert taker(nodes, giver.address).get(nodes.give(giver, data)) == data


def test_it_is_waited_for_while_its_node_fetches_it(nodes, chunk):
    giver, data = nodes.open(), chunk()
    giver.holdings.expect([digest_of(data)])
    node, got = taker(nodes, giver.address), []
    asking = threading.Thread(target=lambda: got.append(node.get(ref_of(data))))
    asking.start()
    while not giver.holdings._waiting:
        time.sleep(0.01)
    nodes.give(giver, data)
    asking.join()
    assert got == [data]


def test_who_does_not_have_it_is_not_dropped(nodes, chunk):
    giver = nodes.open()
    node = taker(nodes, giver.address)
    assert node.get(ref_of(chunk())) is None
    assert not node.alone
    data = chunk()
    assert node.get(nodes.give(giver, data)) == data


@pytest.mark.parametrize("apart", [600, -600, 10**9])
def test_clocks_may_say_what_they_like(nodes, chunk, apart):
    giver, data = nodes.open(clock=lambda: time.monotonic() + apart), chunk()
    ref = nodes.give(giver, data)
    assert taker(nodes, giver.address).get(ref) == data


def test_a_node_that_began_again_is_greeted_again(nodes, chunk):
    first, data = nodes.open(), chunk()
    ref = nodes.give(first, data)
    node = taker(nodes, first.address)
    assert node.get(ref) == data
    first.close()
    second = nodes.open(listen=first.address)
    nodes.give(second, data)
    assert node.get(ref) == data
    assert second.given == len(data)


def answer(body, *, length=None):
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


def lie(size):
    return lambda connection, _: connection.wfile.write(answer(os.urandom(size)))


def truncate(connection, digest):
    connection.wfile.write(answer(b"x" * 1000, length=300_000))


def offer_more(connection, digest):
    connection.wfile.write(answer(b"x" * 10, length=10**12))


def reset(connection, digest):
    connection.wfile.write(answer(b"x" * 1000, length=300_000))
    connection.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.connection.close()


def redirect(connection, digest):
    connection.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")


def fail(connection, digest):
    connection.wfile.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")


def speak_otherwise(connection, digest):
    connection.wfile.write(b"SSH-2.0-OpenSSH_9.7\r\n")


def inflate(connection, digest):
    """Another encoding than asked for: nothing is unpacked."""
    head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n"
    connection.wfile.write(head.encode() + b"\x1f\x8b" + b"\0" * 299_998)


def test_who_lies_breaks_off_or_talks_nonsense_is_dropped(nodes, chunk, caplog):
    data = chunk()
    for behave in (lie(300_000), truncate, offer_more, reset, redirect, fail, speak_otherwise, inflate, lie(10)):
        caplog.clear()
        evil = nodes.evil(behave)
        node = taker(nodes, evil.address)
        assert node.get(ref_of(data)) is None
        assert node.alone
        assert node.get(ref_of(data)) is None
        assert evil.asked == 1, "a dropped peer is asked no more"
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert f"peer {evil.address} is not asked any more, the store is: " in caplog.text


@pytest.mark.parametrize("kind", ["silent", "drip", "never ready", "deaf"])
def test_who_takes_too_long_is_dropped(nodes, chunk, kind):
    """Bounded by `limits`; without the bound the test would not end."""
    data = chunk()
    ended = threading.Event()

    def silent(connection, digest):
        ended.wait()

    def drip(connection, digest):
        connection.wfile.write(answer(b"", length=len(data)))
        for byte in data:
            if ended.wait(0.02):
                return
            connection.wfile.write(bytes([byte]))

    def never_ready(connection, digest):
        connection.wfile.write(b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 7\r\n\r\nnot yet")

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # the kernel accepts, nobody reads
        if kind == "deaf":
            address = f"127.0.0.1:{deaf.getsockname()[1]}"
        else:
            address = nodes.evil({"silent": silent, "drip": drip, "never ready": never_ready}[kind]).address
        node = taker(nodes, address, limits=SOON)
        assert node.get(ref_of(data)) is None
        assert node.alone
    ended.set()


def test_who_is_dead_is_dropped(nodes, chunk, caplog):
    gone = nodes.open()
    gone.close()
    node = taker(nodes, gone.address)
    assert node.get(ref_of(chunk())) is None
    assert node.alone
    assert "it cannot be reached: " in caplog.text
    assert "ssl" not in caplog.text


def test_who_dies_in_the_middle_is_dropped_and_the_next_one_asked(nodes, chunk):
    """All of the order is walked: a dying node's chunks move to one other node, not to all."""
    data = chunk()
    evil = nodes.evil(reset)
    good = nodes.open()
    while Ranking([evil.address, good.address]).order(digest_of(data))[0] != evil.address:
        data = chunk()
    ref = nodes.give(good, data)
    node = taker(nodes, evil.address, good.address)
    assert node.get(ref) == data
    assert evil.asked == 1
    assert not node.alone


def test_before_the_store_not_everybody_is_asked(nodes, chunk):
    givers = [nodes.open() for _ in range(6)]
    node = taker(nodes, *(giver.address for giver in givers))
    data = chunk()
    last = Ranking([giver.address for giver in givers]).order(digest_of(data))[-1]
    nodes.give(next(giver for giver in givers if giver.address == last), data)
    assert node.get(ref_of(data)) is None


def test_different_secrets_are_one_line(nodes, chunk, caplog):
    givers = [nodes.open() for _ in range(3)]
    node = taker(nodes, *(giver.address for giver in givers), secret=Secret(b"not the secret of the others"))
    assert node.get(ref_of(chunk())) is None
    assert node.alone
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "is [peer] secret_file the same on all nodes?" in warnings[0]
    assert "not the secret" not in caplog.text


def test_other_runs_are_not_served(nodes, chunk):
    giver = nodes.open(run="other")
    ref = nodes.give(giver, chunk())
    assert taker(nodes, giver.address).get(ref) is None
    assert giver.given == 0


def test_who_is_slower_than_the_store_several_times_is_dropped(nodes, chunk):
    giver, data = nodes.open(), chunk()
    ref = nodes.give(giver, data)
    node = taker(nodes, giver.address, limits=Limits(silence_s=60, chunk_s=60, slow_s=0.0, strikes=3))
    for _ in range(5):
        assert node.get(ref) == data  # nothing is known of the store yet
    node.fetched(1e-9, len(data))
    for _ in range(2):
        assert node.get(ref) == data
    node.get(ref)
    assert node.alone


def test_a_chunk_may_take_longer_where_the_store_is_slow():
    pace = Pace(Limits(chunk_s=10, slow_s=1, factor=4))
    assert pace.limit_s == 10
    assert not pace.is_slow(1000, 8_000_000)
    for took_s in (2.0, 30.0, 3.0):
        pace.fetched(took_s, 8_000_000)
    assert pace.limit_s == 130
    assert not pace.is_slow(20, 8_000_000)
    assert pace.is_slow(100, 8_000_000)


class TestLearning:
    def test_who_has_a_chunk_on_its_disk_is_asked_by_the_first_of_its_order(self, nodes, chunk):
        """The taker alone is in the order: without learning it would go to the store."""
        giver, data = nodes.open(), chunk()
        node = nodes.open()
        node.join([])
        node._taker.join([], [giver.address])
        ref = nodes.give(giver, data)
        assert node.get(ref) is None
        giver.holdings.verified({ref.digest: giver.holdings._placed[ref.digest], "ef" * 32: ("/", ())})
        node.learn([ref.digest, "ab" * 32])
        assert node.get(ref) == data
        assert [name.hex() for name in node._taker._holders] == [ref.digest], "only what is wanted is kept"

    def test_enough_is_enough(self, nodes, chunk):
        givers, data = [nodes.open() for _ in range(6)], chunk()
        refs = [nodes.give(giver, data) for giver in givers]
        for giver in givers:
            giver.holdings.verified({refs[0].digest: giver.holdings._placed[refs[0].digest]})
        node = taker(nodes, *(giver.address for giver in givers), limits=Limits(silence_s=60, chunk_s=60, sends=1))
        node.learn([refs[0].digest])
        assert sum(giver._server.asked_at > 0 for giver in givers) == 3

    def test_who_does_not_say_in_time_is_not_dropped(self, nodes):
        silent = nodes.open(limits=Limits(hold_s=0.05))
        node = taker(nodes, silent.address, limits=Limits(silence_s=60, chunk_s=0.3))
        node.learn(["ab" * 32])
        assert not node.alone

    def test_a_list_without_end_is_not_read(self, nodes):
        evil = nodes.evil(offer_more)
        node = taker(nodes, evil.address)
        node.learn(["ab" * 32])
        assert node.alone


class TestRanking:
    digests = [digest_of(bytes([n])) for n in range(256)] * 4

    def test_all_nodes_agree_and_share_evenly(self):
        names = [f"10.0.0.{n}:7070" for n in range(4)]
        counts = dict.fromkeys(names, 0)
        for digest in self.digests:
            order = Ranking(names).order(digest)
            assert order == Ranking(reversed([*names, names[0]])).order(digest)
            counts[order[0]] += 1
        assert all(150 < count < 360 for count in counts.values())

    def test_without_a_node_only_its_chunks_move(self):
        names = [f"10.0.0.{n}:7070" for n in range(4)]
        fewer = Ranking(names[1:])
        for digest in self.digests:
            assert fewer.order(digest) == tuple(name for name in Ranking(names).order(digest) if name != names[0])


class TestLinger:
    def test_it_lasts_until_the_others_have_all(self, nodes, chunk):
        a, b = nodes.open(), nodes.open()
        for node in (a, b):
            node.join([a.address, b.address])
        first = threading.Thread(target=a.linger)
        first.start()
        data = chunk()
        while b.mine(digest_of(data)):
            data = chunk()
        assert b.get(nodes.give(a, data)) == data
        first.join(1.0)
        assert first.is_alive(), "b still wants chunks"
        b.linger()
        first.join()

    def test_it_ends_when_nobody_asks(self, nodes):
        other = nodes.open()
        node = nodes.open(limits=Limits(linger_idle_s=0.1), members=[other.address])
        node.linger()
        assert not other._server.complete

    def test_it_ends_when_asked_to_stop_and_with_dead_or_no_peers(self, nodes):
        gone, other = nodes.open(), nodes.open()
        gone.close()
        nodes.open().linger()
        nodes.open(members=[gone.address]).linger()
        nodes.open(members=[other.address]).linger(stop=lambda: True)
        taker(nodes, other.address).linger()
