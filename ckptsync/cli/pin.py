"""`ckptsync pin`, `unpin` and `tag`: what people say of a step."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption

__all__ = ["pin", "tag", "unpin"]

StepArgument = Annotated[int, typer.Argument(metavar="STEP", help="The step: the newest save of that number.", min=0)]


def pin(
    step: StepArgument,
    note: Annotated[str, typer.Option("--note", help="Why, for whoever looks at it later.")] = "",
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Keep a step for ever, here, on the other nodes and in the store, whatever retention says."""
    from ckptsync.actions.notes import pin_step
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json
    from ckptsync.config import load

    target = pin_step(open_node(load(config, output_dir=output_dir)), step, note, say=_say)
    if json:
        print_json({"step": step, "commit": target.commit or None, "note": note})
    else:
        where = f"commit {target.commit[:12]}" if target.commit else "not committed yet: it is uploaded now"
        typer.echo(f"step {step} is pinned ({where})")


def unpin(
    step: StepArgument,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Take the pin of a step away."""
    from ckptsync.actions.notes import unpin_step
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json
    from ckptsync.config import load

    count = unpin_step(open_node(load(config, output_dir=output_dir)), step, say=_say)
    if json:
        print_json({"step": step, "pins": count})
    else:
        typer.echo(f"step {step} is no longer pinned" if count else f"step {step} was not pinned")


def tag(
    step: StepArgument,
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="A metric and its value.")],
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> None:
    """Give a step the values of metrics, for keep_best."""
    from ckptsync.actions.notes import tag_step
    from ckptsync.app import open_node
    from ckptsync.cli.render import print_json, printable
    from ckptsync.config import load

    tags = dict(map(_parse_tag, values))
    target = tag_step(open_node(load(config, output_dir=output_dir)), step, tags, say=_say)
    if json:
        print_json({"step": step, "commit": target.commit or None, "tags": tags})
    else:
        said = ", ".join(f"{name} = {value:g}" for name, value in tags.items())
        typer.echo(printable(f"step {step}: {said}"))


def _parse_tag(text: str) -> tuple[str, float]:
    import math

    from ckptsync.errors import UsageError
    from ckptsync.store.keys import quote_name

    name, equals, value = text.partition("=")
    try:
        number = float(value)
        quote_name(name)
    except ValueError as error:
        raise UsageError("cannot read a tag", where=text, why=str(error), remedy="write NAME=NUMBER") from None
    if not equals or not math.isfinite(number):
        raise UsageError("cannot read a tag", where=text, why="not a finite number", remedy="write NAME=NUMBER")
    return name, number


def _say(line: str) -> None:
    typer.echo(f"ckptsync: {line}", err=True)
