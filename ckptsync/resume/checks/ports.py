"""`ports`: the TCP ports that the start will use are free.

Facts. torchrun (torch 2.13, torch/distributed/run.py): the static rendezvous listens on --master_port, 29500 if it is
not given, on node 0; c10d on its --rdzv_endpoint, port 29400 if that names none; --standalone takes a free one. Ray
2.60: `ray start --head` takes 6379, and 8265 for the dashboard; `ray.init`, as verl calls it, joins a Ray that runs, or
else takes free ports. The rollout engine of layered trainers listens on `actor_rollout_ref.rollout.port`, 20014 by
default; where Hydra has told everything and there is no such option (verl 0.9.1), the engine takes free ports.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ckptsync.resume.compare import Finding, judge, not_known
from ckptsync.resume.context import Context
from ckptsync.resume.machine.processes import Process, look
from ckptsync.resume.machine.sockets import PortHolder, holder, is_free, next_free
from ckptsync.resume.outcome import Outcome, skipped

__all__ = ["check"]

_ROLLOUT = "actor_rollout_ref.rollout.port"
_ROLLOUT_PORT = 20014
_MASTER_PORT, _RENDEZVOUS_PORT = 29500, 29400
_RAY_PORT, _DASHBOARD_PORT = 6379, 8265
_PORT_MAX = 65535
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A port that the start needs.

    Attributes:
        port: its number.
        purpose: who will listen there.
        option: how to move it, `{}` stands for the other port; "" = it cannot be.
        held: what it means that somebody holds it.
        ray: a Ray of this user may hold it.
    """

    port: int
    purpose: str
    option: str
    held: Literal["fail", "warn"] = "fail"
    ray: bool = False


def check(context: Context) -> Outcome:
    """fail: somebody holds a port that the start needs; warn: one that it may need; skip: none is known."""
    wanted = {each.port: each for each in reversed([*_wanted(context)])}
    open_ = [_unresolved(context)] if context.now.is_unresolved(_ROLLOUT) else []
    if not wanted and not open_:
        what = "no port is known that the start will use"
        return skipped(what, "give the trainer's command after --, or name ports in [preflight] ports")
    busy = [each for port, each in sorted(wanted.items()) if not is_free(port)]
    free = ", ".join(f"{port} ({each.purpose})" for port, each in sorted(wanted.items()) if each not in busy)
    processes = look() if busy else {}
    findings = [_judged(each, processes, frozenset(wanted)) for each in busy]
    return judge([*findings, *open_, Finding("pass", free)], "free")


def _unresolved(context: Context) -> Finding:
    return not_known(context, _ROLLOUT, [_ROLLOUT], then=False, now=True)


def _judged(each: _Wanted, processes: dict[int, Process], taken: frozenset[int]) -> Finding:
    """What it means that the port is not free."""
    found = holder(each.port)
    process = processes.get(found.pid) if found is not None and found.pid is not None else None
    if each.ray and process is not None and process.kind == "ray" and process.uid == os.geteuid():
        return Finding("pass", f"{each.port}: the Ray that runs here holds it, and the start joins that: {process}")
    what = f"port {each.port} ({each.purpose}) is held by {_named(found, process)}"
    other = next_free(each.port, taken)
    move = f"{each.option.format(other)}, or " if each.option and other is not None else ""
    return Finding(each.held, what, f"{move}end what holds it{f': kill {process.pid}' if process else ''}")


def _named(found: PortHolder | None, process: Process | None) -> str:
    if process is not None and found is not None:
        return f"{process} on {found.address}"
    if found is not None and found.pid is not None:
        return f"pid {found.pid} on {found.address}"
    return "a process that cannot be seen from here (of another user, or in another container)"


def _wanted(context: Context) -> Iterator[_Wanted]:
    """All ports that the start needs; the first reason for a port is the one that is told."""
    for port in context.node.config.preflight.ports:
        yield _Wanted(port, "[preflight] ports", "move it, and correct [preflight] ports (for example to {})")
    if (rollout := _rollout(context)) is not None:
        yield _Wanted(rollout, "rollout engine", f"add {_ROLLOUT}={{}}")
    yield from _torchrun(context)
    yield from _ray(context)


def _rollout(context: Context) -> int | None:
    known = context.now.get(_ROLLOUT)
    if known is not None:
        return _port(known.value)
    default = not context.now.complete and not context.now.is_unresolved(_ROLLOUT)
    return _ROLLOUT_PORT if default and _is_rl(context) else None


def _is_rl(context: Context) -> bool:
    layout = context.node.layout
    named = any(True for _ in context.now.under("actor_rollout_ref"))
    return named or (layout is not None and layout.name.startswith("verl"))


def _torchrun(context: Context) -> Iterator[_Wanted]:
    """The port of torch.distributed's store, if this node is the one that opens it."""
    words = context.words
    at = next((n for n, word in enumerate(words) if os.path.basename(word) in _TORCHRUN), None)
    if at is None:
        port, address = _port(context.env.get("MASTER_PORT")), context.env.get("MASTER_ADDR", "")
        if port and _is_here(address) and context.env.get("RANK", "0") == "0":
            yield _Wanted(port, "MASTER_PORT", "set MASTER_PORT={} on all nodes")
        return
    options = words[at + 1 :]
    if _option(options, "standalone") is not None or _option(options, "node-rank") not in (None, "0"):
        return
    backend = _option(options, "rdzv-backend") or "static"
    endpoint = _option(options, "rdzv-endpoint") or ""
    host, _, number = endpoint.rpartition(":")
    if backend != "static" or endpoint:
        if _is_here((host or endpoint).strip("[]")):
            port = _port(number) or _RENDEZVOUS_PORT
            yield _Wanted(port, "torchrun's rendezvous", "give --rdzv_endpoint port {} on all nodes")
        return
    if _is_here(_option(options, "master-addr") or ""):
        port = _port(_option(options, "master-port")) or _MASTER_PORT
        yield _Wanted(port, "torchrun's master", "give --master_port={} on all nodes")


def _ray(context: Context) -> Iterator[_Wanted]:
    """Ray's own ports, unless the start is told to join one elsewhere."""
    words = context.words
    start = next((n for n in range(1, len(words)) if words[n] == "start" and words[n - 1].endswith("ray")), None)
    if start is not None:
        options = words[start + 1 :]
        if _option(options, "head") is None:
            return
        port = _port(_option(options, "port")) or _RAY_PORT
        dashboard = _port(_option(options, "dashboard-port")) or _DASHBOARD_PORT
        yield _Wanted(port, "ray start --head", "give `ray start` --port={}", ray=True)
        yield _Wanted(dashboard, "Ray's dashboard", "give `ray start` --dashboard-port={}", ray=True)
    elif _is_rl(context) and not context.env.get("RAY_ADDRESS"):
        how = "if the start's script calls `ray start --head`: "
        yield _Wanted(_RAY_PORT, "Ray", f"{how}give it --port={{}}", held="warn", ray=True)
        yield _Wanted(_DASHBOARD_PORT, "Ray's dashboard", f"{how}give it --dashboard-port={{}}", held="warn", ray=True)


def _option(words: Sequence[str], name: str) -> str | None:
    """The value of `--name` (with - or _ inside), "" for one without a value; None = it is not there."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and flag[2:].replace("_", "-") == name:
            following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
            return value if equals else following
    return None


def _port(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= len(str(_PORT_MAX)) and 0 < int(text) <= _PORT_MAX else None


def _is_here(address: str) -> bool:
    """Whether an address means this machine; names are compared, not looked up: a name server may not answer."""
    if address in ("", "localhost", "0.0.0.0", "::", "::1") or address.startswith("127."):  # noqa: S104 - only compared
        return True
    import psutil  # noqa: PLC0415 - only a preflight needs it

    mine = socket.gethostname()
    own = {each.address.partition("%")[0] for several in psutil.net_if_addrs().values() for each in several}
    return address in own or address == mine or address.partition(".")[0] == mine.partition(".")[0]
