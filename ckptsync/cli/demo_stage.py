"""The play of `ckptsync demo`, and the stage of all demos: a directory for everything, a store, machines."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import final

from ckptsync.actions.overview import rows
from ckptsync.cli.demo_machine import Machine, Saved, Shared, require, say
from ckptsync.cli.render import human_size
from ckptsync.disk import durable
from ckptsync.errors import UsageError
from ckptsync.model.step import LocalState, RemoteState
from ckptsync.stores import open_store
from ckptsync.testing.fingerprint import differences, fingerprint

__all__ = ["Stage", "compare", "play"]

_GOOD = (10, 20)
_CUT = 30


@final
class Stage:
    """Machines and a store that they share; a context manager.

    Args:
        driver: of the store.
        keep: directory to work in and leave; None = a temporary one that is removed.
        store: URL; None = one of the demo's own.

    Attributes:
        root: the directory.
        stack: what ends with the stage.
        machines: as they were added.
    """

    def __init__(self, *, driver: str, keep: str | None, store: str | None) -> None:
        self.stack = ExitStack()
        self.root = _fresh(keep) if keep else self.stack.enter_context(tempfile.TemporaryDirectory("", "ckptsync-"))
        self.driver, self.store = driver, store
        self.machines: list[Machine] = []
        self._kept = keep is not None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.stack:  # the directory goes last, whatever fails
            for machine in self.machines:
                machine.close()
            if self.store and self.machines and not self._kept:
                _empty_store(self.machines[0])

    def shared(self, *, store: str, nodes: int, environ: Mapping[str, str] = os.environ) -> Shared:
        """What the machines of a new run have in common.

        Args:
            store: URL, unless one was given.
            nodes: how many there will be.
            environ: of their processes.
        """
        return Shared(self.root, f"demo-{secrets.token_hex(4)}", self.store or store, self.driver, nodes, environ)

    def add(self, machine: Machine) -> Machine:
        """One more machine, with an empty disk."""
        self.machines.append(machine)
        machine.prepare()
        return machine


def play(stage: Stage) -> None:
    """The demo of one machine, from the first save to the comparison.

    Raises:
        CkptsyncError: something did not go as promised.
    """
    shared = stage.shared(store=f"file://{stage.root}/store", nodes=1)
    machine = stage.add(Machine(shared, 0))
    say(f"A training and, beside it, the daemon (`ckptsync run`) start in {machine.directory}.")
    say(f"The store is {shared.store} (driver {shared.driver}).")
    machine.start_training(world=2, hf=True)
    machine.start_daemon()
    say(f"The training writes its checkpoints with {machine.writer()}.")
    saved = [_good_step(machine, step) for step in _GOOD]
    _cut_step(machine, saved[-1])
    say("The machine dies and its disk is lost: steps, staging, the daemon's state. The store is all that is left.")
    machine.kill_training()
    machine.end_daemon()
    machine.die()
    say("A new machine brings the run back:")
    printed = machine.ckptsync("pull")
    _compare(machine, saved[-1], printed)


def _good_step(machine: Machine, step: int) -> Saved:
    machine.begin_save(step)
    saved = machine.saved()
    say(f"The training has saved step {step}: {saved.count} files, {human_size(saved.size)}.")
    state = machine.wait_for(step, committed=True)
    require(state == "committed", f"step {step} is committed", f"it is {state}")
    machine.wait_for_latest(saved.name)
    return saved


def _cut_step(machine: Machine, last: Saved) -> None:
    machine.begin_save(_CUT, cut=True)
    cut = machine.saved().cut
    say(f"Step {_CUT} is cut short: {cut} has lost its second half, as in a power cut. verl's own tracker names it.")
    state = machine.wait_for(_CUT, committed=False)
    require(state == LocalState.BROKEN.value, f"step {_CUT} is found broken", f"it is {state}")
    require(machine.latest() == last.name, f"latest stays with {last.name}", f"it names {machine.latest()}")
    row = next(row for row in rows(machine.node()) if row.step == _CUT)
    require(row.remote is RemoteState.ABSENT, f"step {_CUT} is not uploaded", f"it is {row.remote.value}")
    machine.ckptsync("steps")


def _compare(machine: Machine, saved: Saved, printed: str) -> None:
    require(f"trainer.resume_from_path={saved.path}\n" in f"{printed}\n", "pull prints the resume arguments", printed)
    compare(machine, saved, [saved.name])
    say(
        f"Step {saved.step} is back: all {saved.size} bytes in {saved.count} files are identical, modes and mtimes too."
    )


def compare(machine: Machine, saved: Saved, steps: list[str]) -> None:
    """Whether a machine has this step as it was saved, and just these step directories. Raises CheckpointError."""
    require(machine.latest() == saved.name, f"latest names {saved.name}", f"it names {machine.latest()}")
    found = machine.steps()
    require(found == steps, f"there is {' and '.join(steps)}, and no other", f"there are {', '.join(found)}")
    wrong = differences(saved.files, fingerprint(Path(machine.output_dir, saved.name)))
    require(not wrong, f"step {saved.step} comes back identical", "; ".join(wrong[:3]))


def _empty_store(machine: Machine) -> None:
    """Remove the demo's run from a store that was given; its name is random, so nothing else is below it."""
    config = machine.config
    store = open_store(config)
    for meta in list(store.list(config.run.name)):
        store.delete(meta.key)


def _fresh(directory: str) -> str:
    """`directory`, made if it is not there; one with something in it is not ours."""
    path = os.path.abspath(directory)
    durable.make_dirs(path)
    if os.listdir(path):
        raise UsageError("will not work in a directory with something in it", where=path, remedy="name a new one")
    return path
