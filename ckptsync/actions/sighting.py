"""Seeing the trainer behind a script: what runs below the command of `ckptsync exec`, looked at now and then.

A script may take minutes until it starts the trainer, run something before it, or start it again. So it is looked for
every few seconds until it was found, and then once a minute for as long as the command runs; a look reads /proc, for
some milliseconds. Two trainers that were given different things are no answer, whoever of them was first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ckptsync.resume.running.below import environment_of, processes_below
from ckptsync.resume.sources.command import read_command
from ckptsync.resume.sources.trainer_process import Key, Process, differing, find_trainers, key_of

__all__ = ["Seen", "Sighting"]

_OFTEN_S, _SELDOM_S = 5.0, 60.0
_PATIENCE_S, _BESIDE_S = 600.0, 30.0  # a script that starts two does so soon
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """The trainer's process.

    Attributes:
        process: its words, with which directory.
        env: its environment.
        why: two were seen: what differs, for people; "" = it is the only one.
    """

    process: Process
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    why: str = ""


class Sighting:
    """What is known of the trainer below a command, look by look. For one thread; `direct` for all.

    Args:
        root: the process below which it is.
        words: the command as it was typed.
        output_dir, trainer_dir: the run's, as this host and as the trainer sees it.

    Attributes:
        direct: the trainer is one of those processes itself, by what was typed or was seen; not one that runs somewhere
            else on their behalf.
    """

    def __init__(self, root: int, words: Sequence[str], output_dir: str, trainer_dir: str) -> None:
        self._root, self._dirs = root, (output_dir, trainer_dir)
        self._typed, self._elsewhere = key_of(words), read_command(words).elsewhere
        self._often_until = time.monotonic() + _PATIENCE_S
        self._found: dict[Key, Seen] = {}
        self._over = False
        self.direct = Process(0, 0, tuple(words)).direct

    @property
    def pause_s(self) -> float:
        """Until the next look."""
        return _OFTEN_S if time.monotonic() < self._often_until and not self._over else _SELDOM_S

    def look(self) -> Seen | None:
        """One look; what it has changed in what is known. None = nothing, or only what the typed words say, too."""
        if self._over:
            return None
        news = [
            key
            for each in find_trainers(processes_below(self._root), self._root, *self._dirs)
            for key in self._take(each)
        ]
        if len(self._found) > 1:
            self._over = True
            one, other = list(self._found.values())[:2]
            return Seen(other.process, why=_why(one.process, other.process))
        return next((self._found[key] for key in news if not self._is_typed(key)), None)

    def _take(self, process: Process) -> list[Key]:
        """Keep it, if it is new, or nearer to the trainer than what was seen of it before."""
        key = key_of(process.words)
        before = self._found.get(key)
        if before is not None and (before.process.direct or not process.direct):
            return []
        if not (env := environment_of(process.pid)):
            return []  # it has just ended
        self._found[key], self._often_until = Seen(process, env), time.monotonic() + _BESIDE_S
        self.direct = self.direct or process.direct
        return [key]

    def _is_typed(self, key: Key) -> bool:
        return key == self._typed and not (self._elsewhere and self._found[key].process.direct)


def _why(one: Process, other: Process) -> str:
    """Names alone: values may be secret."""
    names = differing(one.words, other.words)
    more = f", and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    what = f"they differ in {', '.join(names[:_NAMED_MAX])}{more}" if names else "they are different programs"
    return f"two trainers were seen below the command (pid {one.pid}, pid {other.pid}): {what}"
