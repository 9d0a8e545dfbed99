"""What the preflights of several nodes tell each other (docs/format.md). Canonical JSON, like offers and decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ckptsync.model.manifest import FORMAT_MAJOR, FORMAT_MINOR, ManifestError, canonical
from ckptsync.model.parse import Fields, parse_canonical
from ckptsync.model.rounds import Place

__all__ = ["Joint", "Verdict", "parse_joint", "parse_verdict"]

_NODES_MAX = 10**6
_CHECKS_MAX = 1000
_TEXT = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_FORMAT = [FORMAT_MAJOR, FORMAT_MINOR]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the preflight of one node found.

    Attributes:
        place: attempt, and the number of the set.
        node, node_id: whose it is.
        nodes: how many nodes it takes for this start.
        failed: the names of its checks that failed.
    """

    place: Place
    node: str
    node_id: str
    nodes: int
    failed: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        head = _head("verdict", self.place, self.nodes)
        return canonical({**head, "node": self.node, "node_id": self.node_id, "failed": list(self.failed)})


@dataclass(frozen=True, slots=True)
class Joint:
    """What all nodes of a set found; written once, by whoever sees the last of them.

    Attributes:
        place: attempt, and the number of the set.
        nodes: how many they are.
        failed: node -> the names of its checks that failed; every node of the set is named.
    """

    place: Place
    nodes: int
    failed: Mapping[str, tuple[str, ...]]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        found = {node: list(names) for node, names in self.failed.items()}
        return canonical({**_head("outcome", self.place, self.nodes), "failed": found})


def parse_verdict(data: bytes, place: Place, node: str) -> Verdict:
    """Read a verdict that was found at `place` under `node`.

    Raises:
        ManifestError: not one, of a newer major version, or of another place or node.
    """
    found = _read(data, "verdict", place)
    if found["node"] != node:
        _fail("it says another node")
    return Verdict(place, node, _text(found["node_id"]), _count(found["nodes"]), _names(found["failed"]))


def parse_joint(data: bytes, place: Place) -> Joint:
    """Read the outcome that was found at `place`.

    Raises:
        ManifestError: not one, of a newer major version, or of another place.
    """
    found = _read(data, "outcome", place)
    nodes, failed = _count(found["nodes"]), found["failed"]
    if not isinstance(failed, dict) or len(failed) != nodes:
        _fail("it does not name as many nodes as it says")
    return Joint(place, nodes, {_text(node): _names(names) for node, names in failed.items()})


def _head(kind: str, place: Place, nodes: int) -> dict[str, object]:
    return {
        "kind": kind,
        "format": _FORMAT,
        "run": place.run,
        "run_id": place.run_id,
        "attempt": place.attempt,
        "set": place.number,
        "nodes": nodes,
    }


def _read(data: bytes, kind: str, place: Place) -> Mapping[str, Any]:
    found = Fields(parse_canonical(data, kind))
    said = Place(found["run"], found["run_id"], found["attempt"], found["set"])
    if said != place:
        _fail(f"it belongs to another place: {said}")
    return found


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _CHECKS_MAX:
        _fail("what failed is no list of names")
    return tuple(_text(name) for name in value)


def _count(value: object) -> int:
    if type(value) is not int or not 0 < value < _NODES_MAX:
        _fail(f"not a number of nodes: {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not _TEXT.fullmatch(value):
        _fail(f"not a name: {value!r}")
    return value


def _fail(why: str) -> NoReturn:
    raise ManifestError(why)
