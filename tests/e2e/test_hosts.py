"""Nodes as separate hosts: addresses of their own, cables that are cut and slow, an S3 server on another host."""

import json
import os
import time

import pytest

from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.hosts import Hosts, why_no_hosts
from ckptsync.testing.seaweed import SeaweedFS

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts())

NAMES = ("n0", "n1", "n2", "n3")
LIMITS = {"request_s": 2.0, "retry_s": 6.0}  # of requests to the store; the real ones are two minutes and five
PATIENCE_S = 90  # only ends a test that has failed


@pytest.fixture(scope="module")
def hosts():
    with Hosts([*NAMES, "store"]) as made:
        yield made


@pytest.fixture(scope="module")
def server(hosts):
    with SeaweedFS(host=hosts.address("store"), inside=hosts.inside("store")) as weed:
        yield weed


@pytest.fixture(scope="module")
def warms(hosts, warm_class, tmp_path_factory):
    """A process on each host that starts commands there."""
    made = {name: warm_class(tmp_path_factory.mktemp(name), inside=hosts.inside(name)) for name in NAMES}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def nodes(hosts, server, warms, node_class, tmp_path):
    """A node on each host; they give each other chunks at their own addresses."""
    secret = tmp_path / "secret"
    secret.write_text("the secret of all nodes of this run")
    secret.chmod(0o600)
    environ = {**server.environ, "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    environ["NO_PROXY"] = hosts.address("store")
    made = []
    for name in NAMES:
        peer = f'[peer]\nlisten = "{hosts.address(name)}:7070"\nsecret_file = "{secret}"\n'
        node = node_class(warms[name], tmp_path, name, nodes=len(NAMES), settings=peer, environ=environ)
        node.write_config(store=server.url(tmp_path.name))
        made.append(node)
    yield made
    for name in NAMES:
        hosts.mend(name)
        hosts.quick(name)


def save(nodes, step, *, n=100_000, seed=0):
    """What the trainer writes: two ranks on each node, the driver on the first."""
    for number, node in enumerate(nodes):
        ranks = [2 * number, 2 * number + 1]
        verl_step(node.ckpt, step, world=8, ranks=ranks, driver=number == 0, n=n, seed=seed)


def ended(running):
    return [each.wait() for each in running]


def commit(nodes):
    done = ended([node.start("run", "--once") for node in nodes])
    assert [each.code for each in done] == [0] * len(nodes), "\n".join(each.err for each in done)


def empty(*nodes):
    """As if their disks had been replaced."""
    for node in nodes:
        for path in (node.ckpt, node.staging, node.state):
            if path.exists():
                path.rename(node.home / f"lost-{os.urandom(4).hex()}")
        node.ckpt.mkdir()


def start(nodes, timeout="60s", **options):
    command = ("pull", "--json", "--attempt", "job-1", "--timeout", timeout, "--nodes", len(NAMES))
    return [node.start(*command, **options) for node in nodes]


def results(running):
    done = ended(running)
    assert [each.code for each in done] == [0] * len(done), "\n".join(each.err for each in done)
    return [json.loads(each.out) for each in done]


def until(seen, running):
    deadline = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < deadline, running.err.read_text()
        time.sleep(0.005)


def restoring(node):
    """Whether a restore has begun here, and is not over."""
    directory = node.staging / "restore"
    return directory.is_dir() and any(directory.iterdir())


def alive(running):
    """Whether a command has not ended yet; it is not waited for."""
    with open(f"/proc/{running.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def stand_on(nodes, step, tree_of):
    trees = [tree_of(node.ckpt / f"global_step_{step}") for node in nodes]
    assert all(tree == trees[0] for tree in trees)
    assert len([path for path in trees[0] if path.endswith(b".pt")]) == 3 * 8 + 1
    for node in nodes:
        assert node.named() == f"global_step_{step}"
        assert node.tracker.read_text() == str(step)
        assert node.leftovers() == []


def test_hosts_commit_one_step_and_give_each_other_what_the_store_gave(nodes, tree_of):
    save(nodes, 20)
    commit(nodes)
    empty(*nodes)
    found = results(start(nodes))
    size = sum(path.stat().st_size for path in (nodes[0].ckpt / "global_step_20").rglob("*") if path.is_file())
    assert sum(each["bytes_fetched"] for each in found) <= 1.2 * size
    assert all(each["bytes_from_peers"] > 0 for each in found)
    stand_on(nodes, 20, tree_of)


@pytest.mark.parametrize("limits", [LIMITS, pytest.param(None, marks=pytest.mark.deep)], ids=["quick", "real times"])
def test_a_cable_that_is_cut_during_the_pull_stops_one_node_with_an_error_and_no_other(nodes, hosts, tree_of, limits):
    save(nodes, 20)
    commit(nodes)
    empty(*nodes)
    hosts.slow("n3", "2mbit")  # so that it cannot be through before the cut
    running = start(nodes, limits=limits)
    until(lambda: restoring(nodes[3]), running[3])
    hosts.cut("n3")
    cut = running.pop()
    assert {each["step"] for each in results(running)} == {20}
    assert cut.wait().code == 6
    assert " attempts (check " in cut.done.line
    assert not (nodes[3].ckpt / "global_step_20").exists()
    assert nodes[3].named() is None
    hosts.mend("n3")
    hosts.quick("n3")
    assert {each["round"] for each in results(start(nodes[3:]))} == {1}
    stand_on(nodes, 20, tree_of)


@pytest.mark.deep  # half a minute, most of it on the slow cable
def test_a_node_with_a_slow_cable_restores_later_and_holds_nobody_up(nodes, hosts, tree_of):
    save(nodes, 20)
    commit(nodes)
    empty(*nodes)
    hosts.slow("n3", "1mbit")
    running = start(nodes)
    slow = running.pop()
    assert {each["step"] for each in results(running)} == {20}
    assert alive(slow), "the others were through before it"
    hosts.quick("n3")
    assert {each["step"] for each in results([slow])} == {20}
    stand_on(nodes, 20, tree_of)


def test_a_cable_that_is_cut_before_the_offer_costs_the_others_their_timeout(nodes, hosts, tree_of):
    """The newest save lies on four disks; one of them cannot be reached: what is committed counts."""
    save(nodes, 20)
    commit(nodes)
    save(nodes, 30, seed=3)
    hosts.cut("n3")
    running = start(nodes, timeout="2s", limits=LIMITS)
    cut = running.pop()
    found = results(running)
    assert {each["step"] for each in found} == {20}
    assert cut.wait().code == 6
    hosts.mend("n3")
    assert {each["step"] for each in results(start(nodes[3:]))} == {20}
    stand_on(nodes, 20, tree_of)


@pytest.mark.deep  # the others wait out their timeout
def test_an_upload_that_does_not_get_on_costs_the_others_their_timeout(nodes, hosts, tree_of):
    """Each node holds a share of the newest save, and one of them has a cable that carries next to nothing."""
    save(nodes, 20)
    commit(nodes)
    save(nodes, 30, seed=3)
    hosts.slow("n3", "64kbit")
    running = start(nodes, timeout="15s")
    slow = running.pop()
    until(lambda: "step 30 is uploaded" in slow.err.read_text(), slow)
    assert {each["step"] for each in results(running)} == {20}
    assert alive(slow), "it still uploads"
    hosts.quick("n3")
    assert {each["step"] for each in results([slow])} == {20}
    stand_on(nodes, 20, tree_of)
