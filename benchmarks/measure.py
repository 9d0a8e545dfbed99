"""A child process measured from outside: seconds, CPU, memory, bytes read; and the page cache."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CommandFailed", "Usage", "cached_bytes", "evict", "run", "sync_tree", "warm"]

_MIB = 1 << 20
_TAIL = 2000


class CommandFailed(RuntimeError):
    """A measured command ended with an error; its last output is in the message."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command took, with its children.

    Attributes:
        wall_s: from before the start to after the end, interpreter start included.
        cpu_s: user and system time of the process and of the children it waited for.
        resident_mib: greatest resident size of any one of these processes.
        read_bytes: asked of read system calls, cached or not, files and pipes.
        disk_bytes: really read from the disk.
        output: its stdout.
    """

    wall_s: float
    cpu_s: float
    resident_mib: float = 0.0
    read_bytes: int = 0
    disk_bytes: int = 0
    output: str = ""


def run(command: Sequence[str | Path], *, cwd: Path, environ: Mapping[str, str] | None = None) -> Usage:
    """Run a command to its end and measure it; stdout and stderr go through files in `cwd`.

    Args:
        command: program and arguments.
        cwd: working directory.
        environ: added to this process's environment.

    Raises:
        CommandFailed: exit status other than 0.
    """
    words = [str(word) for word in command]
    out, err = cwd / "stdout.log", cwd / "stderr.log"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        started = time.monotonic()
        variables = {**os.environ, **(environ or {})}
        child = subprocess.Popen(words, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wall = time.monotonic() - started
        read, disk = _io_of(child.pid)  # of a zombie: all that it and its children have read
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        text = err.read_text(errors="replace") + out.read_text(errors="replace")
        msg = f"{' '.join(words)}: exit {child.returncode}\n{text[-_TAIL:]}"
        raise CommandFailed(msg)
    cpu = usage.ru_utime + usage.ru_stime
    return Usage(wall, cpu, usage.ru_maxrss / 1024, read, disk, out.read_text(errors="replace"))


def _io_of(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:  # another user's, or a kernel without task accounting
        return 0, 0
    fields = dict(line.split(": ") for line in lines)
    return int(fields["rchar"]), int(fields["read_bytes"])


def evict(paths: Iterable[Path]) -> None:
    """Take these files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def sync_tree(root: Path) -> float:
    """Sync every file below `root`; the seconds it takes."""
    started = time.monotonic()
    for path in root.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return time.monotonic() - started


def warm(paths: Iterable[Path]) -> None:
    """Bring these files into the page cache, as after a trainer wrote them."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(4 * _MIB):
                pass


def cached_bytes(paths: Iterable[Path]) -> int:
    """Bytes of these files in the page cache, by `fincore` of util-linux. Raises CommandFailed, FileNotFoundError."""
    names = [str(path) for path in paths]
    total = 0
    for start in range(0, len(names), 500):
        command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *names[start : start + 500]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandFailed(done.stderr)
        total += sum(int(line) for line in done.stdout.split())
    return total
