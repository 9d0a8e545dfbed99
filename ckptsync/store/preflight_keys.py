"""The names of what preflights put below an attempt. Pure functions, as in keys.py."""

from __future__ import annotations

from ckptsync.store.keys import attempt_prefix, quote_name

__all__ = ["outcome_key", "preflight_prefix", "seen_key", "verdict_key", "verdicts_prefix"]

_NUMBER_MAX = 10**6


def preflight_prefix(run: str, attempt: str) -> str:
    """Below it: one component per set of preflights; no round of the attempt, whose names are numbers."""
    return f"{attempt_prefix(run, attempt)}/preflight"


def verdicts_prefix(run: str, attempt: str, number: int) -> str:
    """Below it: what the nodes of one set found. Raises ValueError for a number out of range."""
    if not 0 < number < _NUMBER_MAX:
        msg = f"set {number} is out of range"
        raise ValueError(msg)
    return f"{preflight_prefix(run, attempt)}/{number:06d}"


def verdict_key(run: str, attempt: str, number: int, node: str) -> str:
    """What the preflight of a node found; replaced when it runs again, and as a sign of life."""
    return f"{verdicts_prefix(run, attempt, number)}/{quote_name(node)}.json"


def outcome_key(run: str, attempt: str, number: int) -> str:
    """What all nodes of a set found: with it the set is complete. No node's name is spelled like this."""
    return f"{verdicts_prefix(run, attempt, number)}/outcome"


def seen_key(run: str, attempt: str, number: int, node: str) -> str:
    """Says that a node has acted on the outcome: its next preflight is another one."""
    return f"{verdicts_prefix(run, attempt, number)}/{quote_name(node)}.seen"
