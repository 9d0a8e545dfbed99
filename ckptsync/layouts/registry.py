"""Layouts by name: ours and other people's, through the entry point group `ckptsync.layouts`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from ckptsync.errors import ConfigError
from ckptsync.layouts.base import Layout

__all__ = ["GROUP", "detect", "load", "names"]

GROUP = "ckptsync.layouts"
_OURS = "ckptsync"
_FALLBACK = "plain"


def names() -> tuple[str, ...]:
    """The names of all installed layouts, sorted. Raises ConfigError if two packages declare one name."""
    return tuple(sorted(_entries()))


def load(name: str, step_names: Collection[str] = ()) -> Layout:
    """The layout called `name`.

    Args:
        name: as in the configuration, or in a part.
        step_names: directory names in output_dir, for layouts whose naming varies (see `Layout.for_names`).

    Raises:
        ConfigError: there is none, or its package is broken.
    """
    entries = _entries()
    if name not in entries:
        near = difflib.get_close_matches(name, entries, n=1, cutoff=0.0)
        what = "unknown layout"
        raise ConfigError(
            what,
            where=repr(name),
            why=f"installed are {', '.join(sorted(entries))}",
            remedy=f"did you mean {near[0]}?" if near else "reinstall ckptsync",
        )
    return _class_of(entries[name]).for_names(step_names)


def detect(step_dirs: Mapping[str, Collection[str]]) -> Layout | None:
    """The layout of an output_dir, or None if nothing in it is recognisable (yet).

    A layout is a candidate if it knows a directory by its name and by its files. The one that knows most of the
    directories wins; of two that know as many, one that the user installed comes before ours. `plain`, which
    accepts nearly everything, is asked last.

    Args:
        step_dirs: name of each directory in output_dir -> paths of the files in it.

    Raises:
        ConfigError: the package of an installed layout is broken.
    """
    entries = _entries()
    candidates = []
    for name, entry in sorted(entries.items()):
        layout = _class_of(entry).for_names(step_dirs.keys())
        known = sum(layout.step_of(step) is not None and layout.recognise(paths) for step, paths in step_dirs.items())
        if known:
            candidates.append((name == _FALLBACK, -known, _package(entry) == _OURS, name, layout))
    return min(candidates, key=lambda candidate: candidate[:4])[4] if candidates else None


def _entries() -> Mapping[str, EntryPoint]:
    return _entries_on(tuple(sys.path))


@lru_cache(maxsize=1)
def _entries_on(_: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """What is installed on a module path; a daemon asks often, and each time would read every package's metadata."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            what = "two layouts have one name"
            raise ConfigError(
                what,
                where=repr(entry.name),
                why=f"declared by the packages {_package(other)} and {_package(entry)}",
                remedy="uninstall one of them",
            )
    return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _class_of(entry: EntryPoint) -> type[Layout]:
    try:
        found = entry.load()
        why = _objection(found, entry)
    except Exception as error:  # other people's code runs here: any fault of it is a broken package
        raise _broken(entry, f"{type(error).__name__}: {error}") from error
    if why:
        raise _broken(entry, why)
    return cast("type[Layout]", found)


def _broken(entry: EntryPoint, why: str) -> ConfigError:
    package = _package(entry)
    where, remedy = f"{entry.name!r} of package {package}", f"repair or uninstall {package}"
    return ConfigError("cannot load the layout", where=where, why=why, remedy=remedy)


def _objection(found: object, entry: EntryPoint) -> str:
    """Why what an entry point gave is not a layout of that name; "" = nothing to object."""
    if not (isinstance(found, type) and issubclass(found, Layout)):
        return f"{entry.value} is not a subclass of ckptsync.layouts.base.Layout"
    found()  # a class that lacks a method of the interface raises TypeError here, and says which
    return "" if found.name == entry.name else f"the class calls itself {found.name!r}"
