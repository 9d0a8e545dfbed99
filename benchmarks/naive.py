"""What most people write: one request for each file, in a thread pool.

`python -m benchmarks.naive boto3|s3fs push|pull DIRECTORY BUCKET PREFIX`
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["main"]

WORKERS = 16


def _all(work: Callable[[Any], None], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, items))


def _boto3_push(root: Path, bucket: str, prefix: str) -> None:
    import boto3

    client = boto3.client("s3")
    files = [path for path in root.rglob("*") if path.is_file()]
    _all(lambda path: client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(root)}"), files)


def _boto3_pull(root: Path, bucket: str, prefix: str) -> None:
    import boto3

    client = boto3.client("s3")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def fetch(key: str) -> None:
        target = root / key.removeprefix(f"{prefix}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, key, str(target))

    _all(fetch, keys)


def _s3fs_push(root: Path, bucket: str, prefix: str) -> None:
    import s3fs

    store = s3fs.S3FileSystem()
    files = [path for path in root.rglob("*") if path.is_file()]
    _all(lambda path: store.put_file(str(path), f"{bucket}/{prefix}/{path.relative_to(root)}"), files)


def _s3fs_pull(root: Path, bucket: str, prefix: str) -> None:
    import s3fs

    store = s3fs.S3FileSystem()

    def fetch(key: str) -> None:
        target = root / key.removeprefix(f"{bucket}/{prefix}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(key, str(target))

    _all(fetch, store.find(f"{bucket}/{prefix}"))


_WAYS = {
    ("boto3", "push"): _boto3_push,
    ("boto3", "pull"): _boto3_pull,
    ("s3fs", "push"): _s3fs_push,
    ("s3fs", "pull"): _s3fs_pull,
}


def main() -> None:
    """Do it as the arguments say."""
    library, direction, directory, bucket, prefix = sys.argv[1:]
    _WAYS[library, direction](Path(directory), bucket, prefix)


if __name__ == "__main__":
    main()
