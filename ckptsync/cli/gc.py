"""`ckptsync gc`: give space in the store back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

if TYPE_CHECKING:
    from ckptsync.sync.collect import Collected

__all__ = ["gc"]

_SHOWN = 20


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if more than half of the committed steps go, or some are missing.")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="DURATION",
            help="Between announcing and deleting; [retention.remote] grace by default. 0s = delete now.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> int:
    """Delete from the store what [retention.remote] gives up, and what no step needs.

    What goes is announced first, and deleted by a later call, when the grace is over. Exit 6 if the store refused
    to delete something.
    """
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json, printable
    from ckptsync.config import load
    from ckptsync.daemon.collector import collect_by_policy
    from ckptsync.errors import StoreRefused, UsageError
    from ckptsync.units import parse_duration

    configured = load(config, output_dir=output_dir)
    try:
        grace_s = configured.retention.remote.grace if grace is None else parse_duration(grace)
    except ValueError as error:
        raise UsageError("bad --grace", where=str(grace), why=str(error)) from None
    done = collect_by_policy(open_node(configured), grace_s=grace_s, dry_run=dry_run, force=force)
    if json:
        print_json(_document(done, dry_run=dry_run))
    else:
        _show(done, dry_run=dry_run)
    for line in () if json else (*done.problems, *done.refused[:10]):
        typer.echo(printable(f"problem: {line}"), err=True)
    return StoreRefused.exit_code if done.refused else 0


def _document(done: Collected, *, dry_run: bool) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "dry_run": dry_run,
        "steps": done.steps,
        "chunks": done.chunks,
        "bytes": done.bytes,
        "announced": asdict(done.announced) if done.announced else None,
        "waiting": [{"number": each.number, "until_ns": each.until_ns} for each in done.waiting],
        "swept": [{"number": number, "keys": count} for number, count in done.swept.items()],
        "deleted": done.deleted,
        "freed": done.freed,
        "leftovers": done.leftovers,
        "refused": done.refused,
        "problems": done.problems,
    }


def _show(done: Collected, *, dry_run: bool) -> None:
    import time

    from ckptsync.cli.render import human_duration, human_size

    would = "would be " if dry_run else ""
    typer.echo(f"in the store: committed steps: {done.steps}, chunks: {done.chunks}, {human_size(done.bytes)}")
    if done.announced is not None:
        what = done.announced
        shown = [
            *map(str, what.steps[:_SHOWN]),
            *([f"and {len(what.steps) - _SHOWN} more"] * (len(what.steps) > _SHOWN)),
        ]
        steps = f"steps that go: {', '.join(shown) or 'none'}"
        amounts = f"commits: {what.commits}, parts: {what.parts}, chunks: {what.chunks}, {human_size(what.bytes)}"
        typer.echo(f"{would}announced as collection {what.number}: {steps}; {amounts}")
    for each in done.waiting:
        left = human_duration(each.until_ns / 10**9 - time.time()) if each.until_ns is not None else ""
        until = f"its grace ends in {left}" if left else "the store gives no times, only --grace 0s deletes"
        typer.echo(f"collection {each.number} waits: {until}")
    typer.echo(f"{would}deleted: objects: {done.deleted}, {human_size(done.freed)}")
    if done.leftovers:
        typer.echo(f"{would}deleted: leftovers of killed puts, {human_size(done.leftovers)}")
