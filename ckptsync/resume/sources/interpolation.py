"""Interpolations of OmegaConf 2.3, resolved without it: `${a.b}`, `${.sibling}`, `${oc.select:a.b,default}`.

Everything else (environment, time, a trainer's own resolvers) only the trainer knows: such names are not resolved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ckptsync.resume.sources.names import flatten
from ckptsync.resume.sources.override import Unreadable, parse_value

__all__ = ["resolve"]

_DEPTH_MAX = 40
_WORK_MAX = 300_000
"""Values that are made for one configuration, and 64 characters of text count as one; verl 0.9.1 needs some 1,100."""
_CHARS = 64
_NODE = r"\.*[A-Za-z_][\w-]*(?:\.[\w-]+|\[[\w-]+\])*"
_INNER = r"\$\{(?:[^${}]|\$\{(?:[^${}]|\$\{[^${}]*\})*\})*\}"
_PART = re.compile(
    rf"\$\{{\s*(?:(?P<node>{_NODE})|oc\.select:\s*(?P<select>{_NODE})\s*(?:,(?P<default>[^${{}}]+|\s*{_INNER}\s*))?)\s*\}}"
)
_MISSING = "???"
_Path = tuple[str, ...]


class _UnresolvedError(Exception):
    """Only the trainer knows."""


def resolve(nested: Mapping[object, object]) -> tuple[dict[str, object], frozenset[str]]:
    """Flat settings of a configuration, and the names whose values are not known here."""
    resolver = _Resolver(nested)
    values: dict[str, object] = {}
    unresolved: set[str] = set()
    for name, value in flatten(nested).items():
        try:
            found = resolver.value(value, tuple(name.split(".")), 0)
        except (_UnresolvedError, KeyError):
            unresolved.add(name)
            continue
        if isinstance(found, Mapping) and found:
            values.update({f"{name}.{below}": item for below, item in flatten(found).items()})
        else:
            values[name] = found
    return values, frozenset(unresolved)


class _Resolver:
    def __init__(self, root: Mapping[object, object]) -> None:
        self._root, self._left = root, _WORK_MAX

    def _spend(self, work: int) -> None:
        """References to references double with each step: what would take too long is not known."""
        self._left -= work
        if self._left < 0:
            raise _UnresolvedError

    def value(self, value: object, path: _Path, depth: int) -> object:
        """A value that stands at `path`, with everything in it resolved."""
        self._spend(1)
        if depth > _DEPTH_MAX:
            raise _UnresolvedError
        if isinstance(value, Mapping):
            return {str(key): self.value(item, (*path, str(key)), depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, (*path, str(index)), depth + 1) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _PART.fullmatch(value)
        if whole is not None:
            return self._referred(whole, path, depth)
        if "${" in _PART.sub("", value) or "\\" in value:
            raise _UnresolvedError
        return _PART.sub(lambda part: self._text(self._referred(part, path, depth)), value)

    def _text(self, value: object) -> str:
        """What a reference within a text becomes."""
        if isinstance(value, (Mapping, list)):
            raise _UnresolvedError
        text = str(value)
        self._spend(len(text) // _CHARS)
        return text

    def _referred(self, part: re.Match[str], path: _Path, depth: int) -> object:
        if depth > _DEPTH_MAX:
            raise _UnresolvedError
        if part["node"] is not None:
            return self._found(part["node"], path, depth)
        if part["default"] is None:
            return self._found(part["select"], path, depth)
        default = self._default(part["default"].strip(), path, depth)  # OmegaConf, too, has it before it looks
        try:
            return self._found(part["select"], path, depth)
        except KeyError:
            return default

    def _found(self, node: str, path: _Path, depth: int) -> object:
        """The value of a node. Raises KeyError: it is not there, or nobody gave it."""
        found, target = self._at(_target(node, path), depth)
        if found == _MISSING:
            raise KeyError(node)
        try:
            return self.value(found, target, depth + 1)
        except KeyError:
            raise _UnresolvedError from None

    def _default(self, text: str, path: _Path, depth: int) -> object:
        if "${" in text:
            return self.value(text, path, depth + 1)
        try:
            return parse_value(text)
        except Unreadable:
            raise _UnresolvedError from None

    def _followed(self, target: _Path, at: _Path, depth: int) -> tuple[object, _Path]:
        """What a reference on the way leads to; not to what it stands in itself."""
        if at[: len(target)] == target:
            raise _UnresolvedError
        try:
            return self._at(target, depth + 1)
        except KeyError:
            raise _UnresolvedError from None

    def _at(self, path: _Path, depth: int) -> tuple[object, _Path]:
        """What stands at a path, and where; on the way there, references are followed.

        Raises:
            KeyError: nothing does.
        """
        if depth > _DEPTH_MAX:
            raise _UnresolvedError
        node: object = self._root
        at: _Path = ()
        for key in path:
            if isinstance(node, str) and (whole := _PART.fullmatch(node)) is not None and whole["node"]:
                node, at = self._followed(_target(whole["node"], at), at, depth)
            if isinstance(node, Mapping):
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise _UnresolvedError  # what OmegaConf does with it is its own
            at = (*at, key)
        return node, at


def _target(node: str, path: _Path) -> _Path:
    name = node.lstrip(".")
    up = len(node) - len(name)
    if up > len(path):
        raise _UnresolvedError
    keys = tuple(key for key in re.split(r"[.\[\]]", name) if key)
    return (*path[: len(path) - up], *keys) if up else keys
