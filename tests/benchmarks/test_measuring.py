"""What is measured of a child process, and counted of its requests."""

from __future__ import annotations

import os
import socket
import sys
import threading

import pytest

from benchmarks.cases import CASES, find
from benchmarks.data import link_tree
from benchmarks.dated import redated
from benchmarks.measure import CommandFailed, cached_bytes, evict, run, warm
from benchmarks.proxy import counting
from benchmarks.server import Server

MIB = 1 << 20


def python(code):
    return [sys.executable, "-c", code]


def test_the_children_of_a_process_count_as_its_own(tmp_path):
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    usage = run(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"), cwd=tmp_path)
    assert usage.cpu_s >= 0.3
    assert usage.wall_s > 0


def test_bytes_read_are_those_of_its_read_calls(tmp_path):
    (tmp_path / "data").write_bytes(bytes(20 * MIB))
    nothing = run(python("pass"), cwd=tmp_path).read_bytes
    twice = run(python("[open('data', 'rb').read() for _ in range(2)]"), cwd=tmp_path).read_bytes
    assert 40 * MIB <= twice - nothing < 41 * MIB


def test_memory_is_the_greatest_that_it_was(tmp_path):
    assert run(python("bytearray(64 << 20)"), cwd=tmp_path).resident_mib > 64


def test_a_command_that_fails_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(CommandFailed, match="exit 3\nalas"):
        run(python("import sys; print('alas', file=sys.stderr); sys.exit(3)"), cwd=tmp_path)


def test_evicted_files_leave_the_page_cache_and_warm_ones_are_in_it(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(os.urandom(8 * MIB))
    evict([file])
    if cached_bytes([file]) == 8 * MIB:
        pytest.skip("this file system keeps its files in memory")
    assert cached_bytes([file]) < MIB
    warm([file])
    assert cached_bytes([file]) == 8 * MIB


def test_a_linked_tree_shares_the_bytes_and_not_the_directories(tmp_path):
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "file").write_text("x")
    link_tree(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b/sub/file").samefile(tmp_path / "a/sub/file")
    assert not (tmp_path / "b/sub").samefile(tmp_path / "a/sub")


def test_listings_are_counted_apart_from_other_requests():
    requests = [b"GET /bench?list-type=2&prefix=x HTTP/1.1", b"GET /bench/key HTTP/1.1", b"PUT /bench/key HTTP/1.1"]
    with socket.create_server(("127.0.0.1", 0)) as echo:
        echoing = threading.Thread(target=_echo, args=(echo,))
        echoing.start()
        server = Server(f"http://127.0.0.1:{echo.getsockname()[1]}", "bench", {})
        with counting(server) as (counted, counts):
            assert counted.environ["AWS_ENDPOINT_URL"] == counted.endpoint != server.endpoint
            address = ("127.0.0.1", int(counted.endpoint.rpartition(":")[2]))
            with socket.create_connection(address) as client:
                for request in requests:
                    client.sendall(request + b"\r\n\r\n")
                    assert client.recv(1000) == request + b"\r\n\r\n"  # the answer is behind the counting
        echoing.join()
        assert counts.requests == {"LIST": 1, "GET": 1, "PUT": 1}
        assert counts.answered == sum(len(request) + 4 for request in requests)


def _echo(listener):
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1000):
            connection.sendall(data)


def test_each_object_of_a_list_is_dated_by_its_step_and_nothing_else_is():
    def listed(*objects):
        inner = "".join(
            f"<Contents><Key>{key}</Key><LastModified>{when}</LastModified></Contents>" for key, when in objects
        )
        return f"<ListBucketResult><Prefix>b/steps/</Prefix>{inner}</ListBucketResult>".encode()

    now = "2026-05-01T10:00:00.000Z"
    keys = ["b/steps/000000000001/parts/x", "b/steps/000000000020/commits/y", "b/pins/1"]
    assert redated(listed(*((key, now) for key in keys)), lambda step: step * 60.0) == listed(
        *zip(keys, ["1970-01-01T00:01:00.000Z", "1970-01-01T00:20:00.000Z", now], strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_chosen_and_says_what_it_does(name):
    case = find(name)
    assert case.title
    assert case.method.endswith(".")
