"""What a check says, and what all of them say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["URGENCY", "Outcome", "Report", "Status", "failed", "passed", "skipped", "warned"]

Status = Literal["pass", "warn", "fail", "skip"]
URGENCY: tuple[Status, ...] = ("fail", "warn", "skip", "pass")
"""In which order people are told what was found."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found.

    Attributes:
        status: pass; warn = the resume works, but somebody should look; fail = it would not continue the run; skip =
            nobody can know.
        message: what was compared, and what was found: one line.
        remedy: what to do; for a skip, how to make it known. Never empty after fail and skip.
    """

    status: Status
    message: str
    remedy: str = ""


def passed(message: str) -> Outcome:
    """It is as it should be."""
    return Outcome("pass", message)


def warned(message: str, remedy: str = "") -> Outcome:
    """It works, and somebody should look."""
    return Outcome("warn", message, remedy)


def failed(message: str, remedy: str) -> Outcome:
    """The resume would not continue the run."""
    return Outcome("fail", message, remedy)


def skipped(message: str, remedy: str) -> Outcome:
    """It cannot be known here; `remedy` says how it could."""
    return Outcome("skip", message, remedy)


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of this node, and the nodes on which something failed.

    Attributes:
        checks: (name, outcome), in the order in which they ran.
        elsewhere: other node -> the names of its checks that failed; only with several nodes.
        begins: no step was found that could be resumed from.
    """

    checks: tuple[tuple[str, Outcome], ...]
    elsewhere: Sequence[tuple[str, tuple[str, ...]]] = ()
    begins: bool = False

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of this node's checks that failed."""
        return tuple(name for name, outcome in self.checks if outcome.status == "fail")

    @property
    def ok(self) -> bool:
        """Whether nothing failed, here or on another node."""
        return not self.failures and not self.elsewhere

    @property
    def line(self) -> str:
        """The verdict, what failed or is odd, and how many others. What has nothing to continue is not said to."""
        counts = Counter[str](outcome.status for _, outcome in self.checks)
        odd = sorted(name for name, outcome in self.checks if outcome.status == "warn")
        found = [
            *([f"{', '.join(sorted(self.failures))} failed"] if self.failures else []),
            *(f"{', '.join(sorted(names))} failed on node {node}" for node, names in self.elsewhere),
            *([f"look at {', '.join(odd)}"] if odd else []),
            *([f"{counts['pass']} passed"] if counts["pass"] else []),
            *([f"{counts['skip']} not known"] if counts["skip"] else []),
        ]
        return f"{self._verdict(open_ends=counts['skip'])}: {'; '.join(found)}"

    def _verdict(self, *, open_ends: int) -> str:
        if self.begins:
            why = "no step was found to resume from"
            return f"{why}, so this start begins at step 0" if self.ok else f"{why}, and a start at step 0 is not ready"
        if not self.ok:
            return "this start would not continue the run"
        return "this start continues the run" + (", as far as can be known" if open_ends else "")

    def to_json(self) -> dict[str, Any]:
        """`{ok, checks: [{name, status, message, remedy}], elsewhere: {node: [name]}}`."""
        return {
            "ok": self.ok,
            "checks": [{"name": name, **asdict(outcome)} for name, outcome in self.checks],
            "elsewhere": {node: list(names) for node, names in self.elsewhere},
        }
