"""`ckptsync retain`: what is kept, what goes, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

if TYPE_CHECKING:
    from ckptsync.actions.retain import Retained

__all__ = ["retain"]


def retain(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, delete nothing.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Do not ask the store: only what must give way on a full disk goes.")
    ] = False,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Show what is kept and what goes, here and in the store, and why; delete here what goes.

    Here nothing is deleted unless [retention.local] delete = true; in the store only `gc` and the daemon delete.
    """
    from ckptsync.actions.retain import retain as judge
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json, printable
    from ckptsync.config import load

    node = open_node(load(config, output_dir=output_dir))
    found = judge(node, dry_run=dry_run, with_remote=not local, say=_say)
    if json:
        print_json(_document(found, printable))
    else:
        _show(found)
    for problem in () if json else found.problems:
        typer.echo(printable(f"problem: {problem}"), err=True)


def _document(found: Retained, printable: Any) -> dict[str, object]:
    here = found.local.rows if found.local is not None else ()
    return {
        "local": [
            {
                "step": row.facts.step,
                "keep": row.verdict.keep,
                "reasons": [printable(str(reason)) for reason in row.verdict.reasons],
                "bytes": row.facts.bytes,
                "state": row.facts.state.value,
                "deleted": row in found.deleted,
            }
            for row in here
        ],
        "remote": [
            {
                "step": row.facts.step,
                "commit": row.facts.save,
                "keep": row.verdict.keep,
                "reasons": [printable(str(reason)) for reason in row.verdict.reasons],
                "bytes": row.bytes,
            }
            for row in found.remote
        ],
        "problems": [printable(problem) for problem in found.problems],
    }


def _show(found: Retained) -> None:
    from ckptsync.cli.render import human_size, table

    def line(where: str, step: int, size: int, verdict: Any) -> tuple[str, ...]:
        word = "keep" if verdict.keep else "goes"
        return where, str(step), word, human_size(size), "; ".join(str(reason) for reason in verdict.reasons)

    here = found.local.rows if found.local is not None else ()
    lines = [line("here", row.facts.step, row.facts.bytes, row.verdict) for row in here]
    lines += [line("store", row.facts.step, row.bytes, row.verdict) for row in found.remote]
    if not lines:
        typer.echo("no steps, neither here nor in the store")
        return
    table(("where", "step", "verdict", "frees", "why"), lines)
    going = [row for row in here if not row.verdict.keep]
    freed = sum(row.facts.bytes for row in found.deleted)
    typer.echo(
        f"here: {len(going)} of {len(here)} go, {len(found.deleted)} were deleted, {human_size(freed)} came back"
    )
    if going and found.local is not None and not found.local.delete:
        typer.echo("nothing is deleted here: [retention.local] delete = true lets it go")
    condemned = [row for row in found.remote if not row.verdict.keep]
    if condemned:
        size = human_size(sum(row.bytes for row in condemned))
        typer.echo(f"store: {len(condemned)} of {len(found.remote)} go, up to {size}; `ckptsync gc` collects them")


def _say(line: str) -> None:
    typer.echo(f"ckptsync: {line}", err=True)
