from __future__ import annotations

from pathlib import Path

import pytest


def _sizes(*directories: Path) -> dict[str, int]:
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def sizes_of():
    """The union of the files of some step directories: path -> bytes."""
    return _sizes


@pytest.fixture(scope="session")
def faults():
    """Problems as (path, code) pairs, in a stable order."""
    return lambda problems: sorted((problem.path, problem.code) for problem in problems)
