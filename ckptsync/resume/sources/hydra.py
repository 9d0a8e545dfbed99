"""The `config.yaml` that Hydra wrote beside a run: found, read with bounds, and resolved as far as OmegaConf would.

Hydra 1.3 writes `<hydra.run.dir>/.hydra/{config,hydra,overrides}.yaml` before the application starts, below
`outputs/<date>/<time>` of the directory it was started in unless it is told otherwise. Nothing is taken for the
configuration of a run that does not name the run's output directory, or lies around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptsync.disk.read import FileSource
from ckptsync.resume.settings import Known, Settings
from ckptsync.resume.sources.interpolation import resolve
from ckptsync.resume.sources.override import parse_override

__all__ = ["Found", "elsewhere", "find_config", "find_configs"]

_BYTES_MAX = 4 * 1024 * 1024
_ENTRIES_MAX = 500
_READ_MAX = 64
_LEVELS_UP = 3
_LOCAL_DIR = "trainer.default_local_dir"
_SUBDIR = ".hydra"


@dataclass(frozen=True, slots=True)
class Found:
    """A configuration on disk.

    Attributes:
        path: of its config.yaml.
        written_ns: when Hydra wrote it (this node's clock).
        settings: what it says.
    """

    path: str
    written_ns: int
    settings: Settings


def find_config(output_dir: str, saved_ns: int, *, cwd: str, trainer_dir: str = "") -> Found | None:
    """The newest configuration of this run that was written before a save ended; None = there is none.

    Args:
        output_dir: the run's, absolute.
        saved_ns: when the save ended, by this node's clock.
        cwd: where the trainer may have been started.
        trainer_dir: output_dir as the trainer sees it.
    """
    names = {output_dir, trainer_dir or output_dir}
    near = (cwd, output_dir, os.path.dirname(output_dir))
    for path, written_ns in find_configs(near, saved_ns, above=_above(output_dir))[:_READ_MAX]:
        settings = _read(path, names)
        if settings is not None:
            return Found(path, written_ns, settings)
    return None


def _above(output_dir: str) -> Iterator[str]:
    """output_dir, and some directories above it."""
    path = output_dir
    for _ in range(_LEVELS_UP + 1):
        if path == os.path.dirname(path):
            return
        yield path
        path = os.path.dirname(path)


def find_configs(near: Iterable[str], before_ns: int, *, above: Iterable[str] = ()) -> list[tuple[str, int]]:
    """(path, mtime in ns) of every `.hydra/config.yaml` in the usual places below some directories, newest first.

    Args:
        near: directories that are looked through.
        before_ns: what is newer is left out.
        above: directories that may be large: only Hydra's own names in them are looked at.
    """
    found: dict[str, int] = {}
    roots = list(dict.fromkeys(map(os.path.abspath, near)))
    for root in roots:
        for run in _children(root):
            _note(found, run)
    for root in dict.fromkeys((*roots, *map(os.path.abspath, above))):
        for run in (root, *_dated(os.path.join(root, "outputs"), 2)):
            _note(found, run)
        for run in _dated(os.path.join(root, "multirun"), 3):
            _note(found, run)
    kept = [(path, written_ns) for path, written_ns in found.items() if written_ns <= before_ns]
    return sorted(kept, key=lambda each: (-each[1], each[0]))


def _note(found: dict[str, int], run: str) -> None:
    path = os.path.join(run, _SUBDIR, "config.yaml")
    try:
        found[path] = os.stat(path).st_mtime_ns
    except OSError:
        return


def _dated(root: str, levels: int) -> Iterator[str]:
    """Directories so many levels below; their names are dates and times, so the greatest are the newest."""
    paths = [root]
    for _ in range(levels):
        paths = [child for path in paths for child in _children(path)][:_ENTRIES_MAX]
    yield from paths


def _children(root: str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [os.path.join(root, name) for name in sorted(names, reverse=True)[:_ENTRIES_MAX]]


def _read(path: str, output_dirs: set[str]) -> Settings | None:
    """What a configuration says, if it is of this run."""
    directory = os.path.dirname(path)
    config, hydra = load_yaml(path), load_yaml(os.path.join(directory, "hydra.yaml"))
    if not isinstance(config, dict) or not config:
        return None
    values, unresolved = resolve(config)
    if not _belongs(values, unresolved, os.path.dirname(directory), _runtime_cwd(hydra), output_dirs):
        return None
    overrides = load_yaml(os.path.join(directory, "overrides.yaml"))
    words = overrides if isinstance(overrides, list) else []
    given = (parse_override(word) for word in words if isinstance(word, str))
    explicit = frozenset(override.name for override in given if override is not None)
    known = {name: Known(value, path) for name, value in values.items()}
    return Settings(known, explicit, complete=not unresolved, unresolved=unresolved)


def _belongs(
    values: Mapping[str, object], unresolved: frozenset[str], run_dir: str, cwd: str, output_dirs: set[str]
) -> bool:
    """Whether a configuration names the output directory, or its own directory lies around it."""
    if _LOCAL_DIR in unresolved:
        return False
    said = values.get(_LOCAL_DIR)
    texts = [said] if said is not None else [value for value in values.values() if isinstance(value, str)]
    if any(_same_dir(text, cwd, output_dirs) for text in texts if isinstance(text, str)):
        return True
    return said is None and any(f"{path}/".startswith(f"{run_dir}/") for path in output_dirs)


def _same_dir(text: str, cwd: str, output_dirs: set[str]) -> bool:
    if not text or "\0" in text or (not os.path.isabs(text) and not cwd):
        return False
    path = os.path.normpath(os.path.join(cwd, text))
    return path in output_dirs or os.path.realpath(path) in {os.path.realpath(each) for each in output_dirs}


def elsewhere(settings: Settings, output_dir: str, trainer_dir: str = "") -> str:
    """The output directory that settings name, if it is certainly another one; "" = it is not.

    A relative one may be any: nobody knows from where. Arguments as `find_config`.
    """
    said = settings.get(_LOCAL_DIR)
    if said is None or not isinstance(said.value, str) or not os.path.isabs(said.value):
        return ""
    return "" if _same_dir(said.value, "", {output_dir, trainer_dir or output_dir}) else said.value


def _runtime_cwd(document: object) -> str:
    """Where the application was started: `hydra.runtime.cwd` of hydra.yaml; "" = it does not say."""
    for key in ("hydra", "runtime", "cwd"):
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""


def load_yaml(path: str) -> Any:
    """A YAML file of at most 4 MiB without aliases (Hydra writes none); None = it cannot be read so."""
    import yaml  # noqa: PLC0415 - half as much as all of a preflight's other imports

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with FileSource(path) as source:
            data = source.read(0, _BYTES_MAX + 1)
        if len(data) > _BYTES_MAX or any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, loader)):
            return None
        return yaml.load(data, loader)  # noqa: S506 - a safe loader
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
