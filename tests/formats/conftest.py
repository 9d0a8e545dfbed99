"""Real files for the tests of formats: torch and safetensors write them, nothing is imitated."""

from __future__ import annotations

import io
import warnings
import zlib
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ckptsync.formats import inspect
from ckptsync.formats.base import Inspection
from ckptsync.formats.reading import BytesSource


def _saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def saved():
    """The bytes torch.save writes for a value."""
    return _saved


@pytest.fixture(scope="session")
def small_pt():
    """A small torch file: several dtypes, an empty tensor."""
    return _saved({"w": torch.arange(6.0), "b": torch.ones(3, dtype=torch.bfloat16), "empty": torch.empty(0), "n": 7})


@pytest.fixture(scope="session")
def look():
    """Inspect bytes under a name, and check what must hold of every inspection."""

    def run(path: str, data: bytes) -> Inspection:
        found = inspect(path, BytesSource(data))
        _hold(found, len(data))
        return found

    return run


@pytest.fixture(scope="session")
def hold():
    """Records ascend, do not overlap, lie inside the file."""
    return _hold


def _hold(found: Inspection, size: int) -> None:
    at = 0
    for record in found.records:
        assert record.offset >= at
        assert record.length > 0
        at = record.offset + record.length
    assert at <= size


@pytest.fixture(scope="session")
def damaged():
    """Whether level `full` would refuse these bytes: a problem of structure, or a CRC that does not fit."""

    def check(found: Inspection, data: bytes) -> bool:
        return bool(found.problems) or any(
            record.crc32 is not None and zlib.crc32(data[record.offset : record.offset + record.length]) != record.crc32
            for record in found.records
        )

    return check


@pytest.fixture(scope="session")
def dcp_step(tmp_path_factory) -> Path:
    """A real DCP step of one process: tensors small and large, and values that are no tensors."""
    path = tmp_path_factory.mktemp("dcp") / "step-10"
    state = {
        "model": {"embed": torch.randn(300, 64), "norm": torch.ones(64, dtype=torch.bfloat16)},
        "optim": {"step": torch.tensor(10.0), "lr": 1e-6, "betas": (0.9, 0.95)},
        "rng": b"raw" * 100,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path
