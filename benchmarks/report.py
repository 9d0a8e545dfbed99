"""RESULTS.md: the targets in one table, then each case with all its arms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.results import Arm, Result, Table, Target
from benchmarks.stats import Spread, ratios

__all__ = ["markdown", "number", "spelled"]

_VERDICTS = {True: "met", False: "**missed**", None: "not measured"}


def markdown(results: Sequence[Result], facts: Mapping[str, str]) -> str:
    """The whole report.

    Args:
        results: in the order in which they are to be shown.
        facts: about the machine and the versions of everything: what -> how much.
    """
    return "\n".join(_lines(results, facts)) + "\n"


def _lines(results: Sequence[Result], facts: Mapping[str, str]) -> Iterator[str]:
    yield "# Results"
    yield ""
    yield "Written by `make bench`; [README.md](README.md) says how it is measured. Each figure is the median over the"
    yield "rounds, with the least and the greatest in brackets. A ratio is the median of the ratios of single rounds."
    if any(result.scale == "quick" for result in results):
        yield ""
        yield "**Quick run: small data and one round. It shows that everything runs, and nothing else.**"
    yield ""
    yield from _rows(("machine and versions", ""), facts.items())
    yield ""
    yield "## Targets"
    yield ""
    yield "Lines in brackets have no target of their own, and are held against their neighbour's."
    yield ""
    targets = [_target_cells(target) for result in results for target in result.targets]
    yield from _rows(("what", "target", "measured", ""), targets)
    for result in results:
        yield from _case(result)


def _case(result: Result) -> Iterator[str]:
    yield ""
    yield f"## {result.title}"
    yield ""
    yield result.method
    yield ""
    yield f"`python -m benchmarks {result.case}`, {result.rounds} rounds, {result.when} UTC."
    for table in result.tables:
        yield ""
        yield f"{table.title}:"
        yield ""
        yield from _arms(table)
    if any(table.drawn for table in result.tables):
        yield ""
    for target in result.targets:
        if target.measured is None:
            yield f"Not measured: {target.what} ({target.why})."


def _arms(table: Table) -> Iterator[str]:
    figures = list(dict.fromkeys(figure for arm in table.arms for figure in arm.figures))
    head = ["", *figures, *([f"{table.arms[0].name} / this"] if table.versus else [])]
    yield from _rows(head, [_arm_cells(arm, figures, table) for arm in table.arms])


def _arm_cells(arm: Arm, figures: Sequence[str], table: Table) -> list[str]:
    cells = [spelled(arm.spread(figure)) if figure in arm.figures else "" for figure in figures]
    if not table.versus:
        return [arm.name, *cells]
    first = table.arms[0].figures[table.versus]
    return [arm.name, *cells, spelled(ratios(first, arm.figures[table.versus]))]


def _target_cells(target: Target) -> list[str]:
    bound = f"{'>=' if target.at_least else '<='} {target.bound:g}{_unit(target.unit)}"
    measured = f"{spelled(target.measured)}{_unit(target.unit)}" if target.measured else target.why
    verdict = "" if target.what.startswith("(") else _VERDICTS[target.met]
    return [target.what, bound, measured, verdict]


def _unit(unit: str) -> str:
    return unit if unit in ("", "x") else f" {unit}"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def spelled(figure: Spread) -> str:
    """Median (least-greatest); only the median if they look equal."""
    median, low, high = number(figure.median), number(figure.low), number(figure.high)
    return median if low == median == high else f"{median} ({low}-{high})"


def number(value: float) -> str:
    """Three digits that count, never as a power of ten."""
    if not value:
        return "0"
    digits = max(0, 2 - _magnitude(abs(value)))
    return f"{value:.{digits}f}"


def _magnitude(value: float) -> int:
    return int(f"{value:.2e}".partition("e")[2])
