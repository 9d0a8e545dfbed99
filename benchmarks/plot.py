"""results.png: throughput and stored bytes of every arm, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import SPEED, STORED
from benchmarks.report import number
from benchmarks.results import Result, Table

__all__ = ["draw"]

_OURS, _OTHERS, _INK = "#1f6f8b", "#b9c4c9", "#333333"
_INCH_PER_BAR, _WIDTH = 0.24, 11.0


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the tables that are meant for it: one row each, throughput on the left, stored bytes on the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [(result, table) for result in results for table in result.tables if table.drawn]
    if not shown:
        return
    heights = [len(table.arms) + 1.8 for _, table in shown]
    figure, rows = plt.subplots(
        len(shown),
        2,
        figsize=(_WIDTH, sum(heights) * _INCH_PER_BAR),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        layout="constrained",
    )
    for (result, table), (left, right) in zip(shown, rows, strict=True):
        left.set_title(f"{result.title}: {table.title}", loc="left", fontsize=9, color=_INK)
        _bars(left, table, SPEED, "raw MB per second (wall)")
        _bars(right, table, STORED, "stored bytes / raw bytes")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _bars(axes: Any, table: Table, figure: str, label: str) -> None:
    """Horizontal bars with whiskers from the least to the greatest round."""
    arms = [arm for arm in reversed(table.arms) if figure in arm.figures]
    if not arms:
        axes.set_axis_off()
        return
    spreads = [arm.spread(figure) for arm in arms]
    medians = [each.median for each in spreads]
    errors = [[each.median - each.low for each in spreads], [each.high - each.median for each in spreads]]
    colours = [_OURS if arm.name.startswith("ckptsync") else _OTHERS for arm in arms]
    axes.barh([arm.name for arm in arms], medians, xerr=errors, color=colours, ecolor=_INK, error_kw={"lw": 0.8})
    for index, each in enumerate(spreads):
        axes.annotate(f"  {number(each.median)}", (each.high, index), va="center", fontsize=7, color=_INK)
    axes.margins(x=0.12)
    axes.set_xlabel(label, fontsize=7, color=_INK)
    axes.tick_params(labelsize=7, colors=_INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
