"""From which step a start of the trainer would resume on this disk, by the trainer's own rules.

Facts. verl 0.9.1: `trainer.resume_mode` auto reads the tracker in `trainer.default_local_dir`, and begins at step 0
without an error where the tracker or the directory that it names is missing; `resume_path` reads the number from the
end of `trainer.resume_from_path` (trainer/ppo/v1/trainer_base.py, utils/checkpoint/checkpoint_manager.py). Its older
trainer (`trainer.use_v1=False`, trainer/ppo/ray_trainer.py) reads the tracker in that mode, too, and refuses
`trainer.default_hdfs_dir`. Its SFT trainer takes the path in mode auto, too, and finds the number anywhere in it
(utils/checkpoint/checkpoint_handler.py). Hugging Face's trainers take the highest number
(trainer_utils.get_last_checkpoint, transformers 5.24), DeepSpeed what the file `latest` names, Megatron-LM the number
in its tracker, slime, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ckptsync.app import Node
from ckptsync.disk.scan import list_step, step_dirs
from ckptsync.disk.tracker import read_tracker
from ckptsync.errors import CkptsyncError
from ckptsync.layouts.base import Layout
from ckptsync.model.paths import rebased
from ckptsync.resume.context import Context
from ckptsync.resume.settings import Settings

__all__ = ["PULL", "Start", "home_path", "pull_it", "saves_elsewhere", "start_of", "step_path"]

_MODE, _PATH, _DIR = "trainer.resume_mode", "trainer.resume_from_path", "trainer.default_local_dir"
_V1, _HDFS = "trainer.use_v1", "trainer.default_hdfs_dir"
_CHECKPOINT = ("trainer.resume_from_checkpoint", "resume_from_checkpoint")
_HF_DIR = "output_dir"
_IN_PATH = "global_step_"
_MEGATRON, _DEEPSPEED = "latest_checkpointed_iteration.txt", "latest"
_TEXT_MAX = 4096
_YES, _NO = frozenset({"true", "latest", "auto", "last"}), frozenset({"false", "null", "none", ""})
_ARGUMENTS = "start it with `ckptsync exec`, which adds the right arguments, or give those that `ckptsync pull` prints"
PULL = "run `ckptsync pull`: it brings the newest step here, and points the trainer at it"


def pull_it(context: Context) -> str:
    """What brings a whole step here, if there is one."""
    if context.wanted is not None:
        return PULL
    if not context.store_asked:
        return "bring the store back first, see the check `store`: it may have a whole step"
    return "no step can be resumed from, here or in the store: `ckptsync steps` says what each lacks"


@dataclass(frozen=True, slots=True)
class Start:
    """What a start would do.

    Attributes:
        path: the step directory that it would load, by its name on this host; "" = none.
        by: what leads there, for people.
        fault: why it does not resume as it should, one line; "" = it does.
        silent: it would train from step 0, or from another step, without an error.
        remedy: against the fault, or the doubts.
        repairable: the fault is gone once the tracker in output_dir names the right step.
        doubts: what was taken to be so, and is not known; one line each.
    """

    path: str = ""
    by: str = ""
    fault: str = ""
    silent: bool = False
    remedy: str = ""
    repairable: bool = False
    doubts: tuple[str, ...] = ()


def start_of(node: Node, now: Settings, *, cwd: str, told: bool, newest: str = "") -> Start:
    """Find out what the start would do.

    Args:
        node: its layout recognised; without a layout there is no step here.
        now: the settings of the start.
        cwd: where the trainer starts.
        told: its command is known at all, so that what is not in it was not said.
        newest: the directory of the newest whole step here; for a trainer that must be told a step, and of whose
            command nobody told us.

    Raises:
        ConfigError: output_dir cannot be read.
    """
    if node.layout is None:
        return Start()
    asked = _Asked(node, node.layout, now, cwd, told)
    if node.layout.name == "verl":
        start = _verl(asked)
    elif node.layout.name == "verl_layered":
        start = _layered(asked, newest)
    else:
        start = _numbered(asked)
    return _unless_hidden(asked, start) if told else _untold(start)


def home_path(node: Node, path: str, cwd: str) -> str:
    """A path as the trainer has it, on this host: `[run] trainer_dir` is output_dir in its container.

    Args:
        node: this node.
        path: absolute, or relative to `cwd`.
        cwd: where the trainer starts.
    """
    run = node.config.run
    return rebased(os.path.join(cwd, path), run.trainer_dir, run.output_dir)


def saves_elsewhere(node: Node, now: Settings, cwd: str) -> tuple[str, str]:
    """A setting of the start by which its steps lie elsewhere than in output_dir, and where that is on this host.

    ("", "") = it names none, a relative one (nobody knows from where), output_dir, or one below it.
    """
    ours = os.path.realpath(node.output_dir or node.config.run.output_dir)
    for name in (_DIR, _HF_DIR):
        known = now.get(name)
        said = str(known.value) if known is not None else ""
        there = os.path.realpath(home_path(node, said, cwd))
        if os.path.isabs(said) and not f"{there}/".startswith(f"{ours}/"):
            return f"{name}={said}", there
    return "", ""


def step_path(node: Node, step: int) -> str:
    """The directory of a step in output_dir; "" = it is not here. Raises ConfigError: output_dir cannot be read."""
    if node.layout is None:
        return ""
    return next((path for number, path in step_dirs(node.output_dir, node.layout) if number == step), "")


@dataclass(frozen=True, slots=True)
class _Asked:
    node: Node
    layout: Layout
    now: Settings
    cwd: str
    told: bool

    def text(self, name: str) -> str:
        """A setting as text; "" = not known, or null, or to be resolved by Hydra first."""
        known = self.now.get(name)
        text = "" if known is None or known.value is None else str(known.value)
        return "" if text.lower() in ("null", "none") or "${" in text else text

    def home(self, path: str) -> str:
        return home_path(self.node, path, self.cwd)

    def is_hidden(self, name: str) -> bool:
        """Whether it is set to something of which only the trainer's Hydra makes a value: `${...}`, a sweep."""
        known = self.now.get(name)
        given = name in self.now.explicit and (known is None or "${" in str(known.value))
        return given or self.now.is_unresolved(name)

    @property
    def output_dir(self) -> str:
        """As the trainer should be told it."""
        return self.node.trainer_path(self.node.output_dir)


def _unless_hidden(asked: _Asked, start: Start) -> Start:
    """What decides from where it resumes, and is not known, leads anywhere."""
    names = (_MODE, _PATH) if asked.layout.name == "verl" else _CHECKPOINT
    hidden = [name for name in names if asked.is_hidden(name)]
    if not hidden:
        return start
    what = f"{' and '.join(hidden)} is set, and only the trainer's Hydra can make a value of it"
    if start.fault:
        return Start(fault=f"{what}: nobody knows what it starts from", remedy="give it as plain text, or --python")
    return replace(start, doubts=(*start.doubts, what))


def _untold(start: Start) -> Start:
    """Nobody gave us the command: what was not found in it says nothing."""
    return replace(start, doubts=("the trainer's command was not given",))


# -- verl


def _verl(asked: _Asked) -> Start:
    mode, path = asked.text(_MODE) or "auto", asked.text(_PATH)
    sft = _is_sft(asked)
    if mode == "disable":
        return Start(fault=f"{_MODE}=disable: the trainer starts from step 0", silent=True, remedy=_ARGUMENTS)
    if mode == "resume_path" or (mode == "auto" and path and sft):
        found = _by_path(asked, path, sft=sft)
        return found if sft else _unless_older(asked, found)
    if mode != "auto":
        return Start(fault=f"{_MODE}={mode}: verl knows auto, disable and resume_path", remedy=_ARGUMENTS)
    start = _unless_older(asked, _by_tracker(asked))
    if not path:
        return start
    ignored = f"{_PATH} counts only with {_MODE}=resume_path"
    if start.path and os.path.realpath(start.path) == os.path.realpath(asked.home(path)):
        return replace(start, doubts=(*start.doubts, ignored))
    fault = f"{ignored}: the trainer takes what its tracker names" + (f"; and {start.fault}" if start.fault else "")
    return replace(start, fault=fault, silent=True, remedy=f"add {_MODE}=resume_path", repairable=False)


def _unless_older(asked: _Asked, start: Start) -> Start:
    """What verl's older trainer stops at, though the newer one goes on."""
    tracker = _tracker(asked)
    if asked.text(_HDFS):
        found = Start(fault=f"the older trainer stops at {_HDFS}", remedy=f"leave out {_HDFS}")
    elif tracker.fault and not tracker.silent:
        found = replace(tracker, fault=f"the older trainer reads the tracker all the same: {tracker.fault}")
    else:
        return start
    older = {"false": True, "true": False}.get(asked.text(_V1).lower())
    if start.fault or older is False:
        return start
    if older:
        return found
    return replace(start, doubts=(*start.doubts, f"with {_V1}=False {found.fault}"), remedy=found.remedy)


def _is_sft(asked: _Asked) -> bool:
    """Whether the SFT trainer wrote the newest step here: its shards lie in no role's directory."""
    for _, path in reversed(step_dirs(asked.node.output_dir, asked.layout)):
        try:
            shards = [s for name in list_step(path).files if (s := asked.layout.shard(name)) is not None]
        except CkptsyncError:
            continue
        if shards:
            return not shards[0].role
    return False


def _by_path(asked: _Asked, path: str, *, sft: bool) -> Start:
    right = f"{_PATH}={os.path.join(asked.output_dir, _IN_PATH)}N, without a slash at the end"
    if not path:
        return Start(fault=f"{_MODE}=resume_path without {_PATH}: verl stops", remedy=f"give {right}")
    if _IN_PATH not in path:
        fault = f"{_PATH}={path}: verl stops at a path without {_IN_PATH}N (a link, too)"
        return Start(fault=fault, remedy=f"give {right}")
    if not sft and not re.fullmatch(r"[0-9]+", path.rpartition(_IN_PATH)[2]):
        bare = path.rstrip("/")
        fault = f"{_PATH}={path}: verl reads the number from the end of the path, and stops"
        number = re.fullmatch(r"[0-9]+", bare.rpartition(_IN_PATH)[2])
        return Start(fault=fault, remedy=f"give {_PATH}={bare}" if number else f"give {right}")
    found = _directory(asked, path, _PATH)
    if found.path and not os.path.isabs(path):
        return replace(found, doubts=(_relative(_PATH, path),))
    return found


def _by_tracker(asked: _Asked) -> Start:
    """Mode auto."""
    said = asked.text(_DIR)
    doubts: tuple[str, ...] = ()
    there = asked.home(said) if said else asked.node.output_dir
    if os.path.realpath(there) != os.path.realpath(asked.node.output_dir):
        return Start(
            fault=_elsewhere(asked, _DIR, said),
            silent=True,
            remedy=f"give {_DIR}={asked.output_dir}, or set [run] output_dir",
        )
    if said and not os.path.isabs(said):
        doubts = (_relative(_DIR, said),)
    elif not said and asked.told:
        doubts = (_unknown_dir(asked),)
    return replace(_tracker(asked), doubts=doubts)


def _elsewhere(asked: _Asked, name: str, said: str) -> str:
    there = asked.home(said)
    leads = "" if there == said else f" leads to {there}, which"
    return f"{name}={said}{leads} is not where the steps are, {asked.node.output_dir}: the trainer does not see them"


def _unknown_dir(asked: _Asked) -> str:
    if asked.now.is_unresolved(_DIR):
        return f"{_DIR} is not known, since Hydra could not resolve it"
    return f"{_DIR} is not known; by itself verl takes a directory below the one that its worker starts in"


def _relative(name: str, path: str) -> str:
    return (
        f"{name}={path} is relative: verl resolves it where its worker runs, and Ray gives that a directory of its own"
    )


def _tracker(asked: _Asked) -> Start:
    """What the tracker in output_dir leads to."""
    tracker, where = asked.layout.tracker, asked.node.output_dir
    assert tracker is not None, "verl has one"
    found, path = read_tracker(where, asked.layout), os.path.join(where, tracker.name)
    if found is None and os.path.lexists(path):
        return Start(fault=f"{path} cannot be read", remedy="make it readable for this user", repairable=True)
    if found is None:
        why = f"{tracker.name} is missing in {where}: the trainer starts from step 0"
        return Start(fault=why, silent=True, remedy=PULL, repairable=True)
    if found.step is None:
        what = "is empty" if not os.path.getsize(path) else "holds no number"
        return Start(fault=f"{tracker.name} {what}: verl stops at it", remedy=PULL, repairable=True)
    there = step_path(asked.node, found.step)
    if not there:
        why = f"{tracker.name} names step {found.step}, which is not on this disk: the trainer starts from step 0"
        return Start(fault=why, silent=True, remedy=PULL, repairable=True)
    return Start(there, by=tracker.name)


# -- others


def _layered(asked: _Asked, newest: str) -> Start:
    """The trainer resumes only if it is told a directory."""
    said = next((text for name in _CHECKPOINT if (text := asked.text(name))), "")
    if said and said.lower() not in _NO:
        return _directory(asked, said, _CHECKPOINT[0])
    if not asked.told:
        return Start(newest, by="the arguments that `ckptsync exec` adds")
    why = f"{_CHECKPOINT[0]} is not among the arguments: the trainer starts from step 0"
    return Start(fault=why, silent=True, remedy=_ARGUMENTS)


def _numbered(asked: _Asked) -> Start:
    """Hugging Face and all others."""
    known = next((known for name in _CHECKPOINT if (known := asked.now.get(name)) is not None), None)
    said = "true" if known is None else str(known.value)
    if known is not None and said.lower() in _NO:
        why = f"{_CHECKPOINT[1]}={said}: the trainer starts from step 0"
        return Start(fault=why, silent=True, remedy=_ARGUMENTS)
    if said.lower() not in _YES:
        return _directory(asked, said, _CHECKPOINT[1])
    where = asked.text(_HF_DIR)
    if where and os.path.realpath(asked.home(where)) != os.path.realpath(asked.node.output_dir):
        return Start(
            fault=_elsewhere(asked, _HF_DIR, where),
            silent=True,
            remedy=f"give {_HF_DIR}={asked.output_dir}, or set [run] output_dir",
        )
    return _pointed(asked) or _highest(asked)


def _pointed(asked: _Asked) -> Start | None:
    """By the pointer file of Megatron-LM or DeepSpeed; None = there is none."""
    readers: dict[str, Callable[[str, str], bool]] = {
        _MEGATRON: lambda text, name: text.isascii() and text.isdecimal() and asked.layout.step_of(name) == int(text),
        _DEEPSPEED: lambda text, name: text == name,
    }
    for pointer, names in readers.items():
        path = os.path.join(asked.node.output_dir, pointer)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_TEXT_MAX).strip()
        for _, there in step_dirs(asked.node.output_dir, asked.layout):
            if names(text, os.path.basename(there)):
                return Start(there, by=pointer)
        why = f"{path} says {text[:80]!r}, and there is no such step on this disk: the trainer starts from step 0"
        return Start(fault=why, silent=True, remedy=f"{PULL}; then write its name into {pointer}")
    return None


def _highest(asked: _Asked) -> Start:
    found = step_dirs(asked.node.output_dir, asked.layout)
    return Start(found[-1][1], by="the highest number") if found else Start()


def _directory(asked: _Asked, path: str, name: str) -> Start:
    """A step directory that the command names."""
    there = asked.home(path)
    if not os.path.isdir(there):
        return Start(fault=f"{name}={path}: {_this(path, there)} is not on this disk", remedy=PULL)
    there = os.path.realpath(there)
    if asked.layout.step_of(os.path.basename(there)) is None:
        fault = f"{name}={path}: {_this(path, there)} is no step directory of layout {asked.layout.name}"
        return Start(fault=fault, remedy=PULL)
    return Start(there, by=name)


def _this(path: str, there: str) -> str:
    """A directory by its name on this host, unless that was said just before."""
    return "it" if path.rstrip("/") == there else there
