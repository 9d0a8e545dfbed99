"""Which attempt this is, and of how many nodes: by the command line, the configuration, or the launcher's environment.

- Slurm (`srun --ntasks-per-node=1`): SLURM_JOB_ID and SLURM_RESTART_COUNT name the attempt, SLURM_NNODES counts.
- Kubernetes tells a pod nothing of this by itself. The pod's template passes it on: CKPTSYNC_ATTEMPT from a label by
  the downward API (`batch.kubernetes.io/controller-uid` of an Indexed Job, `ray.io/cluster` of KubeRay), and
  CKPTSYNC_NODES.
- torchrun and Ray set their variables in the processes that they start, after the pull: there --attempt is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ckptsync.config import Config
from ckptsync.errors import UsageError

__all__ = ["ALONE", "Launch", "launch_of", "working_directory"]

_NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}\Z")
_NODES_MAX = 10**6


@dataclass(frozen=True, slots=True)
class Launch:
    """Whether nodes pull together.

    Attributes:
        nodes: how many; 1 = this one alone.
        attempt: the id that they share; "" = this node alone, and nothing is said in the store.
    """

    nodes: int
    attempt: str

    @property
    def together(self) -> bool:
        """Whether there is an attempt to take part in."""
        return bool(self.attempt)


ALONE = Launch(1, "")
"""This node alone."""


def launch_of(
    config: Config, env: Mapping[str, str], *, nodes: int | None, attempt: str | None, embedded: bool
) -> Launch:
    """Find out.

    Args:
        config: [pull] nodes, [node] count.
        env: the environment.
        nodes: --nodes.
        attempt: --attempt.
        embedded: the store is this machine's own.

    Raises:
        UsageError: several nodes without an id, or without a store that they share; an id that cannot be one.
    """
    count = nodes or config.pull.nodes or _number(env, "CKPTSYNC_NODES") or config.node.count or 1
    if nodes == 1 and attempt is None:
        return ALONE
    name = attempt if attempt is not None else _attempt(env)
    if attempt is None and count == 1:
        return ALONE
    if not name:
        raise UsageError(
            f"{count} nodes pull together, and need one --attempt ID",
            why=_why_unknown(env),
            remedy="give all of them the same new one at each start, or --nodes 1 for this node alone",
        )
    if _NAME.match(name) is None:
        remedy = "up to 128 letters, digits, dots, dashes and underscores"
        raise UsageError("not an id for an attempt", where=repr(name), remedy=remedy)
    if embedded and count > 1:
        raise UsageError(
            f"{count} nodes cannot pull together from a store of this machine alone",
            where=config.upload.store,
            remedy="set [upload] store to one that all nodes share, or --nodes 1 for this node alone",
        )
    return Launch(count, name)


def _attempt(env: Mapping[str, str]) -> str:
    if env.get("CKPTSYNC_ATTEMPT"):
        return env["CKPTSYNC_ATTEMPT"]
    if env.get("SLURM_JOB_ID"):
        return f"slurm-{env['SLURM_JOB_ID']}-{env.get('SLURM_RESTART_COUNT') or 0}"
    return ""


def _why_unknown(env: Mapping[str, str]) -> str:
    if "JOB_COMPLETION_INDEX" in env:
        return "this is a pod of an Indexed Job: pass its label batch.kubernetes.io/controller-uid as CKPTSYNC_ATTEMPT"
    if "KUBERNETES_SERVICE_HOST" in env:
        return "this is a pod: pass an id of the start as CKPTSYNC_ATTEMPT, by the downward API"
    return "nothing in the environment names this start (torchrun and Ray do so only in what they start)"


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < _NODES_MAX):
        raise UsageError("not a number of nodes", where=f"${name}", why=repr(text))
    return int(text)


def working_directory() -> str:
    """Where the trainer starts. Raises UsageError: that was deleted."""
    try:
        return os.getcwd()
    except OSError as error:
        what, why = "the working directory cannot be used", os.strerror(error.errno or 0)
        raise UsageError(what, why=why, remedy="start it in a directory that is there") from None
