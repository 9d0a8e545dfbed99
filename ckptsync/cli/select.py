"""`ckptsync select`: which step a resume takes, and why none of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption
from ckptsync.cli.pull_options import SelectOption

if TYPE_CHECKING:
    from ckptsync.actions.select import Selection

__all__ = ["select"]

_ROWS_MAX = 20
_NS = 10**9


def select(
    strategy: SelectOption = None,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Show the step that a pull of this node would take, and why; and why none of the others.

    Nothing is restored. Several nodes may agree on a newer save that is on their disks only. Exit 5 = nothing to resume
    from.
    """
    from ckptsync.actions.select import select_step, strategy_of
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json
    from ckptsync.config import load

    node = open_node(load(config, output_dir=output_dir))
    found = select_step(node, strategy_of(node.config, strategy), say=_say)
    if json:
        print_json(_document(found))
    else:
        _show(found)
    if found.selected is None:
        found.refuse()


def _document(found: Selection) -> dict[str, Any]:
    from ckptsync.cli.render import printable

    selected = found.selected
    best = selected.candidate if selected is not None else None
    return {
        "strategy": str(found.strategy),
        "step": best.step if best is not None else None,
        "commit": best.digest if best is not None and best.committed else None,
        "saved_ns": best.end_ns if best is not None else None,
        "value": best.value if best is not None else None,
        "why": selected.why if selected is not None else "",
        "fallback": selected.fallback if selected is not None else "",
        "alternatives": [
            {
                "step": other.step,
                "commit": other.commit or None,
                "saved_ns": other.saved_ns,
                "value": other.value,
                "reason": printable(other.reason),
            }
            for other in found.alternatives
        ],
    }


def _show(found: Selection) -> None:
    from ckptsync.cli.render import printable, table

    if found.selected is not None:
        best, fallback = found.selected.candidate, found.selected.fallback
        where = f"commit {best.digest[:12]}" if best.committed else "not committed, whole on this disk"
        typer.echo(printable(f"step {best.step}: {found.selected.why} ({where}, saved {_time(best.end_ns)})"))
        if fallback:
            typer.echo(printable(f"--select {found.strategy}: {fallback}"))
    if found.alternatives:
        shown = found.alternatives[:_ROWS_MAX]
        table(("step", "saved", "why not"), [(str(each.step), _time(each.saved_ns), each.reason) for each in shown])
    if len(found.alternatives) > _ROWS_MAX:
        typer.echo(f"and {len(found.alternatives) - _ROWS_MAX} more: --json shows all")


def _time(saved_ns: int | None) -> str:
    from datetime import datetime, timezone

    if saved_ns is None:
        return ""
    return datetime.fromtimestamp(saved_ns // _NS, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def _say(line: str) -> None:
    typer.echo(f"ckptsync: {line}", err=True)
