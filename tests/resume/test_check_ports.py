"""The check `ports`, with real sockets."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from resuming import ROLLOUT, context_of, now

from ckptsync.resume.checks import ports
from ckptsync.resume.machine import sockets
from ckptsync.testing.checkpoints import layered_step, verl_step

ADDRESSES = [
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET, "0.0.0.0"),
    (socket.AF_INET6, "::1"),
    (socket.AF_INET6, "::"),
]
TORCHRUN = ("torchrun", "--nproc_per_node", "8")


@contextmanager
def listening(port=0, family=socket.AF_INET, address="127.0.0.1"):
    """A listener of this process; yields its port."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            server.bind((address, port))
        except OSError:
            pytest.skip(f"{address} port {port} cannot be had here")
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture
def free():
    """A port that is free now."""
    with listening() as port:
        pass
    return port


def check(tmp_path, **given):
    return ports.check(context_of(tmp_path, **given))


def configured(*numbers):
    return f"[preflight]\nports = {list(numbers)}"


class TestConfigured:
    def test_a_free_port_passes(self, tmp_path, free):
        outcome = check(tmp_path, more=configured(free))
        assert (outcome.status, outcome.message) == ("pass", f"free: {free} ([preflight] ports)")

    @pytest.mark.parametrize(("family", "address"), ADDRESSES)
    def test_one_that_is_held_on_any_address_fails_and_names_the_process(self, tmp_path, family, address):
        with listening(family=family, address=address) as port:
            outcome = check(tmp_path, more=configured(port))
        assert outcome.status == "fail"
        assert f"port {port} ([preflight] ports) is held by " in outcome.message
        assert f"(pid {os.getpid()}, " in outcome.message
        assert f" on {address}" in outcome.message
        assert f"kill {os.getpid()}" in outcome.remedy

    def test_the_process_is_another_one_with_its_command(self, tmp_path, free):
        script = (
            "import socket, sys, time; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen();"
            "print('ready', flush=True); time.sleep(600)"
        )
        child = subprocess.Popen(
            ["some-server", "-c", script, str(free)], executable=sys.executable, stdout=subprocess.PIPE
        )
        try:
            assert child.stdout.readline() == b"ready\n"
            outcome = check(tmp_path, more=configured(free))
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        assert "some-server -c import socket" in outcome.message
        assert f"(pid {child.pid}, " in outcome.message

    def test_a_port_that_is_bound_and_not_listened_on_is_held_too(self, tmp_path):
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            outcome = check(tmp_path, more=configured(bound.getsockname()[1]))
        assert outcome.status == "fail"
        assert "a process that cannot be seen from here" in outcome.message

    def test_a_connection_that_has_ended_holds_nothing(self, tmp_path):
        with listening() as port, socket.create_connection(("127.0.0.1", port)) as client:
            assert client.getpeername()[1] == port
        assert check(tmp_path, more=configured(port)).status == "pass"

    def test_without_any_known_port_it_is_skipped(self, tmp_path):
        outcome = check(tmp_path)
        assert outcome.status == "skip"
        assert "[preflight] ports" in outcome.remedy


class TestRollout:
    def test_the_port_that_the_start_names_must_be_free_and_the_remedy_moves_it(self, tmp_path):
        with listening() as port:
            outcome = check(tmp_path, now=now({f"{ROLLOUT}.port": port}))
        assert outcome.status == "fail"
        assert f"port {port} (rollout engine)" in outcome.message
        other = int(outcome.remedy.partition(f"add {ROLLOUT}.port=")[2].partition(",")[0])
        assert other > port
        assert sockets.is_free(other)

    def test_by_default_it_is_20014(self, tmp_path):
        step = layered_step(tmp_path / "out", 40)
        with listening(20014):
            outcome = check(tmp_path, step=step)
            assert outcome.status == "fail"
            assert "port 20014 (rollout engine)" in outcome.message
            moved = check(tmp_path, step=step, now=now({f"{ROLLOUT}.port": 20999}))
            assert "20014" not in moved.message

    def test_settings_of_an_rl_trainer_are_enough_to_expect_it(self, tmp_path):
        with listening(20014):
            assert check(tmp_path, now=now({f"{ROLLOUT}.n": 8})).status == "fail"

    def test_a_trainer_that_is_known_to_have_no_such_option_needs_no_such_port(self, tmp_path):
        resolved = now({f"{ROLLOUT}.name": "vllm"}, complete=True)
        assert "20014" not in check(tmp_path, step=verl_step(tmp_path / "out", 10), now=resolved).message


class TestTorchrun:
    @pytest.mark.parametrize(
        ("words", "port"),
        [
            ((*TORCHRUN, "--master_port=29777", "train.py"), 29777),
            ((*TORCHRUN, "--master-port", "29777", "train.py"), 29777),
            ((*TORCHRUN, "--master_addr", "127.0.0.1", "--master_port", "29777", "train.py"), 29777),
            (("python3", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"), 29500),
            ((*TORCHRUN, "--node_rank=0", "train.py"), 29500),
            ((*TORCHRUN, "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29888", "train.py"), 29888),
            ((*TORCHRUN, "--rdzv-backend", "c10d", "--rdzv-endpoint", "[::1]:29888", "train.py"), 29888),
            ((*TORCHRUN, "--rdzv-backend", "c10d", "train.py"), 29400),
        ],
    )
    def test_its_port_is_the_one_that_its_options_say(self, tmp_path, words, port):
        with listening(port):
            outcome = check(tmp_path, words=words)
        assert outcome.status == "fail"
        assert f"port {port} (torchrun's " in outcome.message
        assert "on all nodes" in outcome.remedy

    @pytest.mark.parametrize(
        "words",
        [
            (*TORCHRUN, "--standalone", "train.py"),
            (*TORCHRUN, "--node_rank=1", "train.py"),
            (*TORCHRUN, "--master_addr=10.255.255.1", "train.py"),
            (*TORCHRUN, "--rdzv_backend=c10d", "--rdzv_endpoint=head.invalid:29500", "train.py"),
            ("python3", "train.py"),
        ],
    )
    def test_a_start_that_opens_no_port_here_needs_none(self, tmp_path, words):
        assert check(tmp_path, words=words).status == "skip"

    def test_without_torchrun_the_environment_tells(self, tmp_path):
        with listening() as port:
            env = {"MASTER_PORT": str(port)}
            outcome = check(tmp_path, env=env)
            assert outcome.status == "fail"
            assert "(MASTER_PORT)" in outcome.message
            assert check(tmp_path, env={**env, "MASTER_ADDR": "10.255.255.1"}).status == "skip"
            assert check(tmp_path, env={**env, "RANK": "8"}).status == "skip"
            assert check(tmp_path, env={**env, "MASTER_ADDR": socket.gethostname()}).status == "fail"


class TestRay:
    HEAD = ("ray", "start", "--head", "--port=26379", "--dashboard-port=28265")

    def test_a_start_of_ray_itself_needs_its_ports(self, tmp_path):
        with listening(26379):
            outcome = check(tmp_path, words=self.HEAD)
        assert outcome.status == "fail"
        assert "port 26379 (ray start --head)" in outcome.message
        assert "free" not in outcome.message
        assert check(tmp_path, words=self.HEAD).status == "pass"
        assert check(tmp_path, words=("ray", "start", "--address=10.0.0.1:6379")).status == "skip"
        with listening(26379):
            assert check(tmp_path, words=("my-ray", "stop", "start", "--head", "--port=26379")).status == "skip"

    def test_a_trainer_that_uses_ray_is_only_warned_of_who_holds_rays_port(self, tmp_path):
        step = verl_step(tmp_path / "out", 10)
        with listening(6379):
            outcome = check(tmp_path, step=step)
            assert outcome.status == "warn"
            assert "port 6379 (Ray)" in outcome.message
            assert "ray start --head" in outcome.remedy
            assert "6379" not in check(tmp_path, step=step, env={"RAY_ADDRESS": "auto"}).message

    def test_a_ray_of_this_user_is_expected_to_hold_them(self, tmp_path):
        python = shutil.which(sys.executable)
        script = (
            "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 26379)); s.listen();"
            "print('ready', flush=True); time.sleep(600)"
        )
        title = "/site-packages/ray/core/src/ray/gcs/gcs_server"
        child = subprocess.Popen([title, "-c", script], executable=python, stdout=subprocess.PIPE)
        try:
            assert child.stdout.readline() == b"ready\n"
            outcome = check(tmp_path, words=self.HEAD)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        assert outcome.status == "pass"
        assert "26379: the Ray that runs here holds it" in outcome.message


class TestSockets:
    def test_another_users_port_is_judged_without_a_name(self, tmp_path, monkeypatch):
        with listening() as port:
            monkeypatch.setattr(ports, "holder", lambda _: sockets.PortHolder(None, "0.0.0.0"))
            outcome = check(tmp_path, more=configured(port))
            assert "cannot be seen from here" in outcome.message
            monkeypatch.setattr(ports, "holder", lambda _: sockets.PortHolder(2**22 + 1, "0.0.0.0"))
            assert "held by pid 4194305 on 0.0.0.0" in check(tmp_path, more=configured(port)).message

    def test_the_next_free_port_is_neither_held_nor_wanted(self):
        with listening() as port:
            other = sockets.next_free(port - 1, frozenset({port + 1}))
            assert other is not None
            assert other > port + 1
        assert sockets.next_free(65535, frozenset()) is None

    def test_a_port_that_we_may_not_try_is_looked_up(self, monkeypatch):
        def refuse(*_):
            raise PermissionError

        with listening() as port:
            monkeypatch.setattr(socket.socket, "bind", refuse)
            assert not sockets.is_free(port)
        assert sockets.is_free(port)
