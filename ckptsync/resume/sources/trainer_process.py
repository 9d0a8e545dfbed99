"""Which of the processes below a command is the run's trainer. Pure.

Not by a list of trainers alone: one that is not in it is recognised by what it is told. verl's applications
(verl 0.9.1, trainer/) all take settings of the group `trainer`; those that only generate or evaluate do, too, and save
nothing to resume from. Others are told, by a flag or a setting, where they save.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckptsync.resume.settings import Settings
from ckptsync.resume.sources.arguments import parse_arguments
from ckptsync.resume.sources.command import Command, read_command
from ckptsync.resume.sources.hydra import elsewhere

__all__ = ["Key", "Process", "differing", "find_trainers", "key_of"]

_TRAINERS = re.compile(r"main_ppo\w*|(?:\w+_)?sft_trainer\w*")
_NO_TRAINERS = re.compile(r"main_(?:generation|eval)\w*")
_GROUP = "trainer."
_SAVES = frozenset(("output_dir", "default_local_dir", "save_dir", "save", "save_path", "checkpoint_dir", "ckpt_dir"))
_SCRIPTS = frozenset(("torchrun", "accelerate", "deepspeed", "ray", "conda", "mamba", "poetry", "pdm", "pipenv"))
"""Python scripts without `.py`, of whose options `read_command` knows which begin the trainer's own words."""

Key = tuple[str, str, tuple[str, ...]]
"""What makes two processes one trainer: its module, its script, its arguments."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process below the command.

    Attributes:
        pid, parent: as the kernel has them.
        argv: its command line.
        cwd: its working directory; "" = not known.
    """

    pid: int
    parent: int
    argv: tuple[str, ...]
    cwd: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """As somebody would have typed it: without the interpreter that the kernel took from a script's first line."""
        script = os.path.basename(self.argv[1]) if len(self.argv) > 1 else ""
        return self.argv[1:] if script in _SCRIPTS and not self.argv[1].startswith("-") else self.argv

    @property
    def direct(self) -> bool:
        """Whether it is the interpreter itself, not what only starts one (`timeout`, `uv run`, `ray job submit`)."""
        return bool(self.words) and read_command(self.words).python == self.words[0]


def find_trainers(processes: Mapping[int, Process], root: int, output_dir: str, trainer_dir: str) -> list[Process]:
    """The trainers below `root`: of each line of descent the first that is one; what only starts one counts last.

    A trainer's own children (workers, launchers' ranks) are no other trainers.

    Args:
        processes: all below `root`, by pid; without itself.
        root: a process.
        output_dir: the run's.
        trainer_dir: the same as the trainer sees it; "" = by the same name.
    """
    children: dict[int, list[Process]] = {}
    for each in processes.values():
        children.setdefault(each.parent, []).append(each)

    def below(pid: int) -> Iterator[Process]:
        for each in sorted(children.get(pid, ()), key=lambda child: child.pid):
            is_one = _is_trainer(each, output_dir, trainer_dir)
            found = [] if is_one and each.direct else list(below(each.pid))
            yield from found or ([each] if is_one else [])

    return list(below(root))


def key_of(words: Sequence[str]) -> Key:
    """Which trainer words start."""
    command = read_command(words)
    return command.module, command.script, command.arguments


def differing(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Names of the settings that two command lines do not give alike, sorted."""
    ones, others = parse_arguments(one), parse_arguments(other)
    values = [{name: known.value for name, known in each.values.items()} for each in (ones, others)]
    given = {name for name in values[0].keys() | values[1].keys() if values[0].get(name) != values[1].get(name)}
    return sorted(given | (ones.explicit ^ others.explicit))


def _is_trainer(process: Process, output_dir: str, trainer_dir: str) -> bool:
    command = read_command(process.words)
    if command.python not in process.words or not (command.module or command.script):
        return False
    name = _name(command)
    settings = parse_arguments(process.words)
    if _NO_TRAINERS.fullmatch(name) or elsewhere(settings, output_dir, trainer_dir):
        return False
    if _TRAINERS.fullmatch(name) or any(given.startswith(_GROUP) for given in settings.explicit):
        return True
    return _saves_there(settings, process.cwd, {output_dir, trainer_dir or output_dir})


def _name(command: Command) -> str:
    return command.module.rpartition(".")[2] or os.path.basename(command.script).removesuffix(".py")


def _saves_there(settings: Settings, cwd: str, dirs: set[str]) -> bool:
    """Whether it is told to save into the run's directory."""
    told = [known.value for name, known in settings.values.items() if name.rpartition(".")[2] in _SAVES]
    paths = (os.path.normpath(os.path.join(cwd, text)) for text in told if isinstance(text, str) and text)
    return not dirs.isdisjoint(paths)
