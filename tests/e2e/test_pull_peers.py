"""Nodes that pull together give each other what they have: real processes over loopback."""

import json
import signal
import socket
import time

import pytest

from ckptsync.testing.checkpoints import verl_step

STEP = "global_step_20"


@pytest.fixture
def settings(tmp_path):
    """The [peer] table of a node: a free port of its own, and a secret."""

    def write(name, secret="the secret of all nodes of this run", daemons=()):
        file = tmp_path / f"{name}.secret"
        file.write_text(secret)
        file.chmod(0o600)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return f'[peer]\nlisten = "127.0.0.1:{port}"\nsecret_file = "{file}"\ndaemons = {json.dumps(daemons)}\n'

    return write


def address_of(node):
    return node.settings.split('listen = "')[1].split('"')[0]


@pytest.fixture
def saved(node):
    """A node that has put a whole step into the store."""
    verl_step(node.ckpt, 20, world=2, n=3_000_000, hf=True)
    node.once()
    return node


@pytest.fixture
def size(saved, tree_of):
    return sum(path.stat().st_size for path in (saved.ckpt / STEP).rglob("*") if path.is_file())


def fresh(make_node, saved, names, settings, **options):
    return [make_node(name, nodes=len(names), store=saved.store, settings=settings(name, **options)) for name in names]


def start(nodes):
    command = ("pull", "--json", "--attempt", "job-1", "--timeout", "60s", "--nodes", len(nodes))
    return [node.start(*command) for node in nodes]


def pull(nodes):
    ended = [running.wait() for running in start(nodes)]
    assert [done.code for done in ended] == [0] * len(nodes), "\n".join(done.err for done in ended)
    return [json.loads(done.out) for done in ended]


def test_four_nodes_that_pull_together_fetch_each_byte_about_once(make_node, saved, size, settings, tree_of):
    nodes = fresh(make_node, saved, ("n1", "n2", "n3", "n4"), settings)
    results = pull(nodes)
    for node, result in zip(nodes, results, strict=True):
        assert tree_of(node.ckpt / STEP) == tree_of(saved.ckpt / STEP)
        assert result["bytes_fetched"] + result["bytes_from_peers"] == size
    assert sum(result["bytes_fetched"] for result in results) <= 1.2 * size


def test_a_node_that_has_the_step_gives_it_to_the_replaced_one(make_node, saved, size, settings, tree_of):
    saved.settings = settings("n0")
    saved.nodes = 2
    saved.write_config()
    (new,) = fresh(make_node, saved, ("n1",), settings)
    new.nodes = 2
    new.write_config()
    first, second = pull([saved, new])
    assert (first["bytes_fetched"], first["bytes_from_peers"]) == (0, 0)
    assert (second["bytes_fetched"], second["bytes_from_peers"]) == (0, size)
    assert tree_of(new.ckpt / STEP) == tree_of(saved.ckpt / STEP)


def test_different_secrets_cost_nothing_but_bytes(make_node, saved, size, settings, tree_of):
    nodes = [
        *fresh(make_node, saved, ("n1",), settings),
        *fresh(make_node, saved, ("n2",), settings, secret="another secret, by mistake"),
    ]
    for node in nodes:
        node.nodes = 2
        node.write_config()
    ended = [running.wait() for running in start(nodes)]
    for node, done in zip(nodes, ended, strict=True):
        assert done.code == 0, done.err
        assert json.loads(done.out)["bytes_fetched"] == size
        assert done.err.count("is [peer] secret_file the same on all nodes?") == 1
        assert "another secret" not in done.err
        assert tree_of(node.ckpt / STEP) == tree_of(saved.ckpt / STEP)


def test_a_secret_that_others_can_read_is_refused(make_node, saved, settings, tmp_path):
    nodes = fresh(make_node, saved, ("n1", "n2"), settings)
    (tmp_path / "n1.secret").chmod(0o644)
    done = nodes[0].run("pull", "--attempt", "job-1", "--nodes", 2)
    assert done.code == 3
    assert "cannot use the peers' secret" in done.line
    assert "chmod 600" in done.line


@pytest.fixture
def daemons():
    """Start the daemon on nodes, and wait until it gives; all are ended."""
    running = []

    def start_on(*nodes):
        for node in nodes:
            daemon = node.start("run")
            running.append(daemon)
            deadline = time.monotonic() + 60
            while "giving chunks to other nodes at" not in daemon.err.read_text():
                assert time.monotonic() < deadline, daemon.err.read_text()
                time.sleep(0.05)

    yield start_on
    for daemon in running:
        daemon.send(signal.SIGTERM)
    assert [daemon.wait().code for daemon in running] == [0] * len(running)


def test_a_daemon_gives_what_lies_verified_on_its_disk(make_node, saved, size, settings, daemons, tree_of):
    saved.settings = settings("n0")
    saved.write_config()
    daemons(saved)
    late = make_node("late", store=saved.store, settings=settings("late", daemons=[address_of(saved)]))
    result = late.pull()
    assert (result["bytes_fetched"], result["bytes_from_peers"]) == (0, size)
    assert tree_of(late.ckpt / STEP) == tree_of(saved.ckpt / STEP)


def test_pulls_beside_daemons_exchange_at_other_ports(make_node, saved, size, settings, daemons, tree_of):
    nodes = fresh(make_node, saved, ("n1", "n2"), settings)
    daemons(*nodes)
    results = pull(nodes)
    assert sum(result["bytes_fetched"] for result in results) <= 1.2 * size
    for node in nodes:
        assert tree_of(node.ckpt / STEP) == tree_of(saved.ckpt / STEP)


def test_a_daemon_that_is_gone_costs_a_line(make_node, saved, size, settings):
    settings_of_none = settings("none")
    address = settings_of_none.split('"')[1]
    late = make_node("late", store=saved.store, settings=settings("late", daemons=[address]))
    done = late.run("pull", "--json")
    assert done.code == 0
    assert json.loads(done.out)["bytes_fetched"] == size
    assert done.err.count(f"peer {address} is not asked any more, the store is: ") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_node_that_is_killed_or_stopped_in_the_middle_stops_nobody(make_node, saved, size, settings, tree_of, number):
    nodes = fresh(make_node, saved, ("n1", "n2", "n3"), settings)
    running = start(nodes)
    victim, restoring = running[0], nodes[0].staging / "restore"
    deadline = time.monotonic() + 60
    while not (restoring.is_dir() and any(restoring.iterdir())):
        assert time.monotonic() < deadline, victim.err.read_text()
        time.sleep(0.001)
    victim.send(number)
    ended = [each.wait() for each in running[1:]]
    victim.kill()
    assert [done.code for done in ended] == [0, 0], "\n".join(done.err for done in ended)
    pulled = nodes[0].run("pull", "--json", "--attempt", "job-1", "--timeout", "60s", "--nodes", 3)
    assert pulled.code == 0, pulled.err
    for node in nodes:
        assert tree_of(node.ckpt / STEP) == tree_of(saved.ckpt / STEP)
