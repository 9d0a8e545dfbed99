"""What a signature is good for, and what it is not."""

from __future__ import annotations

import os

import pytest

from ckptsync.errors import ConfigError
from ckptsync.peers.auth import AGE_TOLERANCE_S, Refusal, Secret, Verifier, read_secret, sign

SECRET = Secret(b"0123456789abcdef")
TARGET = "/v1/chunks/" + "ab" * 32


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def server(clock):
    return Verifier(SECRET, "run", clock)


def signed(server, *, secret=SECRET, run="run", name=None, age=None, target=TARGET):
    return sign(secret, run, name or server.server, server.age_s if age is None else age, target)


def test_a_signed_request_is_answered_once(server):
    header = signed(server)
    server.check(header, TARGET)
    with pytest.raises(Refusal, match="seen before"):
        server.check(header, TARGET)
    server.check(signed(server), TARGET)


@pytest.mark.parametrize(
    "change",
    [
        {"secret": Secret(b"0123456789abcdeg")},
        {"run": "other"},
        {"target": TARGET[:-1] + "c"},
        {"target": TARGET + "?"},
    ],
)
def test_what_is_signed_is_all_that_counts(server, change):
    with pytest.raises(Refusal, match="wrong signature"):
        server.check(signed(server, **change), TARGET)


def test_another_server_of_the_run_does_not_take_it(server, clock):
    with pytest.raises(Refusal, match="another server"):
        Verifier(SECRET, "run", clock).check(signed(server), TARGET)


@pytest.mark.parametrize("late", [AGE_TOLERANCE_S + 2, 600, -AGE_TOLERANCE_S - 2])
def test_it_is_not_good_for_long(server, clock, late):
    clock.now += 10_000
    header = signed(server, age=server.age_s - late)
    with pytest.raises(Refusal, match="too long ago"):
        server.check(header, TARGET)


def test_a_nonce_is_remembered_for_as_long_as_its_request_is_good(server, clock):
    clock.now += 1000
    header = signed(server, age=server.age_s + AGE_TOLERANCE_S - 1)
    server.check(header, TARGET)
    for _ in range(2 * int(AGE_TOLERANCE_S) - 2):
        clock.now += 1
        server.check(signed(server), TARGET)
        with pytest.raises(Refusal, match="seen before"):
            server.check(header, TARGET)
    clock.now += 10 * AGE_TOLERANCE_S
    server.check(signed(server), TARGET)
    assert len(server._seen) == len(server._expiring) == 1


@pytest.mark.parametrize("header", [None, "", "Bearer x", "ckptsync-1", "ckptsync-1 server=" + "g" * 32])
def test_anything_else_is_not_signed(server, header):
    with pytest.raises(Refusal, match="not signed"):
        server.check(header, TARGET)


def test_no_part_of_the_header_can_be_changed(server):
    header = signed(server)
    for position in range(len("ckptsync-1 "), len(header)):
        changed = header[:position] + ("0" if header[position] != "0" else "1") + header[position + 1 :]
        with pytest.raises(Refusal):
            server.check(changed, TARGET)
    server.check(header, TARGET)


def test_fields_do_not_run_into_each_other(clock):
    a = Verifier(SECRET, "run1", clock)
    header = sign(SECRET, "run", "1" + a.server, 0, TARGET).replace("server=1", "server=")
    with pytest.raises(Refusal, match="wrong signature"):
        a.check(header, TARGET)


def test_strangers_do_not_fill_the_memory(server):
    for _ in range(50):
        with pytest.raises(Refusal):
            server.check(signed(server, secret=Secret(b"x" * 16)), TARGET)
    assert not server._seen


class TestSecretFile:
    def write(self, path, data=b"  0123456789abcdef\n", mode=0o600):
        path.write_bytes(data)
        path.chmod(mode)
        return str(path)

    @pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
    def test_white_space_does_not_count(self, tmp_path, mode):
        assert read_secret(self.write(tmp_path / "s", mode=mode)) == SECRET

    @pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o602, 0o601])
    def test_one_that_others_can_read_is_none(self, tmp_path, mode):
        with pytest.raises(ConfigError, match="others may read it") as caught:
            read_secret(self.write(tmp_path / "s", mode=mode))
        assert caught.value.remedy == "chmod 600"

    @pytest.mark.parametrize("data", [b"", b" \n", b"0123456789abcde", b"x" * 5000])
    def test_short_and_endless_ones_are_refused(self, tmp_path, data):
        with pytest.raises(ConfigError, match="16 to 4096 bytes"):
            read_secret(self.write(tmp_path / "s", data))

    def test_what_is_no_file_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe"):
            with pytest.raises(ConfigError, match="cannot use the peers' secret"):
                read_secret(str(path))

    def test_no_error_and_no_repr_shows_it(self, tmp_path):
        path = self.write(tmp_path / "s", mode=0o644)
        with pytest.raises(ConfigError) as caught:
            read_secret(path)
        assert "0123456789" not in f"{caught.value!s}{caught.value!r}{SECRET!r}"
