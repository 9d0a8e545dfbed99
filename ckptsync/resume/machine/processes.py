"""Which processes run here: inference engines and Ray by their names, and who is ours.

Names, as the programs give them to themselves (setproctitle writes over the command line, the kernel cuts the short
name at 15 characters): vLLM >= 0.10.1 `VLLM::EngineCore`, `VLLM::Worker_TP0`, `VLLM::APIServer_0`; SGLang
`sglang::scheduler_TP0`, `sglang::detokenizer`; Ray 2 `ray::<actor>`, `ray::IDLE`, `raylet`, `gcs_server`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Process", "kind_of", "look", "ours"]

_TITLE = re.compile(r"(?:VLLM::|sglang::|EngineCore(?:_\S*)?$|VllmWorkerProcess)")
_SERVERS = re.compile(r"(?:^|/)vllm serve |vllm\.entrypoints\.|(?:^|/)sglang serve |sglang\.launch_server")
_RAY_ITSELF = re.compile(r"ray::(?:IDLE|DashboardAgent|RuntimeEnvAgent|SPILL_|RESTORE_|DELETE_)")
_RAY_DAEMONS = frozenset({"raylet", "gcs_server"})
_RAY_DASHBOARD = "/ray/dashboard/dashboard.py"
_COMMAND_CHARS_MAX = 100
_INTERPRETER = re.compile(r"^\S*python[0-9.]*\s+(?:-[A-Za-z]\s+)*")

Kind = Literal["engine", "ray", "actor", ""]
"""An inference engine; a part of Ray itself; a worker that runs somebody's code in Ray; anything else."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        pid: its id.
        parent: its parent's id.
        command: what it calls itself, as far as it can be read, shortened.
        user: the name of its user; the number where there is no name.
        uid: the number; -1 = not known.
        kind: what its name says.
    """

    pid: int
    parent: int
    command: str
    user: str
    uid: int
    kind: Kind

    @property
    def orphan(self) -> bool:
        """Whoever started it is gone."""
        return self.parent == 1

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid}, {self.user})"


def kind_of(words: list[str]) -> Kind:
    """What a command line says."""
    line = " ".join(words).strip()
    if _TITLE.match(line) or _SERVERS.search(f"{line} "):
        return "engine"
    if line.startswith("ray::"):
        return "ray" if _RAY_ITSELF.match(line) else "actor"
    daemon = bool(words) and os.path.basename(words[0]) in _RAY_DAEMONS
    return "ray" if daemon or any(word.endswith(_RAY_DASHBOARD) for word in words[1:3]) else ""


def look() -> dict[int, Process]:
    """All processes that can be seen from here, by id."""
    import psutil  # noqa: PLC0415 - only a preflight needs it

    found = {}
    for each in psutil.process_iter(["pid", "ppid", "name", "cmdline", "uids", "username"]):
        info = each.info
        words = [word for word in info["cmdline"] or [] if word]
        uids = info["uids"]
        found[info["pid"]] = Process(
            pid=info["pid"],
            parent=info["ppid"] or 0,
            command=_short(words, info["name"] or "?"),
            user=info["username"] or (str(uids.effective) if uids else "?"),
            uid=uids.effective if uids else -1,
            kind=kind_of(words),
        )
    return found


def ours(processes: dict[int, Process], me: int) -> frozenset[int]:
    """`me`, those that it comes from, and all that it has started."""
    above = {me, *_above(processes, me)}
    below = {pid for pid in processes if me in _above(processes, pid)}
    return frozenset(above | below)


def _above(processes: dict[int, Process], pid: int) -> Iterator[int]:
    seen = set()
    while (each := processes.get(pid)) is not None and each.parent not in seen and each.parent > 0:
        seen.add(each.parent)
        yield each.parent
        pid = each.parent


def _short(words: list[str], name: str) -> str:
    """The command without the interpreter; what may be a secret in it is left out, with everything after it."""
    line = _INTERPRETER.sub("", " ".join(words)) or name
    line = re.split(r"(?i)\S*(?:token|secret|password|passwd|api[_-]?key|credential)", line)[0]
    line = " ".join(line.split()) or name
    return line if len(line) <= _COMMAND_CHARS_MAX else f"{line[: _COMMAND_CHARS_MAX - 3]}..."
