"""Does a store really create only once? Some S3-compatible services accept If-None-Match and take no notice of it."""

from __future__ import annotations

import secrets

from ckptsync.store.base import Store

__all__ = ["creates_once"]


def creates_once(store: Store, prefix: str) -> bool:
    """Try it out below `prefix` (a key of `keys.probe_key`), leaving nothing behind.

    Returns:
        False = the second create of a key was accepted, too: whatever the capabilities say, nodes cannot agree there.

    Raises:
        StoreError: the store cannot be asked.
    """
    key = f"{prefix}-{secrets.token_hex(8)}"
    try:
        store.put_new(key, b"first")
        return not store.put_new(key, b"second")
    finally:
        store.delete(key)
