import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def killed_at():
    """Run Python code in a process of its own that is killed at a labelled place; fails if it never gets there."""

    def run(label, code, *arguments, nth=1):
        armed = f"import sys\nfrom ckptsync.testing.crash import arm\narm({label!r}, {nth})\n{code}"
        command = [sys.executable, "-c", armed, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -9, f"was not killed at {label}: {done.stderr}"

    return run


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 1 MiB and 64 inodes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "small"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "none", disk]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this environment does not allow mounts")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


# All that is needed later is imported first: the interpreter may lie where only its owner can read.
_BECOME_NOBODY = """
import concurrent.futures.thread, ctypes, os, sys
from ckptsync.disk import durable, promote, scan, stage, trash, verify
from ckptsync.errors import CkptsyncError, ConfigError
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


@pytest.fixture
def as_nobody():
    """Run Python code as another user, our modules imported; returns what it printed."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")

    def run(code, *arguments):
        command = [sys.executable, "-c", _BECOME_NOBODY + code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def make_step():
    """Write a step directory of small files: path -> bytes."""

    def write(root, files):
        for name, data in files.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return Path(root)

    return write
