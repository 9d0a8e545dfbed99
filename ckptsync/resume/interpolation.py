"""Interpolations of OmegaConf 2.3, resolved without it: `${a.b}`, `${.sibling}`, `${oc.select:a.b,default}`.

Everything else (environment, time, a trainer's own resolvers) only the trainer knows: such names are not resolved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ckptsync.resume.names import flatten
from ckptsync.resume.override import Unreadable, parse_value

__all__ = ["resolve"]

_DEPTH_MAX = 40
_NODE = r"\.*[A-Za-z_][\w-]*(?:\.[\w-]+|\[[\w-]+\])*"
_PART = re.compile(rf"\$\{{\s*(?:(?P<node>{_NODE})|oc\.select:(?P<select>{_NODE})(?:,(?P<default>[^${{}}]+))?)\s*\}}")
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
        except _UnresolvedError:
            unresolved.add(name)
            continue
        if isinstance(found, Mapping) and found:
            values.update({f"{name}.{below}": item for below, item in flatten(found).items()})
        else:
            values[name] = found
    return values, frozenset(unresolved)


class _Resolver:
    def __init__(self, root: Mapping[object, object]) -> None:
        self._root = root

    def value(self, value: object, path: _Path, depth: int) -> object:
        """A value that stands at `path`, with everything in it resolved."""
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
        return _PART.sub(lambda part: _text(self._referred(part, path, depth)), value)

    def _referred(self, part: re.Match[str], path: _Path, depth: int) -> object:
        target = _target(part["node"] or part["select"], path)
        try:
            found = self._at(target)
        except KeyError:
            if part["select"] is None or part["default"] is None:
                raise _UnresolvedError from None
            return _default(part["default"])
        if found == _MISSING:
            raise _UnresolvedError
        return self.value(found, target, depth + 1)

    def _at(self, path: _Path) -> object:
        node: object = self._root
        for key in path:
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, Mapping):
                raise KeyError(key)
            else:
                raise _UnresolvedError  # a reference may have it; and what OmegaConf does with the rest is its own
        return node


def _target(node: str, path: _Path) -> _Path:
    name = node.lstrip(".")
    up = len(node) - len(name)
    if up > len(path):
        raise _UnresolvedError
    keys = tuple(key for key in re.split(r"[.\[\]]", name) if key)
    return (*path[: len(path) - up], *keys) if up else keys


def _default(text: str) -> object:
    try:
        return parse_value(text.strip())
    except Unreadable:
        raise _UnresolvedError from None


def _text(value: object) -> str:
    if isinstance(value, (Mapping, list)):
        raise _UnresolvedError
    return str(value)
