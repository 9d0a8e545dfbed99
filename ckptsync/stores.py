"""From a configuration, or a URL, to a store: the only place that names real ones. Libraries load when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptsync.config import Config
from ckptsync.store.base import Store
from ckptsync.store.keys import quote_name
from ckptsync.store.options import StoreOptions
from ckptsync.store.traffic import Traffic

if TYPE_CHECKING:
    from ckptsync.store.objects import ObjectStore

__all__ = ["clear_leftovers", "open_bucket", "open_store"]


def open_store(
    config: Config, stopped: Callable[[], bool] = lambda: False, traffic: Traffic | None = None, patience_s: float = 300
) -> Store:
    """The configured store, with its bandwidth limit and with retries, which end early when `stopped` says so.

    Raises:
        ConfigError: the URL or the driver cannot be used.
    """
    from ckptsync.store.retrying import RetryingStore  # noqa: PLC0415 - as below

    store = _open_bare(config)
    if config.bandwidth is not None:
        from ckptsync.store.throttle import Throttle, ThrottledStore  # noqa: PLC0415 - rarely needed

        store = ThrottledStore(store, Throttle(config.bandwidth, traffic=traffic), stopped=stopped)
    return RetryingStore(store, stopped=stopped, traffic=traffic, deadline_s=patience_s)


def clear_leftovers(config: Config, before_ns: int, *, dry_run: bool) -> int:
    """Delete what killed puts left of the run in a store that is a directory; returns its bytes. Raises StoreError."""
    from ckptsync.store.files import FileStore  # noqa: PLC0415 - as above

    store = _open_bare(config)
    if not isinstance(store, FileStore):
        return 0  # one request for each put: there is nothing between all and nothing
    return store.clear_leftovers(quote_name(config.run.name), before_ns, dry_run=dry_run)


def _open_bare(config: Config) -> Store:
    upload = config.upload
    options = StoreOptions(
        endpoint=upload.endpoint,
        region=upload.region,
        profile=upload.profile,
        addressing=upload.addressing,
        ca_file=upload.ca_file,
    )
    scheme = upload.store.partition("://")[0]
    if upload.driver == "fsspec" or scheme not in {"s3", "gs", "az", "file", "memory"}:
        from ckptsync.store.fsspec import open_fsspec  # noqa: PLC0415 - heavy, and rarely needed

        return open_fsspec(upload.store, options)
    from ckptsync.store.objects import open_objects  # noqa: PLC0415 - heavy: only commands that reach for the store pay

    return open_objects(upload.store, options)


def open_bucket(url: str, options: StoreOptions) -> ObjectStore:
    """What lies at a URL that is not the run's own store (a dataset), without retries.

    Raises:
        ConfigError: the URL cannot be used.
    """
    from ckptsync.store.objects import ObjectStore, open_objects  # noqa: PLC0415 - as above

    store = open_objects(url, options)
    assert isinstance(store, ObjectStore), "it has ranges"
    return store
