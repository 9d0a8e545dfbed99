"""The command line: which commands there are, and what becomes of errors.

Only the command that was asked for is imported: `--help` must not wait for numpy, pydantic or a cloud's library.
The others are present as a name and a line of help.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer
from typer.main import get_command

from ckptsync import __version__
from ckptsync.cli import environment
from ckptsync.cli.render import printable
from ckptsync.disk.machine import keep_freed_memory
from ckptsync.errors import CkptsyncError, UsageError

__all__ = ["COMMANDS", "Command", "main"]


class Command(NamedTuple):
    """A command's module in `ckptsync.cli`, what it is called there, and its line in the list of commands.

    `attribute` names a function, or a typer.Typer where the command has sub-commands.
    """

    module: str
    attribute: str
    help: str


COMMANDS = {
    "init": Command("init", "init", "Write a commented configuration file."),
    "config": Command("config_check", "app", "Check the configuration."),
    "run": Command("run", "run", "Watch, verify, promote and upload until stopped: the daemon."),
    "exec": Command("exec", "exec_", "Run the trainer: from its newest step to a last push."),
    "pull": Command("pull", "pull", "Bring a step back and point the trainer at it."),
    "preflight": Command("preflight", "preflight", "Compare a start with the training that it would continue."),
    "select": Command("select", "select", "Show which step a resume takes, and why none of the others."),
    "confirm": Command("confirm", "confirm", "Check in the trainer's log that a resume really went on."),
    "status": Command("status", "status", "Show what the daemon is doing."),
    "steps": Command("steps", "steps", "List the steps here and in the store."),
    "verify": Command("verify", "verify", "Check a step for damage and missing files, without loading it."),
    "push": Command("push", "push", "Upload a step now and commit it."),
    "wait": Command("wait", "wait", "Wait until a step is verified or committed."),
    "retain": Command("retain", "retain", "Show what is kept, what goes, and why; delete here what goes."),
    "gc": Command("gc", "gc", "Give space in the store back."),
    "scrub": Command("scrub", "scrub", "Read again what is stored, and heal it."),
    "pin": Command("pin", "pin", "Keep a step, whatever retention says."),
    "unpin": Command("pin", "unpin", "Take the pin of a step away."),
    "tag": Command("pin", "tag", "Give a step the values of metrics, for keep_best."),
    "service": Command("service", "app", "Install or remove the systemd service."),
    "demo": Command("demo", "demo", "Show the whole cycle on a toy checkpoint."),
}

_HELP = "Checkpoint storage and sync daemon: verifies, promotes, uploads and restores training checkpoints."
_EPILOG = """\b
Exit codes:
  0  done                        5  nothing to resume from
  1  anything unexpected         6  store unreachable or refused
  2  usage                       7  nodes or stores disagree
  3  configuration               8  not enough space
  4  a checkpoint is broken      9  preflight failed
     or incomplete

The configuration is the first of: --config FILE (after the command's name), $CKPTSYNC_CONFIG, ./ckptsync.toml
and /etc/ckptsync/config.toml."""
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_EXIT_UNEXPECTED = 1
_GC_YOUNG = 20_000  # objects; a part has tens of thousands, none in a cycle: a fifth of the CPU of pushing small files


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` by default) and return its exit code; errors become one line on stderr."""
    # numpy's linear algebra, of which nothing is used here, would start a thread for each core
    environment.set_default("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_GC_YOUNG, *gc.get_threshold()[1:])
    keep_freed_memory()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has gone (`| head`); keep the interpreter from complaining again when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_UNEXPECTED
    except CkptsyncError as error:
        return _report(str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a line instead of a traceback
        line = f"unexpected error: {type(error).__name__}: {error} (CKPTSYNC_DEBUG=1 shows the traceback)"
        return _report(" ".join(line.split()), _EXIT_UNEXPECTED)
    return code


def _run(arguments: list[str]) -> int:
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    command = get_command(_app(wanted))
    try:
        result = command.main(arguments or ["--help"], prog_name="ckptsync", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise _usage_error(error) from error
    return result if isinstance(result, int) else 0


def _usage_error(error: Exception) -> UsageError:
    """The parser's complaint as one line.

    The parser's exceptions are told by what they can do: their classes moved between versions of typer.
    """
    what = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]  # just asked for by the caller
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ckptsync"
    words = any(getattr(param, "nargs", 1) == -1 for param in context.command.params) if context else False
    hint = "the trainer's command stands after --; " if words and hasattr(error, "option_name") else ""
    return UsageError(what[:1].lower() + what[1:], remedy=f"{hint}see `{command} --help`")


def _app(wanted: str | None) -> typer.Typer:
    """The command line with one real command."""
    app = typer.Typer(
        help=_HELP,
        epilog=_EPILOG,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_options)
    for name, command in COMMANDS.items():
        if name != wanted:
            app.command(name, help=command.help)(_not_loaded)
            continue
        loaded = getattr(import_module(f"ckptsync.cli.{command.module}"), command.attribute)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name, help=command.help)
        else:
            app.command(name)(loaded)
    return app


def _not_loaded() -> None:
    """Stands in the list of commands for one that was not asked for."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ckptsync {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command's name."""


def _report(line: str, code: int) -> int:
    if os.environ.get("CKPTSYNC_DEBUG", "0") not in ("", "0"):
        import traceback  # costs a tenth of the time that --help takes

        traceback.print_exc()
    print(f"ckptsync: {printable(line)}", file=sys.stderr)
    return code
