"""What several areas share: one real S3 server for the whole session."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long something takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("ckptsync", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ckptsync")

pytest.register_assert_rewrite("ckptsync.testing.store", "collection_world")

from ckptsync.testing.seaweed import SeaweedFS  # noqa: E402 - after the line above, which must come first


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory that other users can enter; those above tmp_path are private to this one, and stay so.

    TMPDIR may be private, too: /tmp and /var/tmp are for all.
    """
    above = next(filter(_is_public, (tempfile.gettempdir(), "/tmp", "/var/tmp")), None)
    if above is None:
        pytest.skip("no temporary directory that other users can enter")
    with tempfile.TemporaryDirectory(dir=above) as path:
        Path(path).chmod(0o755)
        yield Path(path)


def _is_public(directory: str) -> bool:
    path = Path(directory).resolve()
    return path.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that is mounted read-only. It holds two empty directories, `ck` and `state`."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    disk = tmp_path / "read_only"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", disk], capture_output=True, check=False).returncode:
        pytest.skip("this environment does not allow mounts")
    try:
        (disk / "ck").mkdir()
        (disk / "state").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedFS]:
    """A running SeaweedFS with the bucket "test"; use a prefix of your own, and `s3_environ` to reach it."""
    with SeaweedFS() as server:
        yield server


@pytest.fixture
def s3_environ(s3_server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of this test (and its children) points to the server, whatever the user's own says."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    environ = {
        **s3_server.environ,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ
