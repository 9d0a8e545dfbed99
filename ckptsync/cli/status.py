"""`ckptsync status`: one look tells what is safe, where, and what to do."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

__all__ = ["status"]


def status(
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    check: Annotated[bool, typer.Option("--check", help="One line for monitoring; exit 0 = fine, 4 = not.")] = False,
    max_age: Annotated[
        str, typer.Option("--max-age", metavar="2h", help="With --check: oldest acceptable commit.")
    ] = "",
    max_lag: Annotated[
        int | None,
        typer.Option("--max-lag", metavar="N", help="With --check: most steps the store may lag.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show what the daemon is doing, what is safe, and what is wrong."""
    from ckptsync.actions.overview import check_status, status_report
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json, printable, table
    from ckptsync.config import load
    from ckptsync.errors import CheckpointError, UsageError
    from ckptsync.units import parse_duration

    try:
        age_s = parse_duration(max_age) if max_age else None
    except ValueError as error:
        raise UsageError("cannot read --max-age", where=max_age, why=str(error)) from None
    node = open_node(load(config, output_dir=output_dir))
    report = status_report(node)
    if not check:
        if json:
            print_json(report)
        else:
            table(("what", "state"), [*_lines(report), ("remembered in", node.config.state_dir)])
            for problem in report["problems"]:
                typer.echo(printable(f"problem: {problem}"))
        return 0
    ok, line = check_status(report, max_age_s=age_s, max_lag=max_lag)
    typer.echo(json_module.dumps({"ok": ok, "message": line}) if json else printable(line))
    return 0 if ok else CheckpointError.exit_code


def _resume(said: Mapping[str, Any] | None) -> str:
    from ckptsync.cli.render import human_age

    return "not confirmed" if said is None else f"{said['message']} ({human_age(said['age_s'])})"


def _lines(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    from ckptsync.cli.render import human_age, human_size

    daemon, local, remote, disk = (report[key] for key in ("daemon", "local", "remote", "disk"))
    none = "none"

    free = none if disk["free"] is None else human_size(disk["free"])
    save = (
        "no save is verified yet"
        if disk["next_save"] is None
        else f"the last save took {human_size(disk['next_save'])}"
    )
    committed = (
        none if remote["committed"] is None else f"step {remote['committed']}, {human_age(remote['age_s'] or 0.0)}"
    )
    lag = "" if remote["lag_steps"] is None else f", {remote['lag_steps']} steps behind"
    return [
        ("run", f"{report['run']} on {report['node']}"),
        ("daemon", "running" if daemon["running"] else "not running"),
        ("newest step", none if local["newest"] is None else str(local["newest"])),
        ("verified", none if local["verified"] is None else str(local["verified"])),
        ("latest", str(local["latest"] or none)),
        ("committed", committed + lag),
        ("resume", _resume(report["resume"])),
        ("free", f"{free}; {save}"),
    ]
