"""How to reach a store: the URL taken apart, and the options that no URL carries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from ckptsync.errors import ConfigError

__all__ = ["Addressing", "StoreOptions", "StoreUrl", "check_bucket", "check_endpoint", "parse_url", "read_ca_file"]

Addressing = Literal["auto", "path", "virtual"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_ENDPOINT = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_NO_SECRETS_REMEDY = "leave secrets out: AWS_PROFILE, environment, instance role, or a key file of the protocol"
_MALFORMED = "the store's URL is malformed"
_URL_SECRET = "the store's URL holds a user name or password"  # noqa: S105 - a message
_ENDPOINT_SECRET = "the store's endpoint holds a user name or password"  # noqa: S105 - a message
_FILE_HOSTS = ("", "localhost")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What `[upload]` says about a store besides its URL. No secrets: those come by reference.

    Attributes:
        endpoint: http(s) URL of an S3-compatible (or GCS, Azure) service; None = the provider's own.
        region: S3 region; None = from the profile or the environment.
        profile: profile in the AWS configuration files; None = the default chain.
        addressing: where the bucket's name goes: into the path, or before the host. "auto" = before the host on
            AWS itself, into the path elsewhere.
        ca_file: PEM file with the authorities to trust besides the system's.
        anonymous: sign nothing.
        timeout_s: longest time for one request, in seconds.
        connect_timeout_s: longest time to connect, in seconds.
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing: Addressing = "auto"
    ca_file: str | None = None
    anonymous: bool = False
    timeout_s: float = 120.0
    connect_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's URL: `bucket` is the bucket, container or host ("" for file), `prefix` the path without outer slashes.

    For file, `prefix` is the absolute directory.
    """

    scheme: str
    bucket: str
    prefix: str


def parse_url(url: str) -> StoreUrl:
    """Take a store's URL apart.

    Raises:
        ConfigError: not a URL, or one with a secret, a query, a fragment, a bad bucket or a bad path.
    """
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        raise _withheld(_MALFORMED) from None
    if password is not None or ("@" in parts.netloc and parts.scheme in ("s3", "gs", "az")):
        # the URL itself is not repeated: it holds the secret
        raise _withheld(_URL_SECRET)
    if not parts.scheme or "://" not in url:
        raise _bad(url, "it has no scheme", "write it like s3://bucket/prefix or file:///directory")
    if parts.query or parts.fragment:
        raise _bad(url, "it has a query or fragment", "use plain bucket and prefix; ? and # are not allowed")
    if parts.scheme == "file":
        return _file_url(url, parts.netloc, unquote(parts.path))
    prefix = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/") if prefix) or not prefix.isprintable():
        raise _bad(url, "its path has an empty, . or .. component, or a control character", "write it plainly")
    return StoreUrl(parts.scheme, parts.netloc, prefix)


def check_bucket(url: StoreUrl, text: str) -> StoreUrl:
    """Return `url` if its bucket can be one. Raises ConfigError."""
    if not _BUCKET.fullmatch(url.bucket):
        raise _bad(text, "it names no valid bucket", f"write it like {url.scheme}://bucket/prefix")
    return url


def check_endpoint(endpoint: str | None) -> str | None:
    """Return `endpoint` (without a final slash) if it is a plain http(s) URL. Raises ConfigError."""
    if endpoint is None:
        return None
    if "@" in endpoint:
        raise _withheld(_ENDPOINT_SECRET)
    if not _ENDPOINT.fullmatch(endpoint):
        what = "bad endpoint"
        raise ConfigError(what, where=endpoint, remedy="write it like https://s3.example.com:9000")
    return endpoint.rstrip("/")


def read_ca_file(path: str) -> bytes:
    """The authorities in a PEM file. Raises ConfigError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        what = "cannot read ca_file"
        raise ConfigError(what, where=path, why=error.strerror or str(error)) from None


def _file_url(url: str, host: str, path: str) -> StoreUrl:
    if host not in _FILE_HOSTS:
        raise _bad(url, f"it names the host {host!r}", "a directory takes three slashes: file:///directory")
    if not path.strip("/") or "\0" in path:
        raise _bad(url, "it names no directory", "write it like file:///directory")
    return StoreUrl("file", "", "/" + path.strip("/"))


def _withheld(what: str) -> ConfigError:
    """Does not repeat the text: there may be a secret in it."""
    return ConfigError(what, remedy=_NO_SECRETS_REMEDY)


def _bad(url: str, why: str, remedy: str) -> ConfigError:
    return ConfigError("bad store URL", where=url, why=why, remedy=remedy)
