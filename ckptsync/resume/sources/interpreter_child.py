"""Runs in the trainer's interpreter: versions, and Hydra's result, without importing the trainer. Python 3.8 suffices.

ckptsync never imports it: its text is handed to the other interpreter, which need not have ckptsync, nor what that
depends on. One JSON request on stdin, one JSON answer on stdout.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from typing import Any

_NAMES = ("config_path", "config_name", "version_base")
_TEXT_CHARS_MAX = 65536


def versions(names: list[str]) -> dict[str, str]:
    """Installed version of each of these packages, of Python, and of the CUDA that torch was built for."""
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in names:
        try:
            version: object = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if isinstance(version, str):  # a broken installation has none
            found[name] = version
    cuda = built_for()
    if cuda:
        found["cuda"] = cuda
    return found


def built_for() -> str:
    """From the text of torch/version.py; torch itself is not imported."""
    spec = find_spec("torch")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        try:
            with open(os.path.join(directory, "version.py"), encoding="utf-8") as file:
                text = file.read(_TEXT_CHARS_MAX)
        except OSError:
            continue
        match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        if match:
            return match.group(1)
    return ""


def locate(module: str) -> str | None:
    """The file of a module, without importing the packages that it is in; None = there is none."""
    head, *rest = module.split(".")
    name, spec = head, find_spec(head)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
    return spec.origin if spec is not None else None


def decorator(path: str) -> dict[str, Any] | None:
    """The arguments of the one `@hydra.main(...)` in a file, if all of them are constants; None = there is none."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    nodes = list(ast.walk(tree))
    names = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "hydra"
        for alias in node.names
        if alias.name == "main"
    }
    calls = [call for node in nodes for call in getattr(node, "decorator_list", ()) if isinstance(call, ast.Call)]
    found = [call for call in calls if is_main(call.func, names)]
    if len(found) != 1:
        return None
    given: dict[str | None, ast.expr] = dict(zip(_NAMES, found[0].args))  # noqa: B905 - Python 3.8 has no strict=
    given.update((each.arg, each.value) for each in found[0].keywords)
    try:
        return {name: ast.literal_eval(value) for name, value in given.items() if name in _NAMES}
    except ValueError:
        return None


def is_main(func: ast.expr, names: set[str]) -> bool:
    """Whether it is hydra.main, under the name that the file has for it."""
    if isinstance(func, ast.Name):
        return func.id in names
    return (
        isinstance(func, ast.Attribute)
        and func.attr == "main"
        and isinstance(func.value, ast.Name)
        and func.value.id == "hydra"
    )


def composed(request: dict[str, Any]) -> dict[str, Any] | None:
    """All settings of a Hydra application by dotted names, and the names that could not be resolved."""
    path = request["script"] or locate(request["module"])
    found = decorator(path) if path else None
    if path is None or found is None:
        return None
    name = request["config_name"] or found.get("config_name")
    directory = request["config_path"] or found.get("config_path")
    if not name or not directory or "://" in directory:
        return None
    from hydra import compose, initialize_config_dir  # noqa: PLC0415 - only the trainer's interpreter need have it

    directory = os.path.join(os.path.dirname(os.path.abspath(path)), directory)
    sys.meta_path.insert(0, Hollow(packages(directory, name, request["module"])))
    base = {"version_base": found["version_base"]} if "version_base" in found else {}
    with initialize_config_dir(config_dir=directory, job_name="app", **base):
        if request["config_dir"]:
            search_too(directory, request["config_dir"])
        config = compose(config_name=name, overrides=request["overrides"])
    values: dict[str, Any] = {}
    missing: list[str] = []
    collect(config, "", values, missing)
    return {"values": values, "missing": missing}


class Hollow(MetaPathFinder):
    """Finds the packages of an application, and runs nothing of them: for `pkg://` in a search path of Hydra.

    Args:
        names: top-level packages.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """As the other finders do, but for the loader."""
        if fullname.partition(".")[0] not in self.names:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = HollowLoader(fullname, spec.loader.path)
        return spec


class HollowLoader(SourceFileLoader):
    """Knows where the files of a package are, and leaves the module empty."""

    def exec_module(self, module: Any) -> None:
        """Nothing."""


def packages(directory: str, name: str, module: str) -> set[str]:
    """Top-level packages of a module and of the `pkg://` in its primary configuration."""
    path = os.path.join(directory, name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    found = {module.partition(".")[0]} - {""}
    try:
        with open(path, encoding="utf-8") as file:
            found.update(re.findall(r"pkg://([A-Za-z_]\w*)", file.read(_TEXT_CHARS_MAX)))
    except (OSError, ValueError):
        return found
    return found - {"hydra"}


def search_too(directory: str, more: str) -> None:
    """Begin again with one more directory, as `--config-dir` does (hydra/_internal/utils.py, 1.3)."""
    from hydra._internal.hydra import Hydra  # noqa: PLC0415 - as above
    from hydra._internal.utils import create_config_search_path  # noqa: PLC0415 - as above
    from hydra.core.config_search_path import SearchPathQuery  # noqa: PLC0415 - as above
    from hydra.core.global_hydra import GlobalHydra  # noqa: PLC0415 - as above

    search_path = create_config_search_path(directory)
    location = f"file://{os.path.abspath(more)}"
    search_path.prepend(provider="command-line", path=location, anchor=SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="app", config_search_path=search_path)


def collect(config: Any, prefix: str, values: dict[str, Any], missing: list[str]) -> None:
    """The leaves of a configuration; `???` is a value that nobody gave. What cannot be resolved here is only named."""
    from omegaconf import DictConfig, ListConfig, OmegaConf  # noqa: PLC0415 - as above

    for key in list(config.keys()):
        name = f"{prefix}{key}"
        try:
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True)
        except Exception:  # noqa: BLE001 - a resolver may raise anything
            missing.append(name)
            continue
        if isinstance(value, DictConfig) and len(value):
            collect(value, f"{name}.", values, missing)
        else:
            values[name] = {} if isinstance(value, DictConfig) else value


def main() -> None:
    """Answer one request. What the trainer's packages print goes nowhere."""
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="ascii") as out:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.close(quiet)
        answer = versions(request["names"]) if request["what"] == "versions" else composed(request)
        json.dump(answer, out, default=str)


if __name__ == "__main__":
    main()
