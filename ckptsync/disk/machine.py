"""What this process may have of the machine, and how busy the machine is. Reads /proc and /sys, and gives way."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import posixpath
from collections.abc import Sequence

from ckptsync.model.yielding import Stalls, parse_stalled_us

__all__ = ["PRESSURE_DIRS", "Pressure", "cores", "give_way", "is_idle", "keep_freed_memory"]

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # of mallopt(3), as in glibc's malloc.h
_LARGEST = 32 << 20  # the most that glibc takes; a chunk has half of it
_KEPT = 64 << 20
_CGROUPS = "/sys/fs/cgroup"
PRESSURE_DIRS = ("/proc/pressure/{}", f"{_CGROUPS}/{{}}.pressure", f"{_CGROUPS}/unified/{{}}.pressure")
"""Of the machine; else (where /proc is restricted, as in our unit) of the topmost control group that we can see."""


def cores(proc: str = "/proc/self/cgroup", cgroups: str = _CGROUPS) -> int:
    """Processors that this process may use: those it is bound to, or less by a quota of its control group.

    Args:
        proc: names the group.
        cgroups: where the groups are mounted.
    """
    bound = len(os.sched_getaffinity(0))
    quota = min(map(_quota, _groups(proc, cgroups)), default=math.inf)
    return max(1, min(bound, math.ceil(quota))) if quota < math.inf else bound


def _groups(proc: str, cgroups: str) -> list[str]:
    """The group and all above it: a quota binds everything below."""
    found = [cgroups]
    for line in _read(proc).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        below = {"": cgroups, "cpu": f"{cgroups}/cpu", "cpu,cpuacct": f"{cgroups}/cpu,cpuacct"}.get(controllers)
        while below is not None and path.strip("/"):
            found.append(below + path)
            path = posixpath.dirname(path)
    return found


def _quota(group: str) -> float:
    """Processors that a group may use; inf = not limited. cpu.max is version 2, cpu.cfs_* version 1."""
    limit, _, period = _read(f"{group}/cpu.max").strip().partition(" ")
    if not limit:
        limit, period = _read(f"{group}/cpu.cfs_quota_us").strip(), _read(f"{group}/cpu.cfs_period_us").strip()
    return int(limit) / int(period) if limit.isdecimal() and period.isdecimal() and int(period) else math.inf


def _read(path: str) -> str:
    """At most a page; "" if it cannot be read: not every kernel and container has these files."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


def keep_freed_memory() -> None:
    """Let malloc use freed memory again, up to 64 MiB of it, instead of giving it back to the kernel after each chunk.

    Every chunk needs a few buffers of its size. By default each comes from the kernel, which zeroes it page by page: a
    third of the processor time of a pull (measured). One arena for all threads keeps the memory together: it also
    makes the process a fifth smaller. To be called before there are threads; elsewhere than with glibc it does nothing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for name, value in ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _KEPT), (_ARENA_MAX, 1)):
            libc.mallopt(name, value)


def give_way() -> bool:
    """Put the calling thread, and all that it starts from now on, behind everybody else; returns whether it worked.

    SCHED_IDLE: the processor only when nobody else wants it. Python cannot set an I/O class; I/O schedulers that know
    classes (BFQ) derive the idle one from it as long as none is set (`task_nice_ioclass` in Linux' ioprio.h). Where it
    is refused, the lowest nice value. There is no way back without privileges.
    """
    _give_way_to_other_sessions()
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return True
    with contextlib.suppress(OSError):
        os.nice(19)
        return True
    return is_idle()


def _give_way_to_other_sessions() -> None:
    """Each session has a share of the processor of its own (autogroups, sched(7)), within which alone the class counts.

    So a daemon in a session of its own (a service, a child of `exec`) took half of the processor from a trainer on all
    cores. The share is that of the whole session, which is left alone where somebody else began it: the trainer may be
    in it, and there the class does count. In a control group with a weight, that one counts instead.
    """
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write("19")


def is_idle() -> bool:
    """Whether the calling thread gets the processor only when nobody else wants it, whoever arranged that."""
    return os.sched_getscheduler(0) == os.SCHED_IDLE


class Pressure:
    """The kernel's pressure stall information (PSI), as shares of the time since the last look.

    Args:
        places: patterns of paths, `{}` stands for cpu, io or memory; the first that can be read counts.
    """

    def __init__(self, places: Sequence[str] = PRESSURE_DIRS) -> None:
        self._places = places
        self._before: tuple[float, Stalls] | None = None

    def look(self, now: float) -> Stalls | None:
        """Shares of the time since the last look (`now`, monotonic seconds) in which somebody was held up.

        Returns:
            None at the first look, or where the kernel tells nothing.
        """
        totals = [self._total_us(resource) for resource in ("cpu", "io", "memory")]
        if all(total is None for total in totals):
            return None
        seen = Stalls(*(0.0 if total is None else total / 1e6 for total in totals))
        before, self._before = self._before, (now, seen)
        return seen.since(before[1], now - before[0]) if before is not None and now > before[0] else None

    def _total_us(self, resource: str) -> int | None:
        texts = (_read(place.format(resource)) for place in self._places)
        return next((total for text in texts if (total := parse_stalled_us(text)) is not None), None)
