"""`ckptsync preflight`: would this start continue the run?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption
from ckptsync.cli.pull_options import AttemptOption, NodesOption, TimeoutOption, launch_here, timeout_here
from ckptsync.cli.trainer_options import PythonOption, TrainLogOption
from ckptsync.errors import ConflictError, PreflightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptsync.actions.preflight import PreflightOptions
    from ckptsync.app import Node
    from ckptsync.resume.outcome import Report

__all__ = ["preflight"]


_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- TRAINER ARGS...]", help="The trainer's command, or only its arguments.", show_default=False
    ),
]
_Level = Annotated[
    str | None,
    typer.Option(
        "--level", "-l", metavar="structure|full|deep", help="Look at the step again, this deeply.", show_default=False
    ),
]
_Fix = Annotated[bool, typer.Option("--fix", help="Repair the tracker, and delete a stale rollout/.")]


def preflight(  # noqa: PLR0917 - the options of a command
    words: _Words = None,
    level: _Level = None,
    fix: _Fix = False,
    train_log: TrainLogOption = None,
    python: PythonOption = None,
    nodes: NodesOption = None,
    attempt: AttemptOption = None,
    timeout: TimeoutOption = None,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> int:
    """Compare the start of a training with the training that wrote the step it resumes from, and with this machine.

    With --nodes, one node's failure is everybody's. Exit 9 = something failed, 7 = not all nodes came.
    """
    from dataclasses import replace

    from ckptsync.actions.preflight import run_checks, share
    from ckptsync.app import open_node
    from ckptsync.cli.countdown import countdown
    from ckptsync.cli.render import printable
    from ckptsync.config import load

    node = open_node(load(config, output_dir=output_dir))
    with countdown() as shown:

        def say(line: str) -> None:
            shown.clear()
            typer.echo(printable(line), err=True)

        options = replace(
            _options(node, level, timeout, nodes, attempt),
            words=tuple(words or ()),
            fix=fix,
            train_log=train_log,
            python=python,
            waiting=shown.tell,
        )
        report = run_checks(node, options, say=say)
        try:
            report = share(node, options, report)
        except ConflictError:
            shown.clear()
            _show(report, json=json)  # what was found here is worth knowing, whoever did not come
            raise
    _show(report, json=json)
    return 0 if report.ok else PreflightError.exit_code


def _options(
    node: Node, level: str | None, timeout: str | None, nodes: int | None, attempt: str | None
) -> PreflightOptions:
    from ckptsync.actions.preflight import PreflightOptions
    from ckptsync.model.step import Level

    try:
        wanted = Level(level) if level else None
    except ValueError:
        raise UsageError("unknown level", where=level or "", remedy="structure, full or deep") from None
    return PreflightOptions(
        level=wanted, timeout_s=timeout_here(node, timeout), launch=launch_here(node, nodes, attempt)
    )


def _show(report: Report, *, json: bool) -> None:
    from ckptsync.cli.render import is_terminal, print_json, printable, table

    if json:
        print_json(report.to_json())
        return
    if is_terminal():
        table(("result", "check", "what was found, and what to do"), [*_rows(report)])
    else:
        for status, name, text in _rows(report):
            typer.echo(printable(f"{status}  {name}: {text}" if status else f"      {text}"))
    typer.echo(printable(report.line))


def _rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """(result, check, text), the worst first. What to do is a row of its own, below the last check that it is for."""
    from ckptsync.resume.outcome import URGENCY

    for status in URGENCY:
        found = {name: outcome for name, outcome in sorted(report.checks) if outcome.status == status}
        for name, outcome in found.items():
            yield status, name, outcome.message
            alike = [other for other, each in found.items() if each.remedy == outcome.remedy]
            if outcome.remedy and name == alike[-1]:
                yield "", "", f"-> {', '.join(alike)}: {outcome.remedy}" if alike[1:] else f"-> {outcome.remedy}"
        if status == "fail":
            yield from (("fail", f"on node {node}", ", ".join(sorted(names))) for node, names in report.elsewhere)
