"""`gpu`: nobody else holds memory of the GPUs, no engine is left over, and no shared memory of dead processes.

A killed trainer leaves its inference engines behind: they hold their memory under a parent that is gone, while their
ports are free, and the resume dies of "out of memory" (vllm-project/vllm#55510, sgl-project/sglang#28089).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping

from ckptsync.resume.compare import Finding, judge
from ckptsync.resume.context import Context
from ckptsync.resume.machine.gpus import Holder, NoDriver, holders
from ckptsync.resume.machine.processes import Process, look, ours
from ckptsync.resume.machine.shared_memory import Segment, segments, used
from ckptsync.resume.outcome import Outcome

__all__ = ["check"]

_SHM = "/dev/shm"  # noqa: S108 - the place that the system has for it
_NAMES_MAX = 6


def check(context: Context) -> Outcome:
    """fail: a foreign process holds memory of a GPU of the start, or an engine of this user has lost its parent.

    warn: an engine, a job in Ray or shared memory that nobody uses. skip: NVML cannot be asked.
    """
    processes = look()
    own = ours(processes, os.getpid())
    foreign = {pid: each for pid, each in processes.items() if pid not in own}
    findings: list[Finding] = []
    try:
        count, holding = holders(context.env)
        findings += _memory(count, [each for each in holding if each.pid not in own], processes)
        known = {each.pid for each in holding}
        findings += _engines({pid: each for pid, each in foreign.items() if pid not in known}, asked=True)
    except NoDriver as reason:
        findings.append(Finding("skip", f"memory of the GPUs was not looked at: {reason}", reason.remedy))
        findings += _engines(foreign, asked=False)
    inside = any(processes[pid].kind in ("ray", "actor") for pid in own if pid in processes)
    findings += _ray(foreign, expected=inside or bool(context.env.get("RAY_ADDRESS")))
    findings += _segments()
    return judge(findings, "nothing is in the way")


def _memory(count: int, holding: list[Holder], processes: Mapping[int, Process]) -> Iterator[Finding]:
    """Who holds memory of a GPU that the start will use."""
    by_pid: dict[int, list[Holder]] = {}
    for each in holding:
        by_pid.setdefault(each.pid, []).append(each)
    for pid, parts in sorted(by_pid.items()):
        process = processes.get(pid)
        name = (
            str(process) if process is not None else f"{parts[0].name or 'a process'} (pid {pid} of the driver's view)"
        )
        amounts = ", ".join(f"GPU {p.gpu}: {'?' if p.mib is None else p.mib} MiB" for p in parts)
        remedy = f"end it (kill {pid}) if nobody needs it, or give the start other GPUs with CUDA_VISIBLE_DEVICES"
        if process is None:
            remedy = "it is not visible from here: look on the host, or in the other container"
        yield Finding("fail", f"{name} holds {amounts}", remedy)
    if not holding:
        yield Finding("pass", f"{count} GPUs, and no foreign process holds their memory")


def _engines(foreign: Mapping[int, Process], *, asked: bool) -> Iterator[Finding]:
    """Inference engines of this user. `asked`: the driver said that they hold nothing of our GPUs."""
    mine = [each for each in foreign.values() if each.uid == os.geteuid() and each.kind == "engine"]
    for each in sorted(mine, key=lambda process: process.pid):
        if asked:
            yield Finding("pass", f"{each} runs, on none of the start's GPUs")
        else:
            what = f"{each} is left over: its parent is gone" if each.orphan else f"{each} runs here"
            yield Finding("fail" if each.orphan else "warn", what, f"end it if nobody needs it: kill {each.pid}")


def _ray(foreign: Mapping[int, Process], *, expected: bool) -> Iterator[Finding]:
    """Ray of this user. `expected`: the start runs in it, or is told to join one."""
    mine = [each for each in foreign.values() if each.uid == os.geteuid()]
    daemons = [each for each in mine if each.kind == "ray" and not each.command.startswith("ray::")]
    actors = sorted((each for each in mine if each.kind == "actor"), key=lambda process: process.pid)
    if actors and not daemons:
        pids = " ".join(str(each.pid) for each in actors)
        yield Finding("fail", f"workers of a Ray that is gone: {_listed(actors)}", f"end them: kill {pids}")
    elif actors:
        what = f"a job runs in this user's Ray, or was left there: {_listed(actors)}"
        yield Finding("warn", what, "look with `ray list actors` and `ray job list`; stop what nobody needs")
    if daemons and expected:
        yield Finding("pass", f"the start joins this Ray: {_listed(daemons)}")
    elif daemons:
        what = f"a Ray of this user runs here, and the start will join it: {_listed(daemons)}"
        yield Finding("warn", what, "if it is left over, `ray stop`; if it is meant, set RAY_ADDRESS=auto")


def _segments() -> Iterator[Finding]:
    """What dead processes of this user (for root: of anybody) left in /dev/shm."""
    try:
        found = [each for each in segments(_SHM) if os.geteuid() in (0, each.uid)]
        names, hidden = used(_SHM) if found else (frozenset[str](), frozenset[int]())
    except OSError as error:
        yield Finding("skip", f"{_SHM} cannot be read: {error.strerror}", f"make {_SHM} and /proc readable")
        return
    stale = [each for each in found if each.name not in names and each.uid not in hidden]
    unsure = [each for each in found if each.name not in names and each.uid in hidden]
    if stale:
        what = f"{len(stale)} segments in {_SHM} that no process here uses: {_sizes(stale)}"
        first = " ".join(f"{_SHM}/{each.name}" for each in stale[:_NAMES_MAX])
        more = " ..." if len(stale) > _NAMES_MAX else ""
        yield Finding("warn", what, f"unless a container shares {_SHM} with this one: rm {first}{more}")
    if unsure:
        what = (
            f"{len(unsure)} segments in {_SHM} may be in use by processes that cannot be looked into: {_sizes(unsure)}"
        )
        yield Finding("skip", what, "run the preflight as root")


def _sizes(found: list[Segment]) -> str:
    shown = ", ".join(f"{each.name} ({_amount(each.size)}, {_user(each.uid)})" for each in found[:_NAMES_MAX])
    total = _amount(sum(each.size for each in found))
    return shown if len(found) <= _NAMES_MAX else f"{shown}, ... together {total}"


def _listed(processes: list[Process]) -> str:
    more = f", and {len(processes) - _NAMES_MAX} more" if len(processes) > _NAMES_MAX else ""
    return ", ".join(map(str, processes[:_NAMES_MAX])) + more


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _amount(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
