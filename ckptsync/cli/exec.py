"""`ckptsync exec`: run the trainer, from its newest step to a last push."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ckptsync.cli.options import ConfigOption, JsonOption, OutputDirOption
from ckptsync.cli.pull_options import (
    AttemptOption,
    AvoidOption,
    KeepNewerOption,
    MaxStepOption,
    NodesOption,
    RanksOption,
    ScopeOption,
    SelectOption,
    StepOption,
    TimeoutOption,
    WorldSizeOption,
    launch_here,
    pull_options,
)
from ckptsync.cli.trainer_options import PythonOption, TrainLogOption
from ckptsync.errors import UsageError

if TYPE_CHECKING:
    from ckptsync.actions.exec import Job
    from ckptsync.actions.launched import Launch
    from ckptsync.actions.launching import ExecOptions, Finished
    from ckptsync.actions.pull import PullOptions
    from ckptsync.actions.resuming import Wanted
    from ckptsync.app import Node
    from ckptsync.cli.countdown import Counting, Lines
    from ckptsync.sync.agree import Wait

__all__ = ["exec_"]


_Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- CMD...", help="The command; {resume} stands for the resume arguments.", show_default=False
    ),
]
_Pull = Annotated[bool, typer.Option("--pull", help="Bring the step back first.")]
_Preflight = Annotated[bool, typer.Option("--preflight", help="Check first; exit 9 if a check fails.")]
_Probe = Annotated[
    bool, typer.Option("--probe", help="Only run one step in a scratch directory; exit 9 if it does not continue.")
]
_Daemon = Annotated[bool, typer.Option("--daemon", help="Run the daemon for as long as the command runs.")]
_Restart = Annotated[
    int, typer.Option("--restart", metavar="N", min=0, help="Pull and start again after a crash, N times.")
]
_Deadline = Annotated[
    str, typer.Option("--deadline", metavar="5m", help="How long the last push may take, from SIGTERM on.")
]
_Again = Annotated[
    bool, typer.Option("--again", help="Run the command that was recorded last; what follows -- is added.")
]
_NoArgs = Annotated[
    bool, typer.Option("--no-args", help="The command is not the trainer: add no arguments, record nothing.")
]
_PrintArgs = Annotated[bool, typer.Option("--print-args", help="Only print the resume arguments.")]
_PrintCommand = Annotated[bool, typer.Option("--print-command", help="Only print the whole command.")]


def exec_(  # noqa: PLR0917 - the options of a command
    command: _Command = None,
    pull: _Pull = False,
    preflight: _Preflight = False,
    probe: _Probe = False,
    daemon: _Daemon = False,
    restart: _Restart = 0,
    deadline: _Deadline = "5m",
    again: _Again = False,
    no_args: _NoArgs = False,
    print_args: _PrintArgs = False,
    print_command: _PrintCommand = False,
    train_log: TrainLogOption = None,
    python: PythonOption = None,
    step: StepOption = None,
    max_step: MaxStepOption = None,
    select: SelectOption = None,
    avoid: AvoidOption = None,
    keep_newer: KeepNewerOption = False,
    nodes: NodesOption = None,
    attempt: AttemptOption = None,
    timeout: TimeoutOption = None,
    ranks: RanksOption = None,
    scope: ScopeOption = None,
    world_size: WorldSizeOption = None,
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    json: JsonOption = False,
) -> int:
    """Run the trainer: with the resume arguments of the newest step, with all signals passed on, with a last push.

    The exit code is the command's. If nothing was started: as of pull and preflight; 127 = no such command.
    """
    from dataclasses import replace

    _require_alone(probe, daemon, restart, no_args, print_args, print_command)
    opened = _opened(config, output_dir)
    with _terminal() as terminal:
        pulling = pull_options(
            node := opened(),
            step=step,
            select=select,
            avoid=avoid,
            timeout=timeout,
            ranks=ranks,
            scope=scope,
            world_size=world_size,
            waiting=terminal.waiting,
        )
        pulling = replace(pulling, launch=_launch(node, nodes, attempt, needed=pull or preflight))
        options = _options(node, command, deadline, again=again, needed=not print_args)
        options = replace(options, wanted=_wanted(step, max_step, keep_newer, pulling), launch=pulling.launch)
        options = replace(options, daemon=_run_options(config, output_dir) if daemon else None, restart=restart)
        options = replace(options, pull=pull, preflight=preflight, train_log=train_log, python=python, adds=not no_args)
        if print_args or print_command:
            return _print(node, options, terminal, whole=print_command, json=json)
        finished = _run(opened, options, terminal, probe=probe)
    return _leave(finished)


def _require_alone(probe: bool, *others: object) -> None:
    if probe and any(others):
        remedy = "leave out --daemon, --restart, --no-args and --print-..."
        raise UsageError("--probe is one step and no job", remedy=remedy)


def _opened(config: str | None, output_dir: str | None) -> Callable[[], Node]:
    """Read the configuration, once; what opens the node."""
    from functools import partial

    from ckptsync.app import open_node
    from ckptsync.config import load

    return partial(open_node, load(config, output_dir=output_dir))


@contextlib.contextmanager
def _terminal() -> Iterator[_Terminal]:
    from ckptsync.cli.countdown import countdown

    with countdown(who="ckptsync: ") as shown:
        yield _Terminal(shown)


def _wanted(step: int | None, max_step: int | None, keep_newer: bool, pulling: PullOptions) -> Wanted:
    from ckptsync.actions.resuming import Wanted

    return Wanted(step, max_step, keep_newer, pulling)


class _Terminal:
    """Lines on stderr, beside the trainer's: one that cannot be written must not end the training."""

    def __init__(self, shown: Counting | Lines) -> None:
        self._shown = shown

    def say(self, line: str) -> None:
        """Print a line."""
        from ckptsync.cli.render import printable

        with contextlib.suppress(OSError, ValueError):
            self._shown.clear()
            print(f"ckptsync: {printable(line)}", file=sys.stderr, flush=True)

    def waiting(self, wait: Wait) -> None:
        """Show a wait."""
        with contextlib.suppress(OSError, ValueError):
            self._shown.tell(wait)

    def progress(self, total: int, label: str) -> AbstractContextManager[Callable[[int], None]]:
        """Show progress."""
        from ckptsync.cli.render import progress

        return progress(total, label)


def _options(node: Node, command: list[str] | None, deadline: str, *, again: bool, needed: bool) -> ExecOptions:
    from ckptsync.actions.again import recorded_command
    from ckptsync.actions.launched import working_directory
    from ckptsync.actions.launching import ExecOptions
    from ckptsync.cli.environment import as_given
    from ckptsync.daemon.control import SOCKET, socket_for_trainer
    from ckptsync.units import parse_duration

    try:
        deadline_s = parse_duration(deadline)
    except ValueError as error:
        raise UsageError("cannot read --deadline", where=deadline, why=str(error)) from None
    words, cwd = tuple(command or ()), working_directory()
    if again:
        words, cwd = recorded_command(node, words)
    if needed and not words:
        remedy = "ckptsync exec [options] -- python3 -m verl.trainer.main_ppo ..., or --again"
        raise UsageError("there is no command to run", remedy=remedy)
    env = as_given()
    if socket := socket_for_trainer(node.config, env):  # for the trainer's save callback
        env[SOCKET] = socket
    return ExecOptions(words, cwd, env, deadline_s=deadline_s)


def _launch(node: Node, nodes: int | None, attempt: str | None, *, needed: bool) -> Launch:
    """Where nodes need not agree, an id that is missing is no reason not to start."""
    from ckptsync.actions.launched import ALONE

    try:
        return launch_here(node, nodes, attempt)
    except UsageError:
        if needed or nodes is not None or attempt is not None:
            raise
        return ALONE


def _run_options(config: str | None, output_dir: str | None) -> tuple[str, ...]:
    """Of `ckptsync run` in the same directory."""
    given = {"--config": config, "--output-dir": output_dir}
    return tuple(word for name, value in given.items() if value is not None for word in (name, value))


def _print(node: Node, options: ExecOptions, terminal: _Terminal, *, whole: bool, json: bool) -> int:
    from ckptsync.actions.resuming import step_here, would_pull
    from ckptsync.cli.render import print_json
    from ckptsync.resume.running.rewriting import to_resume

    resumed = (
        would_pull(node, options.wanted, terminal) if options.pull else step_here(node, options.wanted, terminal.say)
    )
    arguments = resumed.arguments if resumed is not None else ()
    words = to_resume(options.words, arguments) if options.adds else options.words
    if json:
        step = resumed.step if resumed is not None else None
        print_json({"step": step, "resume_args": list(arguments), "command": list(words), "cwd": options.cwd})
    elif whole or arguments:
        typer.echo(shlex.join(words if whole else arguments))
    return 0


def _run(opened: Callable[[], Node], options: ExecOptions, terminal: _Terminal, *, probe: bool) -> Finished:
    from ckptsync.actions.exec import Job

    job = Job(opened, options, terminal)
    return _probe(job, terminal) if probe else job.run()


def _probe(job: Job, terminal: _Terminal) -> Finished:
    from ckptsync.actions.launching import Finished
    from ckptsync.errors import PreflightError
    from ckptsync.resume.running.child import CannotStart
    from ckptsync.resume.running.signals import Stopped

    try:
        report = job.probe()
    except Stopped as stopped:
        return Finished(128 + stopped.number)
    except CannotStart as error:
        terminal.say(str(error))
        return Finished(error.exit_status)
    terminal.say("the resume continues the run" if report.ok else "the resume does not continue the run")
    return Finished(0 if report.ok else PreflightError.exit_code)


def _leave(finished: Finished) -> int:
    """End as the command did: by the signal that killed it, so that whoever waits for us sees the same."""
    if finished.code >= 0 and not finished.hard:
        return finished.code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if finished.code < 0:
        _die(-finished.code)
    os._exit(finished.code)


def _die(number: int) -> NoReturn:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the command's
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container survives its own signals
