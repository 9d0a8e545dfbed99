"""From the configuration to an exchange."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ckptsync.config import parse
from ckptsync.errors import ConfigError
from ckptsync.peers.opening import check_peers, open_exchange


@pytest.fixture
def read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)

    def make(peer):
        text = f'[run]\noutput_dir = "/o"\n[peer]\n{peer}\nsecret_file = "{secret}"\n'
        return parse(text.encode(), None, {})

    return make


def test_it_is_off_until_it_is_configured(read):
    assert open_exchange(parse(b'[run]\noutput_dir = "/o"\n', None, {}), give=True) is None
    assert open_exchange(read(""), give=True) is None
    assert open_exchange(read('listen = "127.0.0.1:7070"'), give=False) is None


def test_who_gives_nothing_may_take(read):
    with open_exchange(read('daemons = ["127.0.0.1:7070"]\nlisten = "127.0.0.1:7071"'), give=False) as exchange:
        assert exchange.address == ""
        assert not exchange.alone


def test_a_wildcard_is_announced_as_an_address(read):
    with open_exchange(read('listen = "0.0.0.0:17070"'), give=True, spare_ports=7) as exchange:
        assert not exchange.address.startswith("0.0.0.0")
        assert exchange.address.rpartition(":")[0]


def test_a_pull_that_cannot_listen_takes_all_the_same(read, caplog):
    table = 'listen = "192.0.2.1:7070"\ndaemons = ["127.0.0.1:7070"]'
    with open_exchange(read(table), give=True, spare_ports=7) as exchange:
        assert exchange.address == ""
        assert not exchange.alone
        exchange.linger()
    assert caplog.text.count("this node gives no chunks to others: cannot listen for peers") == 1
    with pytest.raises(ConfigError, match="cannot listen for peers"), open_exchange(read(table), give=True):
        pass


def test_nothing_but_the_exchange_needs_the_extra():
    program = """
import sys
sys.modules["aiohttp"] = None
import ckptsync.cli.pull, ckptsync.actions.pull, ckptsync.daemon.service, ckptsync.sync.restore
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_the_extra_the_remedy_is_named(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for refused in (check_peers, lambda config: open_exchange(config, give=True)):
        with pytest.raises(ConfigError, match="needs a package that is not installed") as caught:
            refused(read('listen = "127.0.0.1:7070"'))
        assert "pip install 'ckptsync[peers]'" in str(caught.value)
