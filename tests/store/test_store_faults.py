"""What a store's failures become: against a real S3 server, and against one that replies what the test says."""

from __future__ import annotations

import http.server
import os
import tempfile
import threading
import time
from urllib.parse import unquote

import pytest

from ckptsync.errors import KeyMissing, StoreError, StoreRefused, StoreUnavailable
from ckptsync.store.fsspec import open_fsspec
from ckptsync.store.objects import open_objects
from ckptsync.store.options import StoreOptions
from ckptsync.testing.seaweed import SeaweedFS

CALLS = {
    "put_new": lambda store: store.put_new("run/a", b"x"),
    "put": lambda store: store.put("run/a", b"x"),
    "get": lambda store: store.get("run/a", max_size=9),
    "head": lambda store: store.head("run/a"),
    "list": lambda store: list(store.list("run")),
    "children": lambda store: store.children("run"),
    "delete": lambda store: store.delete("run/a"),
}
OPENERS = {"obstore": open_objects, "fsspec": open_fsspec}


@pytest.fixture(params=OPENERS)
def opened(request):
    """A function that opens a store, and closes it after the test."""
    stores = []

    def open_store(url, **options):
        stores.append(OPENERS[request.param](url, StoreOptions(**options)))
        return stores[-1]

    open_store.driver = request.param
    yield open_store
    for store in stores:
        if request.param == "fsspec":
            store.close()


def fails(call, error, match=None):
    """Assert exactly this class, one line, no secret; return the error."""
    with pytest.raises(error, match=match) as caught:
        call()
    assert type(caught.value) is error
    text = str(caught.value) + repr(caught.value)
    assert "\n" not in text
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text
    return caught.value


def test_wrong_secret_is_refused_by_every_call(opened, s3_server, s3_environ, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-canary")
    store = opened(s3_server.url("refused"))
    for name, call in CALLS.items():
        error = fails(lambda call=call: call(store), StoreRefused, "403")
        assert "credentials" in error.remedy, name


def test_unknown_key_id_is_refused(opened, s3_server, s3_environ, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    store = opened(s3_server.url("refused"))
    fails(lambda: store.put_new("run/a", b"x"), StoreRefused, "InvalidAccessKeyId")


def test_anonymous_is_refused(opened, s3_server, s3_environ):
    store = opened(s3_server.url("refused"), anonymous=True)
    fails(lambda: list(store.list("run")), StoreRefused)


def test_a_missing_bucket_is_no_empty_store(opened, s3_server, s3_environ):
    store = opened("s3://no-such-bucket/prefix")
    for name, call in CALLS.items():
        if name == "head" or (name, opened.driver) in {("get", "fsspec"), ("delete", "fsspec")}:
            continue  # a HEAD has no body that could say so; s3fs looks by HEAD before a get; a delete is fine
        fails(lambda call=call: call(store), StoreError, "no such bucket")


def test_a_second_server_is_its_own_and_when_down_unavailable_and_comes_back(
    s3_server, s3_environ, monkeypatch, tmp_path
):
    deep = tmp_path / ("d" * 100)  # the name of a Unix socket in it is longer than the kernel takes
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with SeaweedFS() as server:
        assert server.endpoint != s3_server.endpoint
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        stores = [open_objects(server.url("p")), open_fsspec(server.url("p"))]
        stores[0].put("run/a", b"kept")
        assert stores[1].get("run/a", max_size=9) == b"kept"
        server.stop()
        for store in stores:
            for call in CALLS.values():
                assert fails(lambda call=call, store=store: call(store), StoreUnavailable).retryable
        server.start()
        for store in stores:
            assert store.get("run/a", max_size=9) == b"kept"
        assert open_objects(s3_server.url("p"), StoreOptions(endpoint=s3_server.endpoint)).head("run/a") is None
        stores[1].close()
    assert not server._directory.exists()


def test_no_credentials_is_refused_with_a_remedy(s3_environ, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreRefused, match="AWS_PROFILE"):
        open_objects("s3://bucket")


def test_a_profile_is_used_or_named_when_missing(s3_server, s3_environ, monkeypatch, tmp_path):
    config = tmp_path / "credentials"
    config.write_text(
        f"[team]\naws_access_key_id={s3_server.access_key}\naws_secret_access_key={s3_server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(config))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_objects(s3_server.url("profile"), StoreOptions(profile="team", endpoint=s3_server.endpoint))
    assert store.put_new("run/a", b"x")
    with pytest.raises(Exception, match="nobody"):
        open_objects(s3_server.url(), StoreOptions(profile="nobody"))


def test_both_drivers_see_the_same_keys(s3_server, s3_environ):
    one, other = open_objects(s3_server.url("both")), open_fsspec(s3_server.url("both"))
    name = "run/a%2Fb/node@x%252F"
    one.put(name, b"x")
    assert other.get(name, max_size=9) == b"x"
    assert [meta.key for meta in other.list("run")] == [name]
    assert other.put_new(name, b"y") is False
    other.put("run/c", b"z")
    assert [meta.key for meta in one.list("run")] == [name, "run/c"]
    other.close()


def test_foreign_objects_are_passed_over(s3_server, s3_environ):
    store = open_objects(s3_server.url("foreign"))
    outside = open_fsspec(s3_server.url("foreign"))
    store.put("run/a", b"x")
    for name in ("run/sp ace", "run/a#0123456789abcdef", "run/é"):
        outside._fs.pipe_file(f"{s3_server.bucket}/foreign/{name}", b"x")
    for each in (store, outside):
        assert [meta.key for meta in each.list("run")] == ["run/a"]
    outside.close()


class Scripted(http.server.BaseHTTPRequestHandler):
    """Replies the status in `server.script`; remembers the requests."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        status, code = self.server.script
        if status == 0:  # hang
            self.server.release.wait()
            self.close_connection = True
            return
        body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode() if code else b""
        self.send_response(status)
        if status == 200:
            self.send_header("last-modified", "Sun, 29 Nov 2026 16:41:48 GMT")
            self.send_header("etag", '"x"')
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
            return
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do_POST = answer  # noqa: N815 - the base class looks for these names

    def log_message(self, *args):
        pass


@pytest.fixture
def scripted(s3_environ, monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.requests, server.script, server.release = [], (200, ""), threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


REPLIES = [
    (409, "ConditionalRequestConflict", StoreUnavailable),
    (429, "", StoreUnavailable),
    (500, "InternalError", StoreUnavailable),
    (502, "", StoreUnavailable),
    (503, "SlowDown", StoreUnavailable),
    (400, "RequestTimeout", StoreUnavailable),
    (401, "", StoreRefused),
    (403, "AccessDenied", StoreRefused),
    (403, "RequestTimeTooSkewed", StoreRefused),
    (400, "ExpiredToken", StoreRefused),
    (400, "InvalidRequest", StoreError),
    (400, "AuthorizationHeaderMalformed", StoreError),
    (301, "PermanentRedirect", StoreError),
    (404, "NoSuchBucket", StoreError),
    (501, "NotImplemented", StoreError),
]


def test_replies_become_the_right_errors_after_one_request(opened, scripted):
    store = opened("s3://bucket/prefix", region="us-east-1", addressing="path")
    for status, code, error in REPLIES:
        scripted.script = (status, code)
        scripted.requests.clear()
        fails(lambda: store.put_new("run/a", b"x"), error)
        puts = [path for command, path, _ in scripted.requests if command == "PUT"]
        assert puts == ["/bucket/prefix/run/a"], (status, code)


def test_exists_is_not_an_error(opened, scripted):
    store = opened("s3://bucket/prefix", region="us-east-1", addressing="path")
    for status, code in [(412, "PreconditionFailed"), (409, "FileAlreadyExists")]:
        scripted.script = (status, code)
        assert store.put_new("run/a", b"x") is False
        _, _, headers = scripted.requests[-1]
        assert {name.lower(): value for name, value in headers.items()}["if-none-match"] == "*"


def test_a_large_object_is_one_request_and_unsigned(scripted):
    scripted.script = (503, "SlowDown")
    fails(lambda: open_objects("s3://bucket").put("run/a", bytes(20 * 2**20)), StoreUnavailable, "SlowDown: said so")
    ((command, _, headers),) = scripted.requests
    assert command == "PUT"
    assert headers["content-length"] == str(20 * 2**20)
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_a_body_that_breaks_off_is_unavailable(scripted):
    fails(lambda: open_objects("s3://bucket").get("run/a", max_size=1000), StoreUnavailable)


def test_a_server_that_hangs_is_unavailable(scripted):
    scripted.script = (0, "")
    store = open_objects("s3://bucket", StoreOptions(timeout_s=0.2))
    fails(lambda: store.put_new("run/a", b"x"), StoreUnavailable, "timed out")


def test_the_proxy_of_the_environment_is_used(scripted, monkeypatch):
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", os.environ["AWS_ENDPOINT_URL"])
    scripted.script = (503, "FromProxy")
    store = open_objects("s3://bucket", StoreOptions(endpoint="http://store.invalid:9000"))
    fails(lambda: store.get("run/a", max_size=1), StoreUnavailable, "FromProxy")
    assert scripted.requests[-1][1] == "http://store.invalid:9000/bucket/run/a"


def test_virtual_hosts_carry_the_bucket(scripted, monkeypatch):
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTP_PROXY", os.environ["AWS_ENDPOINT_URL"])
    scripted.script = (404, "NoSuchKey")
    options = StoreOptions(endpoint="http://store.invalid:9000", addressing="virtual")
    with pytest.raises(KeyMissing):
        open_objects("s3://bucket", options).get("run/a", max_size=1)
    assert scripted.requests[-1][1] == "http://bucket.store.invalid:9000/run/a"


def test_plain_http_where_tls_is_spoken_names_the_remedy(scripted, monkeypatch):
    endpoint = os.environ["AWS_ENDPOINT_URL"].replace("http://", "https://")
    store = open_objects("s3://bucket", StoreOptions(endpoint=endpoint))
    error = fails(lambda: store.get("run/a", max_size=1), StoreError, "TLS")
    assert "ca_file" in error.remedy


def test_an_unknown_host_is_unavailable(s3_environ):
    store = open_objects("s3://bucket", StoreOptions(endpoint="http://no-such-host.invalid"))
    error = fails(lambda: store.get("run/a", max_size=1), StoreUnavailable)
    assert "network" in error.remedy


@pytest.mark.parametrize(
    ("url", "conditional"), [("gs://bucket/p", "x-goog-if-generation-match"), ("az://box/p", "if-none-match")]
)
def test_other_clouds_create_conditionally_in_one_request(scripted, monkeypatch, url, conditional):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "not-a-token")  # else the metadata service of the machine is asked
    scripted.script = (503, "ServerBusy")
    store = open_objects(url, StoreOptions(endpoint=os.environ["AWS_ENDPOINT_URL"], anonymous=True))
    fails(lambda: store.put_new("run/a", b"x"), StoreUnavailable, "503 ServerBusy")
    ((command, path, headers),) = scripted.requests
    assert command == "PUT"
    assert unquote(path).endswith("/p/run/a")
    assert conditional in headers


def test_what_azure_calls_a_conflict_is_exists(scripted, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    scripted.script = (409, "BlobAlreadyExists")
    store = open_objects("az://box/p", StoreOptions(endpoint=os.environ["AWS_ENDPOINT_URL"], anonymous=True))
    assert store.put_new("run/a", b"x") is False


def test_s3_times_are_the_stores(s3_server, s3_environ):
    store = open_objects(s3_server.url("times"))
    before = time.time_ns()
    store.put("run/a", b"x")
    meta = store.head("run/a")
    assert abs(meta.modified_ns - before) < 60 * 10**9
