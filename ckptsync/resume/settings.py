"""Settings of a training, by their dotted names, each with the place where it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Known", "Settings", "same"]


@dataclass(frozen=True, slots=True)
class Known:
    """A value and its source.

    Attributes:
        value: as JSON has it: text, number, bool, None, list or dict of these.
        source: for people: "the launch record of attempt a-1", "/out/.hydra/config.yaml", "the command line".
    """

    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known of a start. A name that is absent is not known: never a default that somebody guessed.

    Attributes:
        values: dotted name (`actor_rollout_ref.rollout.n`) -> what is known.
        explicit: names that the command line itself gave.
        complete: everything that the trainer will use is here (Hydra resolved it), so an absent name is one that the
            trainer does not have.
        unresolved: names (of a value, or of all below it) that the configuration has, and of which it does not tell
            the value here: `${oc.env:...}`, a resolver of the trainer's own.
        why: why not more is known, for people; "" = nobody has told that.
    """

    values: Mapping[str, Known] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()
    complete: bool = False
    unresolved: frozenset[str] = frozenset()
    why: str = ""

    def get(self, name: str) -> Known | None:
        """What is known of `name`."""
        return self.values.get(name)

    def is_unresolved(self, name: str) -> bool:
        """Whether the configuration has `name`, and nobody here can tell its value."""
        if name in self.values:
            return False
        return any(name == each or name.startswith(f"{each}.") for each in self.unresolved)

    def under(self, prefix: str) -> Iterator[tuple[str, Known]]:
        """All of `prefix.*`, in the order of their names."""
        return ((name, self.values[name]) for name in sorted(self.values) if name.startswith(f"{prefix}."))


def same(one: object, other: object) -> bool:
    """Whether two values mean the same to a trainer: 1 and 1.0 and "1", True and "true", None and "null", 1e-6."""
    return _plain(one) == _plain(other)


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return float(str(value))
    except ValueError:
        return {"none": "null", "~": "null"}.get(str(value).lower(), _word(str(value)))


def _word(text: str) -> str:
    return text.lower() if text.lower() in {"true", "false", "null"} else text
