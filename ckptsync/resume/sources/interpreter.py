"""The trainer's own Python, asked in a child process: which versions it has, and what Hydra makes of a command line.

The trainer itself is never imported: that takes minutes, may take GPUs, and runs its code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from ckptsync.disk.read import FileSource
from ckptsync.errors import ConfigError
from ckptsync.model.secrets import is_secret
from ckptsync.resume.sources.command import UNKNOWN, Command, read_command

__all__ = ["Composed", "Interpreter", "child_env", "find_interpreter"]

PACKAGES = (
    *("torch", "verl", "vllm", "sglang", "transformers", "ray", "numpy", "flash-attn", "flashinfer-python"),
    *("hydra-core", "omegaconf", "tensordict", "torchdata", "TransferQueue", "peft", "accelerate", "deepspeed"),
    *("trl", "megatron-core", "mbridge", "transformer-engine", "datasets", "tokenizers"),
)
_TIMEOUT_S = 20.0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_SHEBANG_BYTES_MAX = 1024
_LONG_SHEBANG = re.compile(r"""'''exec' "?([^"\n]+?)"? "\$0" "\$@\"""")
_OPTIONS = {
    "--config-path": "config_path",
    "-cp": "config_path",
    "--config-name": "config_name",
    "-cn": "config_name",
    "--config-dir": "config_dir",
    "-cd": "config_dir",
}


@dataclass(frozen=True, slots=True)
class Composed:
    """What Hydra makes of a command line.

    Attributes:
        values: dotted name -> value; `???` is a mandatory one that nobody gave.
        missing: names without a value here: interpolations that only the running trainer can resolve.
    """

    values: Mapping[str, object]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can be run.

    Attributes:
        path: absolute; a link of a virtual environment is not followed.
        env: the environment of the start.
        timeout_s: for each question.
    """

    path: str
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), compare=False, repr=False)
    timeout_s: float = field(default=_TIMEOUT_S, compare=False, repr=False)

    def versions(self) -> Mapping[str, str]:
        """Package -> version, for those of `PACKAGES` that are there; `python`; `cuda`, which torch was built for.

        Empty where the interpreter gives no answer in time.
        """
        answer = self._ask({"what": "versions", "names": PACKAGES}, "/")
        return {str(name): str(version) for name, version in answer.items()} if isinstance(answer, dict) else {}

    def compose(self, words: Sequence[str], cwd: str) -> Mapping[str, object] | None:
        """All settings of the start, by dotted names, as `--cfg job --resolve` of the command would show them.

        Args:
            words: the whole command; without it nobody knows which application it is.
            cwd: where it is started.

        Returns:
            None = it is no Hydra application, or Hydra refuses, or it takes too long.
        """
        found = self.composed(words, cwd)
        return found.values if found is not None else None

    def composed(self, words: Sequence[str], cwd: str) -> Composed | None:
        """As `compose`, and with the names of what could not be resolved."""
        request = _request(read_command(words))
        if request is None:
            return None
        answer = self._ask(request, cwd)
        if not isinstance(answer, dict):
            return None
        return Composed(dict(answer["values"]), tuple(answer["missing"]))

    def _ask(self, request: Mapping[str, object], cwd: str) -> Any:
        source = files("ckptsync.resume.sources").joinpath("interpreter_child.py").read_text(encoding="utf-8")
        data = _run([self.path, "-c", source], json.dumps(request).encode(), cwd, child_env(self.env), self.timeout_s)
        try:
            return json.loads(data)
        except ValueError:
            return None


def _request(command: Command) -> dict[str, object] | None:
    """What to compose; None = an unknown application, or options that do something else than to run it once."""
    if not command.module and not command.script.endswith(".py"):
        return None
    request: dict[str, object] = dict.fromkeys(("config_path", "config_name", "config_dir"), "")
    overrides: list[str] = []
    words = iter(command.arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if UNKNOWN in word or (word.startswith("-") and name not in _OPTIONS):
            return None
        if name in _OPTIONS:
            request[_OPTIONS[name]] = value if equals else next(words, "")
        else:
            overrides.append(word)
    return {**request, "what": "compose", "module": command.module, "script": command.script, "overrides": overrides}


def _run(argv: Sequence[str], data: bytes, cwd: str, env: Mapping[str, str], timeout_s: float) -> bytes:
    """What a child writes; nothing where it fails or is late. It and all that it started is gone afterwards."""
    try:
        child = subprocess.Popen(  # noqa: S603 - the interpreter that the user names
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return b""
    with child:
        try:
            out, _ = child.communicate(data, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return b""
        finally:
            _end(child)
    return out if child.returncode == 0 and len(out) <= _ANSWER_BYTES_MAX else b""


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def child_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without our own variables, without secrets, and without a trace in the trainer's packages."""
    kept = {name: value for name, value in env.items() if not name.startswith("CKPTSYNC_") and not is_secret(name)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


# -- finding it


def find_interpreter(command: Sequence[str], given: str | None, env: Mapping[str, str]) -> Interpreter | None:
    """The interpreter that a command runs in.

    Args:
        command: the words; `python3`, or a script like `torchrun` that begins with `#!`.
        given: `--python`; it is taken as it is.
        env: the environment of the start; its PATH is searched.

    Returns:
        None = the command does not say (a shell script), or it is not the one of that name here (a container, another
        machine, `uv run`).

    Raises:
        ConfigError: `given` cannot be run.
    """
    if given is not None:
        path = _which(given, env)
        if path is None:
            raise ConfigError("no such interpreter", where=given, remedy="give --python the trainer's own Python")
        return Interpreter(path, dict(env))
    found = read_command(command, env)
    if found.elsewhere:
        return None
    inner = {**env, **dict(found.env)}
    word = found.python or found.script
    path = _which(word, inner) if word else None
    if path is None:
        return None
    python = path if re.match(r"(?:python|pypy)[0-9.]*t?\Z", os.path.basename(path)) else _shebang(path, inner)
    return Interpreter(python, inner) if python is not None else None


def _which(word: str, env: Mapping[str, str]) -> str | None:
    found = shutil.which(word, path=env.get("PATH", os.defpath))
    return os.path.abspath(found) if found is not None else None


def _shebang(path: str, env: Mapping[str, str]) -> str | None:
    """The Python that a script names in its first line."""
    try:
        with FileSource(path) as source:
            head = source.read(0, _SHEBANG_BYTES_MAX).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    if not head.startswith("#!"):
        return None
    long = _LONG_SHEBANG.search(head)
    words = [long[1]] if long is not None else head[2:].partition("\n")[0].split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or re.match(r"(?:python|pypy)[0-9.]*t?\Z", os.path.basename(words[0])) is None:
        return None
    return _which(words[0], env)
