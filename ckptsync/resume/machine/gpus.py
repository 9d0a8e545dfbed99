"""Who holds memory of which GPU, asked of the NVIDIA driver (NVML, through nvidia-ml-py)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Holder", "NoDriver", "holders"]

_MIB = 1024**2
_INSTALL = "install ckptsync's extra `preflight`: pip install 'ckptsync[preflight]'"
_EXPOSE = "on a machine without NVIDIA GPUs nothing; else make the driver's libnvidia-ml.so.1 visible here"
_SERVERS = ("nvidia-cuda-mps-server", "nvidia-persistenced")


class NoDriver(Exception):
    """The driver cannot be asked; the message says why.

    Attributes:
        remedy: what to do about it.
    """

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that computes on a GPU.

    Attributes:
        gpu: the GPU's number, as nvidia-smi counts.
        pid: the process, as the driver counts: in a container perhaps not as we do.
        mib: memory in MiB; None = the driver does not say.
        name: the program, where the driver knows it.
    """

    gpu: int
    pid: int
    mib: int | None
    name: str = ""


def holders(env: Mapping[str, str]) -> tuple[int, tuple[Holder, ...]]:
    """How many GPUs the start may use by its environment (CUDA_VISIBLE_DEVICES), and who computes on them.

    Raises:
        NoDriver: no library, no driver, or it refuses.
    """
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ImportError:
        raise NoDriver("nvidia-ml-py is not installed", _INSTALL) from None
    try:
        pynvml.nvmlInit()
        try:
            numbers = [n for n in range(pynvml.nvmlDeviceGetCount()) if _visible(pynvml, n, env)]
            found = [holder for number in numbers for holder in _on(pynvml, number)]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise NoDriver(str(error), _EXPOSE) from None
    return len(numbers), tuple(found)


def _visible(nvml: Any, number: int, env: Mapping[str, str]) -> bool:
    """CUDA_VISIBLE_DEVICES names numbers, or (beginnings of) UUIDs; MIG instances are taken for their GPU."""
    named = env.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return True
    uuid = _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number)))
    for item in map(str.strip, named.split(",")):
        if item == str(number) or (item.startswith("GPU-") and uuid.startswith(item)) or item.startswith("MIG-"):
            return True
    return False


def _on(nvml: Any, number: int) -> list[Holder]:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    running = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses):
        with contextlib.suppress(nvml.NVMLError):  # not every GPU supports both
            running.update({each.pid: each for each in ask(handle)})
    found = []
    for pid, each in sorted(running.items()):
        name = _name(nvml, pid)
        if not name.endswith(_SERVERS):
            memory = each.usedGpuMemory
            found.append(Holder(number, pid, None if memory is None else memory // _MIB, name))
    return found


def _name(nvml: Any, pid: int) -> str:
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError:
        return ""


def _text(value: bytes | str) -> str:
    """Older releases of the library give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
