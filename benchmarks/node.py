"""ckptsync as users run it: the command line, a configuration file, a fresh run and state directory for each round."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.data import StepData, link_tree
from benchmarks.measure import Usage, run
from benchmarks.server import Server

__all__ = ["SETTLE_S", "Node"]

SETTLE_S = 2.0
_NEVER = 10**11  # no step has such a number: nothing is due


@dataclass
class Node:
    """One node of a run of its own.

    Attributes:
        work: a fresh directory: output_dir, state_dir and the configurations go below it.
        server: where the run is pushed to.
        name: the run's name, also its prefix below `bench/`.
        compression: `[upload] compression`.
        settings: more tables of the configuration.
    """

    work: Path
    server: Server
    name: str
    compression: str = "auto"
    settings: str = ""
    steps: list[StepData] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.output.mkdir(parents=True)
        self._configure("ckptsync.toml", since=0)
        self._configure("quiet.toml", since=_NEVER)

    @property
    def output(self) -> Path:
        """The trainer's output_dir."""
        return self.work / "out"

    @property
    def prefix(self) -> str:
        """Where the run lies in the bucket."""
        return f"{self.name}/run"

    def add(self, step: StepData) -> None:
        """A step appears in output_dir."""
        link_tree(step.path, self.output / step.path.name)
        self.steps.append(step)

    def lose_output(self, *, keep: int = 0) -> None:
        """The steps go, and with `keep` = 0 all that this node remembers: a new machine."""
        for step in self.steps[keep:]:
            shutil.rmtree(self.output / step.path.name)
        if not keep:
            shutil.rmtree(self.work / "state", ignore_errors=True)
            shutil.rmtree(self.output)
            self.output.mkdir()

    def command(self, *arguments: str, quiet: bool = False) -> list[str]:
        """A command line of ckptsync.

        Args:
            arguments: a command and its arguments, or an option of the program itself.
            quiet: take the configuration in which no upload is due.
        """
        config = self.work / ("quiet.toml" if quiet else "ckptsync.toml")
        program = str(Path(sys.executable).with_name("ckptsync"))
        if arguments[0].startswith("--"):
            return [program, *arguments]
        return [program, arguments[0], "--config", str(config), *arguments[1:]]

    def ckptsync(self, *arguments: str, quiet: bool = False) -> Usage:
        """Run a command of ckptsync to its end."""
        return run(self.command(*arguments, quiet=quiet), cwd=self.work, environ=self.server.environ)

    def prepare(self) -> None:
        """Verify and promote what is there, as the daemon does when a save ends; upload nothing but the parts."""
        self.ckptsync("run", "--once", quiet=True)

    def push(self) -> tuple[Usage, int]:
        """Push the newest verified step: what it took, and the bytes that were sent."""
        usage = self.ckptsync("push", "--json")
        return usage, json.loads(usage.output)["bytes_sent"]

    def pull(self, *arguments: str) -> Usage:
        """Restore the newest step."""
        return self.ckptsync("pull", "--json", *arguments)

    def _configure(self, file: str, since: int) -> None:
        (self.work / file).write_text(
            f'[run]\noutput_dir = "{self.output}"\nname = "run"\nstate_dir = "{self.work}/state"\n'
            f'[watch]\nsettle = "{SETTLE_S:g}s"\n'
            f'[upload]\nstore = "s3://{self.server.bucket}/{self.name}"\nevery_steps = 1\nsince = {since}\n'
            f'endpoint = "{self.server.endpoint}"\ncompression = "{self.compression}"\n{self.settings}'
        )
