"""What a launch really ran: the words of the trainer's own process, which a script between may hide. A note. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ckptsync.model.launch import LaunchRecord
from ckptsync.model.secrets import hide, hide_text, hide_words

__all__ = ["RAN", "Ran", "as_run", "read_ran"]

RAN = "trainer"
"""The note's name, beside the record of the launch."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The trainer's process, as it was seen below the command of a launch; fields as those of a LaunchRecord.

    Attributes:
        argv, cwd: of the process.
        settings, explicit, complete: what its words give, and Hydra makes of them.
        versions, datasets: of its interpreter; as it was seen.
        why: it is not known: why, for people; "" = it is. Then nothing else is said.
    """

    argv: tuple[str, ...] = ()
    cwd: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()
    complete: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    datasets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    why: str = ""

    def to_note(self) -> dict[str, object]:
        """As JSON has it, without secrets."""
        if self.why:
            return {"why": self.why}
        return {
            "argv": list(hide_words(self.argv)),
            "cwd": self.cwd,
            "settings": {name: hide(name, value) for name, value in self.settings.items()},
            "explicit": sorted(self.explicit),
            "complete": self.complete,
            "versions": dict(self.versions),
            "datasets": [[hide_text(path), hide("", dict(said))] for path, said in self.datasets.items()],
        }  # pairs: as names, paths would speak of secrets where a directory is called `tokens`


def read_ran(note: Mapping[str, object] | None) -> Ran | None:
    """The inverse of `to_note`; None = there is no such note, or it is none that `to_note` would have made."""
    if note is None:
        return None
    if isinstance(note.get("why"), str):
        return Ran(why=str(note["why"]))
    argv, explicit = note.get("argv"), note.get("explicit")
    settings, versions, datasets = (note.get(name) for name in ("settings", "versions", "datasets"))
    texts = [*argv, *explicit] if isinstance(argv, list) and isinstance(explicit, list) else [None]
    if not all(isinstance(text, str) for text in (*texts, note.get("cwd"))):
        return None
    if not isinstance(settings, dict) or not isinstance(versions, dict) or not isinstance(datasets, list):
        return None
    return Ran(
        argv=tuple(map(str, argv if isinstance(argv, list) else ())),
        cwd=str(note["cwd"]),
        settings=settings,
        explicit=frozenset(map(str, explicit if isinstance(explicit, list) else ())),
        complete=note.get("complete") is True,
        versions={name: str(version) for name, version in versions.items()},
        datasets=dict(filter(None, map(_dataset, datasets))),
    )


def _dataset(pair: object) -> tuple[str, Mapping[str, object]] | None:
    match pair:
        case [str(path), dict(said)]:
            return path, said
    return None


def as_run(record: LaunchRecord, ran: Ran | None) -> LaunchRecord:
    """The record with what was really run; without that as it is. `argv` stays what was typed."""
    if ran is None or ran.why:
        return record
    return replace(
        record,
        cwd=ran.cwd,
        settings=ran.settings,
        explicit=ran.explicit,
        complete=ran.complete,
        versions=ran.versions or record.versions,
        datasets={**record.datasets, **ran.datasets},
    )
