"""What a case hands over: the figures of each arm, and how they stand to the targets. Kept as JSON between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.stats import Spread, ratios, spread

__all__ = ["Arm", "Result", "Table", "Target", "against", "figure", "load", "store"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of doing it, and its figures: what and in which unit -> one value a round."""

    name: str
    figures: dict[str, list[float]]

    def spread(self, figure: str) -> Spread:
        """Over the rounds. Raises KeyError."""
        return spread(self.figures[figure])


@dataclass(frozen=True, slots=True)
class Table:
    """Arms that were measured in the same rounds.

    Attributes:
        title: what was done, to how many bytes.
        arms: the first is ckptsync's.
        versus: figure whose ratio to the first arm is shown; "" = none.
        drawn: whether the plot shows it.
    """

    title: str
    arms: list[Arm]
    versus: str = "wall s"
    drawn: bool = True

    def arm(self, name: str) -> Arm | None:
        """The arm of that name, if it was measured."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound, and what came out; `measured` is None if it could not be measured, and `why` says why.

    `bound` is the most, or with `at_least` the least, that the median may be.
    """

    what: str
    measured: Spread | None
    bound: float
    unit: str = "x"
    at_least: bool = False
    why: str = ""

    @property
    def met(self) -> bool | None:
        """None if it was not measured."""
        if self.measured is None:
            return None
        return self.measured.median >= self.bound if self.at_least else self.measured.median <= self.bound


@dataclass(frozen=True, slots=True)
class Result:
    """Of one case.

    Attributes:
        case: its name on the command line.
        title: for people.
        method: what was timed and what was not, cache state, options: a paragraph.
        rounds: interleaved repetitions.
        when: date and time, UTC.
        scale: "full" or "quick".
    """

    case: str
    title: str
    method: str
    rounds: int
    when: str
    scale: str
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)


def against(
    table: Table,
    peer: str,
    bound: float,
    what: str,
    *,
    ours: str = "",
    figure: str = "wall s",
    at_least: bool = False,
) -> Target:
    """The target that an arm's figure (by default the first arm's) stays within `bound` times the peer's."""
    mine = table.arm(ours) if ours else table.arms[0]
    theirs = table.arm(peer)
    if mine is None or theirs is None:
        return Target(what, None, bound, at_least=at_least, why=f"{peer if mine else ours} is not installed")
    return Target(what, ratios(mine.figures[figure], theirs.figures[figure]), bound, at_least=at_least)


def figure(table: Table, arm: str, name: str, bound: float, what: str, unit: str, *, at_least: bool = False) -> Target:
    """The target that an arm's figure itself stays within `bound`."""
    mine = table.arm(arm)
    measured = mine.spread(name) if mine else None
    return Target(what, measured, bound, unit, at_least, why="" if mine else "not measured")


_ADAPTER = TypeAdapter(Result)


def store(result: Result, directory: Path) -> None:
    """Keep a result as `directory/CASE.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{result.case}.json").write_bytes(_ADAPTER.dump_json(result, indent=1))


def load(directory: Path, cases: Sequence[str]) -> list[Result]:
    """The kept results of these cases, in this order; those never run are left out."""
    files = [directory / f"{case}.json" for case in cases]
    return [_ADAPTER.validate_json(file.read_bytes()) for file in files if file.is_file()]
