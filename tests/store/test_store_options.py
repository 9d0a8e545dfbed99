from __future__ import annotations

import pytest

from ckptsync.errors import ConfigError
from ckptsync.store.fsspec import open_fsspec
from ckptsync.store.objects import open_objects
from ckptsync.store.options import StoreOptions, StoreUrl, check_endpoint, parse_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/a/b c/", StoreUrl("s3", "bucket", "a/b c")),
        ("file:///a/b%20c", StoreUrl("file", "", "/a/b c")),
        ("file://localhost/a", StoreUrl("file", "", "/a")),
        ("sftp://user@host:22/a", StoreUrl("sftp", "user@host:22", "a")),
    ],
)
def test_urls_are_taken_apart(url, expected):
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "bucket/prefix",
        "",
        "/a/b",
        "s3:/bucket",
        "s3://b/a//b",
        "s3://b/a/../b",
        "s3://b/a?x=1",
        "s3://b/a#x",
        "file://nfs/a",
        "file://",
        "file:///",
        "s3://[bad",
        "s3://b/a\x00b",
    ],
)
def test_bad_urls_are_refused_with_a_remedy(url):
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert caught.value.remedy


@pytest.mark.parametrize("url", ["s3://key:hunter2@bucket/x", "s3://hunter2@bucket", "sftp://me:hunter2@host/x"])
def test_secrets_in_urls_are_refused_and_not_repeated(url):
    for opener in (open_objects, open_fsspec):
        with pytest.raises(ConfigError) as caught:
            opener(url)
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://x", "http://bad host", "https://x/?a=b", "https://"])
def test_bad_endpoints_are_refused(endpoint):
    with pytest.raises(ConfigError, match="bad endpoint"):
        check_endpoint(endpoint)


def test_secrets_in_endpoints_are_not_repeated():
    with pytest.raises(ConfigError) as caught:
        check_endpoint("https://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


def test_good_endpoints_pass():
    assert check_endpoint("https://s3.example.com:9000/") == "https://s3.example.com:9000"
    assert check_endpoint("http://[::1]:80") == "http://[::1]:80"
    assert check_endpoint(None) is None


@pytest.mark.parametrize("url", ["s3:///x", "s3://-x/y", "s3://a b/y", "hdfs://x/y", "memory:///x"])
def test_obstore_refuses_what_it_cannot_open(url):
    with pytest.raises(ConfigError):
        open_objects(url)


def test_a_scheme_nobody_speaks_is_refused():
    with pytest.raises(ConfigError, match="cannot use the store"):
        open_fsspec("nonsense://x/y")


def test_a_file_system_without_rename_is_refused():
    with pytest.raises(ConfigError, match="neither put in one request nor rename"):
        open_fsspec("http://127.0.0.1/x")


def test_a_missing_ca_file_is_named(s3_environ, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        open_objects("s3://bucket", StoreOptions(ca_file=str(tmp_path / "nowhere.pem")))


def test_a_ca_file_without_certificates_is_refused(s3_environ, tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="No certificates"):
        open_objects("s3://bucket", StoreOptions(ca_file=str(tmp_path / "empty.pem")))
