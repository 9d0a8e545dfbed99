"""One question a file: TITLE, METHOD, and `run`, which measures and says what the targets came to."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from benchmarks.results import Table, Target
from benchmarks.rounds import Bench

__all__ = ["CASES", "Case", "find"]

CASES = (
    "codec",
    "push_first",
    "push_next",
    "push_link",
    "pull_whole",
    "pull_next",
    "pull_nodes",
    "small_files",
    "verify",
    "memory",
    "trainer",
    "commands",
    "retention",
)
"""In the order of the report."""


class Case(NamedTuple):
    """A case as its module describes it."""

    name: str
    title: str
    method: str
    run: Callable[[Bench], tuple[list[Table], list[Target]]]


def find(name: str) -> Case:
    """The case of this name. Raises ModuleNotFoundError."""
    module = import_module(f"benchmarks.cases.{name}")
    return Case(name, module.TITLE, module.METHOD, module.run)
