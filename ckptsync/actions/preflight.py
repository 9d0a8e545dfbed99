"""Before the trainer starts: would this start continue the run? All installed checks, here and on the other nodes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace

from ckptsync.actions.launched import ALONE, Launch, working_directory
from ckptsync.app import Node
from ckptsync.errors import CkptsyncError, ConfigError, StoreUnavailable
from ckptsync.model.step import Level
from ckptsync.resume import registry
from ckptsync.resume.context import Context, Resumed
from ckptsync.resume.outcome import Outcome, Report, failed, skipped
from ckptsync.resume.seen import Seen, look
from ckptsync.resume.settings import Settings
from ckptsync.resume.start import start_of
from ckptsync.sync.agree import Wait
from ckptsync.sync.verdicts import Verdicts

__all__ = ["PreflightOptions", "preflight", "run_checks", "share"]

_PATIENCE_S, _LONG_S, _SHORT_S = 1.0, 10.0, 0.3
"""For how long a request is tried again: at first; where the store has answered, and where it has not. That it does
not is what the checks are to say, and soon."""
_CHECK_S = 60.0
"""How long a check may take that need not read a whole step."""
_FIXERS = ("tracker", "rollout_state")
"""With --fix these go first: what they change, the others look at."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """What the start will be, and how to look.

    Attributes:
        words: the trainer's command, or only its arguments; empty = not known.
        train_log: a log of the training before.
        python: the trainer's interpreter; None = that of the command.
        level: how much of the step is read again; None = what was verified before is enough.
        fix: repair what can be repaired.
        launch: with how many nodes, in which attempt.
        timeout_s: for how long other nodes are waited for.
        waiting: told as long as they are.
    """

    words: tuple[str, ...] = ()
    train_log: str | None = None
    python: str | None = None
    level: Level | None = None
    fix: bool = False
    launch: Launch = ALONE
    timeout_s: float = 600.0
    waiting: Callable[[Wait], None] = lambda _: None


def preflight(node: Node, options: PreflightOptions, *, say: Say) -> Report:
    """Run every installed check here, and wait for what the other nodes found.

    Args:
        node: this node.
        options: see there.
        say: told what is about to be changed (`fix`), a line each.

    Raises:
        ConfigError: [preflight] skip names a check that there is not, or output_dir cannot be read.
        ConflictError: not all nodes came in time, or they were told different things.
        StoreError: several nodes, and the store that they talk through does not answer.
    """
    return share(node, options, run_checks(node, options, say=say))


def run_checks(node: Node, options: PreflightOptions, *, say: Say) -> Report:
    """This node alone. A store that cannot be reached is what the checks say, not an error. Raises ConfigError."""
    names, off = registry.names(), node.config.preflight.skip
    if unknown := sorted(set(off) - set(names)):
        what, where = "unknown check", f"[preflight] skip = {unknown[0]!r}"
        raise ConfigError(what, where=where, remedy=f"installed are {', '.join(names)}")
    mine = replace(node, patience_s=_PATIENCE_S)
    found = dict.fromkeys(off, skipped("switched off by the configuration", "take it out of [preflight] skip"))
    wanted = [name for name in names if name not in off]
    context = _Preparation(mine, options, say).context()
    if options.fix:
        for name in (name for name in _FIXERS if name in wanted):
            found[name] = registry.run(name, context)
        wanted = [name for name in wanted if name not in _FIXERS]
        context = replace(_Preparation(mine, options, say).context(), fix=False)
    found |= _run_all(wanted, context)
    begins = context.resumed is None and context.wanted is None
    return Report(tuple((name, found[name]) for name in names), begins=begins)


def share(node: Node, options: PreflightOptions, report: Report) -> Report:
    """Put what this node found below the attempt, and add what the others did. Raises as `preflight`."""
    launch, name = options.launch, node.config.node.name
    if not launch.together:
        return report
    verdicts = Verdicts(
        node.remote(), launch.attempt, name, node.node_id, launch.nodes, options.timeout_s, options.waiting
    )
    found = verdicts.share(report.failures)
    return replace(report, elsewhere=tuple((n, found[n]) for n in sorted(found) if n != name and found[n]))


@dataclass
class _Preparation:
    """Gathers what the checks are given."""

    node: Node
    options: PreflightOptions
    say: Say
    cwd: str = field(default_factory=working_directory)

    def context(self) -> Context:
        from ckptsync.resume.sources.interpreter import find_interpreter  # noqa: PLC0415 - only where a start is at hand
        from ckptsync.resume.sources.origin import settings_now, settings_then  # noqa: PLC0415 - as above

        node, options, env = self.node, self.options, dict(os.environ)
        looking = _ahead(lambda: look(node))  # the store answers while the trainer's own Python starts
        python = find_interpreter(options.words, options.python, env)
        now = settings_now(options.words, python, cwd=self.cwd, env=env)
        seen = _found(looking)
        resumed = self._resumed(seen, now)
        then, record = settings_then(node, resumed, train_log=options.train_log, launches=seen.launches, cwd=self.cwd)
        return Context(
            node=replace(node, patience_s=_LONG_S if seen.answers else _SHORT_S),
            resumed=resumed,
            wanted=seen.wanted,
            now=now,
            then=then,
            record=record,
            python=python,
            level=options.level,
            fix=options.fix,
            say=self.say,
            env=env,
            nodes=options.launch.nodes if options.launch.nodes > 1 else node.node_count or 1,
            cwd=self.cwd,
            words=options.words,
            wanted_path=seen.wanted_path,
            store_asked=seen.answers,
        )

    def _resumed(self, seen: Seen, now: Settings) -> Resumed | None:
        told = bool(self.options.words)
        start = start_of(self.node, now, cwd=self.cwd, told=told, newest=seen.wanted_path)
        return seen.resumed(start.path) if start.path else None


def _ahead(work: Callable[[], Seen]) -> Future[Seen]:
    """Begin something in a thread that, unlike an executor's, keeps no process from ending while it hangs."""
    future = Future[Seen]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _found(looking: Future[Seen]) -> Seen:
    """Raises StoreUnavailable: it hangs, which neither a directory nor a store on a dead file server ever ends."""
    done, _ = wait([looking], _CHECK_S)
    if not done:
        what, why = "cannot look for the steps", f"disk or store have not answered within {_CHECK_S:.0f} s"
        raise StoreUnavailable(what, why=why, remedy="look at what is mounted there, and at the network")
    return looking.result()


def _run_all(names: Sequence[str], context: Context) -> dict[str, Outcome]:
    """All at once: most wait for a disk, a store or a child. One that does not end is given up, not waited for."""
    found: dict[str, Outcome] = {}
    broken: list[CkptsyncError] = []

    def run(name: str) -> None:
        try:
            found[name] = registry.run(name, context)
        except CkptsyncError as error:  # a package that cannot be loaded
            broken.append(error)

    threads = {name: threading.Thread(target=run, args=(name,), daemon=True, name=name) for name in names}
    for thread in threads.values():
        thread.start()
    _wait(threads.values(), context.level)
    if broken:
        raise broken[0]
    return {name: found.get(name) or _unended() for name in names}


def _wait(threads: Iterable[threading.Thread], level: Level | None) -> None:
    """A step that is to be read takes its time; whatever else there is, is bounded."""
    until = time.monotonic() + _CHECK_S
    for thread in threads:
        thread.join(None if level is not None and thread.name == "integrity" else max(0.0, until - time.monotonic()))


def _unended() -> Outcome:
    remedy = "look at the disk or the network that it waits for; [preflight] skip switches it off"
    return failed(f"it has not ended within {_CHECK_S:.0f} s", remedy)
