"""Which trainer a command line starts: its interpreter, its module or script, and the arguments that it gets."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

__all__ = ["UNKNOWN", "Command", "read_command", "runs_script"]

UNKNOWN = "${...}"
"""Stands for what only a shell knows; read as an interpolation, which is not known either."""

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner")
)
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_SCRIPTS = (".sh", ".bash")
_ARGUMENT = re.compile(r"[+~]{0,2}[A-Za-z_$][\w$./@-]*=|-{1,2}[A-Za-z]|[+~]{1,2}[A-Za-z_$]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATOR = re.compile(r"[;&|<>()]+")
_VALUED = frozenset(("-X", "-W", "--check-hash-based-pycs"))
_OTHERS = frozenset(
    ("ssh", "kubectl", "docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "chroot", "nsenter")
)
_ENVIRONMENTS = frozenset(("uv", "conda", "mamba", "micromamba", "poetry", "pipenv", "pdm", "pixi", "hatch", "rye"))
_HERE = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, taken apart. What is not known is empty.

    Attributes:
        python: the word that names the interpreter, or a launcher's script that does (`torchrun`).
        module: of `-m`.
        script: a Python file; or a program that gets the arguments.
        arguments: what the trainer itself is given.
        elsewhere: the interpreter is not the one of that name here: another machine's, a container's, or one that a
            tool picks (`uv run`).
        env: assignments before the command (`env NAME=value`).
    """

    python: str = ""
    module: str = ""
    script: str = ""
    arguments: tuple[str, ...] = ()
    elsewhere: bool = False
    env: tuple[tuple[str, str], ...] = ()


def read_command(words: Sequence[str], env: Mapping[str, str] | None = None) -> Command:
    """Take a command, or only the arguments of one, apart.

    Before the interpreter anything may stand (`env`, `srun`, `numactl`, `ray job submit --`). `bash -c TEXT` is looked
    into; what a shell script itself does with its arguments is not known, they are taken for the trainer's.

    Args:
        words: as the shell hands them over.
        env: its environment, which may say where Ray's cluster is.
    """
    words = list(words)
    if not words or _is_argument(words[0]):
        return Command(arguments=tuple(words))
    at = next((i for i, word in enumerate(words) if _starts(word)), None)
    if at is None:
        at = next((i for i, word in enumerate(words) if os.path.basename(word) in _SHELLS), None)
        command = _shell(words[at + 1 :]) if at is not None else _program(words)
    else:
        command = _python(words[at], words[at + 1 :])
    before = words[: at or 0]
    assigned = tuple(_assignments(before)) + command.env
    return replace(command, elsewhere=_is_elsewhere(before, {**(env or {}), **dict(assigned)}), env=assigned)


def runs_script(words: Sequence[str]) -> bool:
    """Whether a shell script stands between these words and the trainer: it may give arguments that are not seen."""
    command = read_command(words)
    if command.python or not command.script:
        return False
    before = words[: list(words).index(command.script)] if command.script in words else ()
    return command.script.endswith(_SCRIPTS) or any(os.path.basename(word) in _SHELLS for word in before)


def _is_argument(word: str) -> bool:
    return _ARGUMENT.match(word) is not None and not _is_assignment(word)


def _is_assignment(word: str) -> bool:
    """Of the environment, before a command: in capitals."""
    return _ASSIGNMENT.match(word) is not None and word.partition("=")[0].isupper()


def _starts(word: str) -> bool:
    name = os.path.basename(word)
    return "=" not in word and (_PYTHON.fullmatch(name) is not None or name in _LAUNCHERS)


def _assignments(words: Iterable[str]) -> list[tuple[str, str]]:
    pairs = (word.partition("=") for word in words if _ASSIGNMENT.match(word))
    return [(name, value) for name, _, value in pairs]


def _is_elsewhere(before: Sequence[str], env: Mapping[str, str]) -> bool:
    """`ray job submit` runs where the cluster is."""
    names = [os.path.basename(word) for word in before]
    if not _OTHERS.isdisjoint(names) or (not _ENVIRONMENTS.isdisjoint(names) and "run" in names):
        return True
    if "ray" not in names:
        return False
    address = next((word.partition("=")[2] for word in before if word.startswith("--address=")), "")
    if "--address" in before[:-1]:
        address = before[before.index("--address") + 1]
    address = address or env.get("RAY_API_SERVER_ADDRESS", "") or env.get("RAY_ADDRESS", "")
    return address not in ("", "auto") and (urlsplit(address).hostname or address.partition(":")[0]) not in _HERE


def _python(python: str, rest: Sequence[str]) -> Command:
    if os.path.basename(python) in _LAUNCHERS:
        return _launched(python, rest)
    at = 0
    while at < len(rest) and rest[at].startswith("-") and rest[at] != "-":
        word = rest[at]
        if word.startswith("-m") and not word.startswith("--"):
            at, module = (at + 1, word[2:]) if word != "-m" else (at + 2, "".join(rest[at + 1 : at + 2]))
            if module in _LAUNCHER_MODULES:
                return _launched(python, rest[at:])
            return Command(python, module, "", tuple(rest[at:]))
        if word.startswith("-c") and not word.startswith("--"):
            return Command(python, arguments=tuple(rest[at + (2 if word == "-c" else 1) :]))
        at += 2 if word in _VALUED else 1
    script = "".join(rest[at : at + 1])
    return Command(python, "", script if script != "-" else "", tuple(rest[at + 1 :]))


def _launched(python: str, rest: Sequence[str]) -> Command:
    """Behind the launcher's own options: a module after `-m` or `--module`, or the first Python file."""
    for at, word in enumerate(rest):
        if word in ("-m", "--module"):
            after = next((i for i in range(at + 1, len(rest)) if not rest[i].startswith("-")), None)
            if after is not None:
                return Command(python, rest[after], "", tuple(rest[after + 1 :]))
        if word.endswith(".py") and not word.startswith("-"):
            return Command(python, "", word, tuple(rest[at + 1 :]))
    return Command(python)


def _program(words: Sequence[str]) -> Command:
    """One of its own, perhaps a Python script that can be run."""
    first = next((i for i, word in enumerate(words) if not _is_assignment(word)), len(words))
    env = tuple(_assignments(words[:first]))
    return Command(script="".join(words[first : first + 1]), arguments=tuple(words[first + 1 :]), env=env)


def _shell(rest: Sequence[str]) -> Command:
    """What a shell is given: a text, or a script."""
    text = next((rest[i + 1] for i, word in enumerate(rest[:-1]) if re.fullmatch(r"-[a-z]*c", word)), None)
    if text is not None:
        return _shell_text(text)
    script = next((i for i, word in enumerate(rest) if not word.startswith("-")), None)
    return Command() if script is None else Command(script=rest[script], arguments=tuple(rest[script + 1 :]))


def _shell_text(text: str) -> Command:
    """One of a shell's commands: the first with an interpreter."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return Command()
    parts: list[list[str]] = [[]]
    for word in words:
        if _OPERATOR.fullmatch(word):
            parts.append([])
        else:
            parts[-1].append(word)
    part = next((part for part in parts if any(map(_starts, part))), None)
    part = part or next((part for part in parts if _is_script_call(part)), None)
    if part is None:
        return Command()
    part = part[1:] if part[0] == "exec" else part
    return read_command([_expanded(word) for word in part])


def _is_script_call(part: Sequence[str]) -> bool:
    """`bash train.sh ...`, `exec ./train.sh ...`; not `source env.sh`."""
    words = [word for word in part[:2] if word != "exec"]
    return bool(words) and (os.path.basename(words[0]) in _SHELLS or words[0].endswith(_SCRIPTS))


def _expanded(word: str) -> str:
    """What the shell makes of a word with a variable or a command in it, nobody knows here."""
    if "$" not in word and "`" not in word:
        return word
    name, equals, _ = word.partition("=")
    return f"{name}={UNKNOWN}" if equals and "$" not in name and "`" not in name else UNKNOWN
