"""The data path: object storage through obstore (the Rust crate object_store), and directories through files.py.

One request per call: objects are at most chunk size, never multipart, so that create-if-absent is one decision of
the server. obstore's own retries are off: a hidden retry of a create turns our own success into "exists".
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from ckptsync.errors import ConfigError, KeyMissing, StoreError, StoreRefused, StoreUnavailable
from ckptsync.store import keys
from ckptsync.store.base import Blob, Capabilities, ObjectMeta, Store
from ckptsync.store.environ import static_keys
from ckptsync.store.faults import EXISTS_CODES, from_reply, incomplete, missing, too_large
from ckptsync.store.files import FileStore
from ckptsync.store.options import StoreOptions, StoreUrl, check_bucket, check_endpoint, parse_url, read_ca_file

if TYPE_CHECKING:
    from obstore import ObjectMeta as RawMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as Backend

    from ckptsync.store.credentials import S3Credentials

__all__ = ["ObjectStore", "open_objects"]

_PAGE = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")
_PROVIDER = re.compile(r"credential provider: ([^\n]{1,300})")
_SYSTEM = re.compile(r'(?:message|error): "([^"\n]{1,200})"')
_TLS = re.compile(r"Invalid(?:Certificate|Message)\(\s*(\w+)|BadScheme|AlertReceived\(\s*(\w+)")
_TLS_REMEDY = "check http:// against https:// in the endpoint; set [upload] ca_file for a private authority"
_REGION_TEXT = "redirect without LOCATION"

_CREATE, _WRITE, _READ = "cannot create an object", "cannot write an object", "cannot read an object"
_LOOK, _LIST, _DELETE = "cannot look at an object", "cannot list", "cannot delete an object"
_NO_KEY_CODES = frozenset({"", "NoSuchKey", "BlobNotFound"})  # S3 and GCS; Azure; none with a HEAD
_CONFLICT = 409

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_objects(url: str, options: StoreOptions | None = None) -> Store:
    """The store behind an s3, gs, az, file or memory URL. Makes no request yet.

    Raises:
        ConfigError: the URL or an option cannot be.
        StoreRefused: there are no credentials.
    """
    options = options or StoreOptions()
    parsed = parse_url(url)
    if parsed.scheme == "file":
        return FileStore(parsed.prefix, url=url)
    opener = _OPENERS.get(parsed.scheme)
    if opener is None:
        what = "bad store URL"
        raise ConfigError(what, where=url, why=f"obstore does not speak {parsed.scheme}://")
    try:
        backend = opener(check_bucket(parsed, url), options)
    except (BaseError, ValueError) as error:
        why = str(error).partition("\n")[0]
        what = "cannot use the store"
        raise ConfigError(what, where=url, why=why) from None
    return ObjectStore(backend, url=url, prefix=parsed.prefix, capabilities=Capabilities(atomic_create=True))


class ObjectStore:
    """The Store protocol over an obstore backend.

    Args:
        backend: the obstore store of the bucket.
        url: how messages name it.
        prefix: below which all keys lie, without outer slashes; "" = the whole bucket.
        capabilities: what the service behind it promises.
    """

    def __init__(self, backend: Backend, *, url: str, prefix: str, capabilities: Capabilities) -> None:
        self._backend, self._url, self._capabilities = backend, url, capabilities
        self._base = f"{prefix}/" if prefix else ""

    def __repr__(self) -> str:
        return f"ObjectStore({self._url!r})"

    @property
    def url(self) -> str:
        """The store as the user wrote it."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """What the service promises."""
        return self._capabilities

    def put_new(self, key: str, data: Blob) -> bool:
        """Create `key` if it is absent, in one conditional request. True = created, False = something is there."""
        path = self._path(key)
        with self._faults(_CREATE, key):
            try:
                obstore.put(self._backend, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                status, code, message = _reply(error)
                if status == _CONFLICT and code not in EXISTS_CODES:  # undecided, not "exists"
                    raise from_reply(_CREATE, self._where(key), status=status, code=code, message=message) from None
                return False
        return True

    def put(self, key: str, data: Blob) -> None:
        """Create or replace `key` in one request."""
        path = self._path(key)
        with self._faults(_WRITE, key):
            obstore.put(self._backend, path, data, mode="overwrite", use_multipart=False)

    def get(self, key: str, *, max_size: int) -> bytes:
        """The whole object. Raises KeyMissing; CorruptObject if it is larger than `max_size` bytes."""
        path = self._path(key)
        with self._faults(_READ, key):
            reply = obstore.get(self._backend, path)
            size = reply.meta["size"]
            if size > max_size:
                raise too_large(self._where(key), size, max_size)
            data = reply.bytes().to_bytes()
        if len(data) != size:
            raise incomplete(self._where(key), len(data), size)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` (at least 1) bytes from `offset` on; beyond the protocol: for files that are not ours."""
        path = self._path(key)
        with self._faults(_READ, key):
            data = obstore.get_range(self._backend, path, start=offset, length=length).to_bytes()
        if len(data) != length:
            raise incomplete(self._where(key), len(data), length)
        return data

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, None if absent (or the bucket is: this request gets no reason)."""
        path = self._path(key)
        try:
            with self._faults(_LOOK, key):
                return _meta(obstore.head(self._backend, path), key)
        except KeyMissing:
            return None

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every object below `prefix + "/"`, in key order; objects that cannot be ours are passed over."""
        below = self._below(prefix)
        with self._faults(_LIST, prefix):
            raw = obstore.list(self._backend, below or None, chunk_size=_PAGE).collect()
        found = [
            _meta(item, key)
            for item in raw
            if item["path"].startswith(below) and keys.is_valid(key := item["path"][len(self._base) :])
        ]
        found.sort(key=lambda meta: meta.key)  # most services sort; Azure's hierarchical accounts do not
        return iter(found)

    def children(self, prefix: str) -> tuple[str, ...]:
        """The next path components below `prefix + "/"` that have something below them, sorted.

        A service may go on naming one for a while after its last object is deleted (SeaweedFS does).
        """
        below = self._below(prefix)
        with self._faults(_LIST, prefix):
            raw = obstore.list_with_delimiter(self._backend, below or None)["common_prefixes"]
        names = (path[len(below) :].rstrip("/") for path in raw if path.startswith(below))
        return tuple(sorted(name for name in names if keys.is_valid(name) and "/" not in name))

    def delete(self, key: str) -> None:
        """Remove `key`; absent is success."""
        path = self._path(key)
        with contextlib.suppress(KeyMissing), self._faults(_DELETE, key):
            obstore.delete(self._backend, path)

    def _path(self, key: str) -> str:
        return self._base + keys.check(key)

    def _below(self, prefix: str) -> str:
        return f"{self._base}{prefix}/" if keys.check_prefix(prefix) else self._base

    def _where(self, key: str) -> str:
        return f"{self._url.rstrip('/')}/{key}"

    @contextlib.contextmanager
    def _faults(self, what: str, key: str) -> Iterator[None]:
        """Causes are left out: their text may hold signed URLs."""
        try:
            yield
        except FileNotFoundError as error:
            status, code, message = _reply(error)
            if what in (_CREATE, _WRITE, _LIST):
                code = code or "NoSuchBucket"
            elif code in _NO_KEY_CODES:
                raise missing(self._where(key)) from None
            raise from_reply(what, self._where(key), status=status or 404, code=code, message=message) from None
        except BaseError as error:
            raise _translate(error, what, self._where(key)) from None


def _meta(raw: RawMeta, key: str) -> ObjectMeta:
    return ObjectMeta(key, raw["size"], round(raw["last_modified"].timestamp() * 10**6) * 1000)


def _reply(error: Exception) -> tuple[int, str, str]:
    """HTTP status (0 = none came), error code and message in what obstore prints."""
    text = str(error).partition("\n\nDebug source")[0]
    found = (_STATUS.search(text), _CODE.search(text), _MESSAGE.search(text))
    status, code, message = (match[1] if match else "" for match in found)
    return int(status or 0), code, message.strip()


def _translate(error: BaseError, what: str, where: str) -> StoreError:
    status, code, message = _reply(error)
    if status:
        return from_reply(what, where, status=status, code=code, message=message)
    text = str(error)
    if _REGION_TEXT in text:
        return from_reply(what, where, status=301, message="the bucket is in another region")
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        provider = _PROVIDER.search(text)
        why = provider[1] if provider else "not authenticated"
        return StoreRefused(what, where=where, why=why, remedy="renew the credentials, or set [upload] profile")
    return _transport(text, what, where)


def _transport(text: str, what: str, where: str) -> StoreError:
    """No reply came, or half of one."""
    tls = _TLS.search(text)
    if tls:
        why = f"TLS: {tls[1] or tls[2] or tls[0]}"
        return StoreError(what, where=where, why=why, remedy=_TLS_REMEDY)
    if "kind: Timeout" in text or "TimedOut" in text:
        return StoreUnavailable(what, where=where, why="timed out")
    system = _SYSTEM.search(text)
    remedy = "check endpoint, network and proxy"
    return StoreUnavailable(what, where=where, why=system[1] if system else "the connection broke", remedy=remedy)


def _client(options: StoreOptions, endpoint: str | None) -> ClientConfig:
    """HTTP options. Proxies come from the environment (HTTPS_PROXY, NO_PROXY): the HTTP library reads them itself."""
    client: ClientConfig = {
        "timeout": timedelta(seconds=options.timeout_s),
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
        "allow_http": (endpoint or "").startswith("http://"),
    }
    ca_file = options.ca_file or os.environ.get("AWS_CA_BUNDLE")
    if ca_file:
        client["root_certificate"] = read_ca_file(ca_file)
    return client


_ONCE: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(minutes=3)}


def _open_s3(url: StoreUrl, options: StoreOptions) -> S3Store:
    environ = os.environ
    endpoint = check_endpoint(
        options.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None
    )
    keys_given = None if options.anonymous else static_keys(environ, profile=options.profile, region=options.region)
    credentials = None if options.anonymous or keys_given else _ask_boto3(options.profile)
    config: S3Config = {
        "unsigned_payload": True,
        "disable_bulk_delete": True,
        **_address(url.bucket, endpoint, options),
    }
    found = keys_given or credentials
    region = options.region or (found.region if found else None) or environ.get("AWS_REGION")
    if region:
        config["region"] = region
    if keys_given is not None:
        config["access_key_id"], config["secret_access_key"] = keys_given.access_key_id, keys_given.secret_access_key
        if keys_given.token:
            config["session_token"] = keys_given.token
    elif credentials is None:
        config["skip_signature"] = True
    return S3Store(
        url.bucket,
        config=config,
        client_options=_client(options, endpoint),
        retry_config=_ONCE,
        credential_provider=credentials,
    )


def _ask_boto3(profile: str | None) -> S3Credentials:
    from ckptsync.store.credentials import S3Credentials  # noqa: PLC0415 - boto3 loads slowly, and is not always needed

    return S3Credentials(profile)


def _address(bucket: str, endpoint: str | None, options: StoreOptions) -> S3Config:
    """Where the bucket's name goes. A dot in it breaks the wildcard certificates of hosts."""
    virtual = options.addressing == "virtual" or (options.addressing == "auto" and not endpoint and "." not in bucket)
    if endpoint is None:
        return {"virtual_hosted_style_request": virtual}
    if virtual:
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    return {"virtual_hosted_style_request": virtual, "aws_endpoint_url_s3": endpoint}


def _open_gs(url: StoreUrl, options: StoreOptions) -> GCSStore:
    endpoint = check_endpoint(options.endpoint)
    return GCSStore(
        url.bucket,
        config={"skip_signature": options.anonymous, **({"base_url": endpoint} if endpoint else {})},
        client_options=_client(options, endpoint),
        retry_config=_ONCE,
    )


def _open_az(url: StoreUrl, options: StoreOptions) -> AzureStore:
    endpoint = check_endpoint(options.endpoint)
    return AzureStore(
        url.bucket,
        config={"skip_signature": options.anonymous, **({"endpoint": endpoint} if endpoint else {})},
        client_options=_client(options, endpoint),
        retry_config=_ONCE,
    )


def _open_memory(url: StoreUrl, options: StoreOptions) -> MemoryStore:  # noqa: ARG001 - the openers' common signature
    with _memory_lock:
        return _memory.setdefault(url.bucket, MemoryStore())


_OPENERS: dict[str, Callable[[StoreUrl, StoreOptions], Backend]] = {
    "s3": _open_s3,
    "gs": _open_gs,
    "az": _open_az,
    "memory": _open_memory,
}
