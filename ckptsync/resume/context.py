"""What the checks of a preflight are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptsync.app import Node
from ckptsync.model.manifest import Part
from ckptsync.model.step import Level, Listing
from ckptsync.resume.settings import Settings

if TYPE_CHECKING:
    from ckptsync.model.launch import LaunchRecord
    from ckptsync.resume.sources.interpreter import Interpreter

__all__ = ["Context", "Resumed"]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The step that the start will resume from.

    Attributes:
        step: its number.
        listing: its directory on this disk, and the files in it.
        part: what was verified of it here, while that still stands; None = it was not verified since it changed.
        saved_ns: when its save ended (store time); 0 = not known.
        commit: its digest in the store; "" = it is not committed.
    """

    step: int
    listing: Listing
    part: Part | None = None
    saved_ns: int = 0
    commit: str = ""

    @property
    def path(self) -> str:
        """The directory."""
        return self.listing.path


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a check may look at. A check changes nothing, except what `fix` allows and it says first.

    Attributes:
        node: this node: configuration, output_dir, layout, store.
        resumed: None = no step on this disk would be resumed from.
        wanted: the number of the newest whole step that there is, here or in the store; None = there is none.
        wanted_path: its directory, where it is on this disk as it should be; "" = this node does not have it.
        store_asked: the store was asked for that, and has answered; else only this disk is known.
        now: what the start will use: its arguments, and what Hydra makes of them where that can be found out.
        then: what the training that wrote the step used, best source first; empty where nobody knows.
        record: of the launch that wrote the step; None = it was not started by `ckptsync exec`.
        python: the trainer's interpreter; None = not found.
        level: how much of the step is read again; None = what was verified before is enough.
        fix: repair what can be repaired.
        say: told what is about to be changed.
        env: the environment of the start.
        cwd: the directory that the trainer starts in.
        words: its command, or only its arguments, as they were given; empty = nobody said.
        nodes: how many nodes start together.
    """

    node: Node
    resumed: Resumed | None
    wanted: int | None
    now: Settings = field(default_factory=Settings)
    then: Settings = field(default_factory=Settings)
    record: LaunchRecord | None = None
    python: Interpreter | None = None
    level: Level | None = None
    fix: bool = False
    say: Callable[[str], None] = lambda _: None
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    cwd: str = ""
    words: tuple[str, ...] = ()
    wanted_path: str = ""
    store_asked: bool = True
