"""The command that is run: where the resume arguments go; what a recorded one becomes when it is run again. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ckptsync.errors import UsageError
from ckptsync.model.secrets import HIDDEN
from ckptsync.resume.compare import override

__all__ = ["PLACE", "again", "has_place", "is_script_of_a_shell", "to_resume", "with_arguments"]

PLACE = "{resume}"
"""In a command: here the resume arguments go."""
_SHELLS = frozenset(("ash", "bash", "dash", "ksh", "sh", "zsh"))
_SHELL_OPTIONS = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file"))  # with a word of their own
_ARGUMENT = re.compile(r"(?:\+{1,2}|~)?(?P<name>-{0,2}[A-Za-z_][\w./@-]*)(?P<equals>=)?")
_NO = "--no-"
_KEPT = re.compile(
    r"trainer\.(?:nnodes|n_gpus_per_node)"
    r"|algorithm\..+"
    r"|(?:actor_rollout_ref|critic)\.model\..+"
    r"|actor_rollout_ref\.rollout\.n"
    r"|.+\.(?:use_kl_loss|kl_loss_coef|kl_loss_type)"
    r"|.+\.(?:\w+_)?parallel_size"
    r"|.+\.(?:strategy|fsdp_size)"
)
"""What decides whether the state fits and the run is the same one: parallel sizes, algorithm, KL terms, model."""


def has_place(words: Sequence[str]) -> bool:
    """Whether the command says where the resume arguments go."""
    return any(PLACE in word for word in words)


def is_script_of_a_shell(words: Sequence[str]) -> bool:
    """Whether it ends with a script (`sh -c SCRIPT`): what is added after that never reaches the trainer."""
    shell = next((number for number, word in enumerate(words) if os.path.basename(word) in _SHELLS), len(words))
    before = ""
    for word in words[shell + 1 :]:
        if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", word):
            return True
        if word[:1] not in {"-", "+"} and before not in _SHELL_OPTIONS:
            return False
        before = word
    return False


def to_resume(words: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with the resume arguments: at `{resume}`, else in the place of those that it has, else at its end.

    Args:
        words: the command.
        arguments: of the layout (`trainer.resume_mode=resume_path`, `--resume=PATH`, `--no-rollout-state-restore`);
            none = nothing to resume from: the command stays as it is, but for `{resume}`.

    Raises:
        UsageError: it is a script for a shell, and does not say where they go.
    """
    if has_place(words):
        return tuple(_at_place(_without(words, arguments), arguments))
    if arguments and is_script_of_a_shell(words):
        raise UsageError(
            "the resume arguments have no place in this command",
            where=shlex.join(words[:2]),
            why="a shell's script does not see what follows it",
            remedy=f"write {PLACE} into the script, after the trainer's own arguments",
        )
    return with_arguments(words, arguments)


def with_arguments(words: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with these arguments, each in the place of the first that says the same thing, else at the end."""
    found = list(words)
    for group in _groups(arguments):
        place = None
        for start, end in reversed(list(_uses(found, _name(group[0])))):
            del found[start:end]
            place = start
        place = len(found) if place is None else place
        found[place:place] = group
    return tuple(found)


def again(words: Sequence[str], settings: Mapping[str, object], extra: Sequence[str]) -> tuple[str, ...]:
    """A recorded command for another start: with all that must stay as it was, said explicitly.

    Args:
        words: as recorded.
        settings: of the record; what it took from elsewhere than the command line is added where it must not change.
        extra: arguments of this start; they go before the recorded ones.

    Raises:
        UsageError: a secret was not recorded, and is not given again.
    """
    found = list(words)
    if not is_script_of_a_shell(words):
        said = {name for word in (*words[1:], *extra) if (name := _name(word))}
        found += [_one_word(name, settings[name]) for name in sorted(settings) if _kept(name, settings[name], said)]
    found = list(with_arguments(found, extra))
    for number, word in enumerate(found):
        if HIDDEN in word:
            flag = found[number - 1] if word == HIDDEN and number else ""
            raise UsageError(
                "a secret of the recorded command was not kept",
                where=f"{flag} {word}".strip(),
                remedy="give it again after --, in the same form",
            )
    return tuple(found)


def _kept(name: str, value: object, said: set[str]) -> bool:
    if name in said or _KEPT.fullmatch(name) is None or any(part.startswith("_") for part in name.split(".")):
        return False
    return value not in ({}, [], "???") and "${" not in str(value) and HIDDEN not in str(value)


def _one_word(name: str, value: object) -> str:
    """`override` is for people who copy it into a shell."""
    return shlex.split(override(name, value))[0]


def _at_place(words: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word == PLACE:
            yield from arguments
        else:
            yield word.replace(PLACE, shlex.join(arguments))


def _without(words: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The command without what the arguments will say."""
    found = list(words)
    for group in _groups(arguments):
        for start, end in reversed(list(_uses(found, _name(group[0])))):
            del found[start:end]
    return found


def _groups(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Each argument; a flag with the value that follows it."""
    group: list[str] = []
    for word in arguments:
        if group and _takes(group[0], word):
            yield [*group, word]
            group = []
            continue
        if group:
            yield group
        group = [word]
    if group:
        yield group


def _uses(words: Sequence[str], name: str) -> Iterator[tuple[int, int]]:
    """Where the command says something of a name: from, to. The program itself is none of them."""
    for number in range(1, len(words)):
        if name and _name(words[number]) == name:
            following = words[number + 1 : number + 2]
            yield number, number + (2 if following and _takes(words[number], following[0]) else 1)


def _takes(word: str, following: str) -> bool:
    """Whether a flag without a value of its own takes the next word for it."""
    bare = word.startswith("--") and "=" not in word and not word.startswith(_NO)
    return bare and not following.startswith("-") and PLACE not in following and not _is_assignment(following)


def _is_assignment(word: str) -> bool:
    match = _ARGUMENT.match(word)
    return match is not None and match["equals"] is not None and match.start("name") == 0


def _name(word: str) -> str:
    """What an argument is about; `--x` and `--no-x` are about one thing. "" = it is no argument."""
    match = _ARGUMENT.match(word)
    if match is None or (match["equals"] is None and not (word.startswith("--") and match.end() == len(word))):
        return word[1:] if re.fullmatch(r"~[A-Za-z_][\w./@-]*", word) else ""
    name = match["name"]
    return f"--{name[len(_NO) :]}" if name.startswith(_NO) else name
