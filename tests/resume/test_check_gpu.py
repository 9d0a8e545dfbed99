"""The check `gpu`: NVML is faked, processes and shared memory are real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import types
import uuid
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path

import pynvml
import pytest
from resuming import context_of

from ckptsync.resume.checks import gpu
from ckptsync.resume.machine.processes import kind_of, look, ours
from ckptsync.resume.machine.shared_memory import segments, used

MIB = 1024**2
WAIT_S = 20.0


class NVMLError(Exception):
    """As pynvml's."""


def nvml(monkeypatch, holding, *, gpus=2, error=None):
    """A driver with `gpus` GPUs; `holding`: GPU -> [(pid, bytes)]."""

    def init():
        if error is not None:
            raise NVMLError(error)

    def mps(handle):
        raise NVMLError("Not Supported")

    def running(handle):
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in holding.get(handle, [])]

    module = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: gpus,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}f00",
        nvmlDeviceGetComputeRunningProcesses=running,
        nvmlDeviceGetMPSComputeRunningProcesses=mps,
        nvmlSystemGetProcessName=lambda _: b"/usr/bin/python3",
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)


@contextmanager
def process(title, *, orphan=False):
    """A real process that calls itself `title`; as an orphan its parent has died. Yields its pid."""
    sleep = shutil.which("sleep")
    if not orphan:
        child = subprocess.Popen([title, "600"], executable=sleep, start_new_session=True)
        try:
            yield child.pid
        finally:
            child.kill()
            child.wait()
        return
    script = f'exec -a "{title}" {sleep} 600 >/dev/null 2>&1 & echo $!'
    pid = int(subprocess.run(["bash", "-c", f"({script})"], capture_output=True, check=True).stdout)
    try:
        until = time.monotonic() + WAIT_S
        while (found := look().get(pid)) is None or found.parent != 1 or not found.command.startswith(title):
            assert time.monotonic() < until, found
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def adopted_by_init():
    """Whether orphans come to process 1 here, and not to another reaper."""
    try:
        with process("probe-of-the-reaper", orphan=True):
            return True
    except AssertionError:
        return False


@pytest.fixture
def quiet(monkeypatch):
    """Nobody else's engines, jobs and segments: what runs beside the tests on this machine is not the matter."""
    before = {pid for pid, each in look().items() if each.kind}
    monkeypatch.setattr(gpu, "look", lambda: {pid: each for pid, each in look().items() if pid not in before})
    names = {each.name for each in segments()}
    monkeypatch.setattr(gpu, "segments", lambda root: [each for each in segments(root) if each.name not in names])


@pytest.mark.usefixtures("quiet")
class TestMemory:
    def test_gpus_that_nobody_uses_pass(self, tmp_path, monkeypatch):
        nvml(monkeypatch, {})
        outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "pass"
        assert "2 GPUs, and no foreign process holds their memory" in outcome.message

    def test_a_foreign_process_that_holds_memory_fails_and_is_named_with_its_gpus(self, tmp_path, monkeypatch):
        with process("trainer-of-somebody", orphan=True) as pid:
            nvml(monkeypatch, {0: [(pid, 512 * MIB)], 1: [(pid, None)]})
            outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "fail"
        assert f"trainer-of-somebody 600 (pid {pid}, " in outcome.message
        assert "holds GPU 0: 512 MiB, GPU 1: ? MiB" in outcome.message
        assert f"kill {pid}" in outcome.remedy

    def test_one_that_is_not_visible_from_here_is_named_as_the_driver_knows_it(self, tmp_path, monkeypatch):
        nvml(monkeypatch, {0: [(2**22 + 1, MIB)]})
        outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "fail"
        assert "/usr/bin/python3 (pid 4194305 of the driver's view) holds GPU 0: 1 MiB" in outcome.message
        assert "other container" in outcome.remedy

    def test_this_process_and_those_that_it_comes_from_are_not_foreign(self, tmp_path, monkeypatch):
        nvml(monkeypatch, {0: [(os.getpid(), MIB), (os.getppid(), MIB)]})
        assert gpu.check(context_of(tmp_path)).status == "pass"

    @pytest.mark.parametrize(("devices", "status"), [("1", "pass"), ("0", "fail"), ("GPU-0f", "fail"), ("", "pass")])
    def test_only_gpus_that_the_start_may_use_count(self, tmp_path, monkeypatch, devices, status):
        with process("trainer-of-somebody", orphan=True) as pid:
            nvml(monkeypatch, {0: [(pid, MIB)]})
            outcome = gpu.check(context_of(tmp_path, env={"CUDA_VISIBLE_DEVICES": devices}))
        assert outcome.status == status

    def test_without_library_or_driver_it_is_skipped_and_says_why(self, tmp_path, monkeypatch):
        nvml(monkeypatch, {}, error="Driver Not Loaded")
        outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "skip"
        assert "Driver Not Loaded" in outcome.message
        assert "libnvidia-ml" in outcome.remedy
        monkeypatch.setitem(sys.modules, "pynvml", None)
        outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "skip"
        assert "nvidia-ml-py is not installed" in outcome.message
        assert "ckptsync[preflight]" in outcome.remedy

    def test_the_real_library_without_a_driver_is_no_fault(self, tmp_path):
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlInit()
        assert gpu.check(context_of(tmp_path)).status == "skip"


@pytest.mark.usefixtures("quiet")
class TestLeftovers:
    @pytest.fixture(autouse=True)
    def no_driver(self, monkeypatch):
        nvml(monkeypatch, {}, error="Driver Not Loaded")

    def test_what_we_have_started_ourselves_is_not_left_over(self, tmp_path):
        with process("VLLM::EngineCore") as pid:
            assert pid in ours(look(), os.getpid())
            assert gpu.check(context_of(tmp_path)).status == "skip"  # only NVML is missing

    def test_an_engine_whose_parent_lives_is_a_warning(self, tmp_path, monkeypatch):
        monkeypatch.setattr(gpu, "ours", lambda processes, me: ours(processes, me) - {pid})
        with process("VLLM::EngineCore") as pid:
            outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "warn"
        assert f"VLLM::EngineCore 600 (pid {pid}, " in outcome.message

    @pytest.mark.parametrize("title", ["VLLM::EngineCore", "sglang::scheduler_TP0", "VLLM::Worker_TP0"])
    def test_an_engine_whose_parent_is_gone_fails(self, tmp_path, title):
        if not adopted_by_init():
            pytest.skip("orphans are adopted by another process here")
        with process(title, orphan=True) as pid:
            outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "fail"
        assert f"{title} 600 (pid {pid}, " in outcome.message
        assert "its parent is gone" in outcome.message
        assert outcome.remedy.startswith(f"end it if nobody needs it: kill {pid}")

    def test_an_engine_that_holds_nothing_of_our_gpus_does_not_matter(self, tmp_path, monkeypatch):
        if not adopted_by_init():
            pytest.skip("orphans are adopted by another process here")
        nvml(monkeypatch, {})
        with process("VLLM::EngineCore", orphan=True):
            outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "pass"
        assert "runs, on none of the start's GPUs" in outcome.message

    def test_workers_of_a_ray_that_is_gone_fail_and_a_ray_that_runs_is_told(self, tmp_path):
        if not adopted_by_init():
            pytest.skip("orphans are adopted by another process here")
        with process("ray::WorkerDict", orphan=True) as worker:
            outcome = gpu.check(context_of(tmp_path))
            assert outcome.status == "fail"
            assert "workers of a Ray that is gone: ray::WorkerDict 600" in outcome.message
            assert f"kill {worker}" in outcome.remedy
            with process("raylet", orphan=True):
                outcome = gpu.check(context_of(tmp_path))
                assert outcome.status == "warn"
                assert "a job runs in this user's Ray, or was left there" in outcome.message
        with process("/site-packages/ray/core/src/ray/gcs/gcs_server", orphan=True):
            assert gpu.check(context_of(tmp_path)).status == "warn"
            assert gpu.check(context_of(tmp_path, env={"RAY_ADDRESS": "auto"})).status == "skip"  # only NVML is missing

    def test_who_launched_us_is_ours(self):
        found = look()
        own = ours(found, os.getpid())
        assert {os.getpid(), os.getppid()} <= own
        assert found[os.getpid()].uid == os.geteuid()


LEAVE = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(sys.argv[1], create=True, size=3 * 1024 * 1024)
resource_tracker.unregister(segment._name, "shared_memory")
segment.buf[:] = bytes(len(segment.buf))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder():
    """A real process with a shared-memory segment; killed, it leaves it behind."""
    name = f"psm_{uuid.uuid4().hex[:8]}"
    child = subprocess.Popen([sys.executable, "-c", LEAVE, name], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout.readline() == b"ready\n"
    try:
        yield name, child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.mark.usefixtures("quiet")
class TestSharedMemory:
    def test_a_segment_in_use_passes_and_one_of_a_killed_process_is_named_with_owner_and_size(
        self, tmp_path, monkeypatch, holder
    ):
        nvml(monkeypatch, {})
        name, child = holder
        assert gpu.check(context_of(tmp_path)).status == "pass"
        child.kill()
        child.wait()
        outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "warn"
        owner = Path("/dev/shm", name).owner()
        assert f"{name} (3.0 MiB, {owner})" in outcome.message
        assert f"rm /dev/shm/{name}" in outcome.remedy

    def test_an_open_descriptor_without_a_mapping_counts_as_use_too(self, holder):
        name, child = holder
        child.kill()
        child.wait()
        assert name not in used()[0]
        with Path("/dev/shm", name).open("rb"):
            assert name in used()[0]

    def test_our_own_mapping_counts(self):
        segment = shared_memory.SharedMemory(create=True, size=100)
        try:
            assert segment._name.lstrip("/") in used()[0]
            assert segment._name.lstrip("/") in {each.name for each in segments()}
        finally:
            segment.close()
            segment.unlink()

    def test_only_names_of_trainings_are_looked_at(self, tmp_path):
        for name in (
            "psm_1",
            "sem.mp-x",
            "torch_1_2",
            "nccl-abc",
            "sgl_shm_mm_1_2",
            "vllm_offload_1",
            "pulse-shm-1",
            "x",
        ):
            (tmp_path / name).write_bytes(b"1" * 5000)
        (tmp_path / "psm_dir").mkdir()
        found = segments(str(tmp_path))
        assert [each.name for each in found] == [
            "nccl-abc", "psm_1", "sem.mp-x", "sgl_shm_mm_1_2", "torch_1_2", "vllm_offload_1"
        ]  # fmt: skip
        assert all(each.size >= 5000 and each.uid == os.geteuid() for each in found)

    def test_a_process_that_we_may_not_look_into_hides_its_users_segments(self, tmp_path, monkeypatch, holder):
        nvml(monkeypatch, {})
        name, child = holder
        child.kill()
        child.wait()
        monkeypatch.setattr(gpu, "used", lambda _: (frozenset(), frozenset({os.geteuid()})))
        outcome = gpu.check(context_of(tmp_path))
        assert outcome.status == "skip"
        assert f"{name} (3.0 MiB" in outcome.message
        monkeypatch.setattr(gpu, "segments", lambda _: segments("/nowhere"))
        assert gpu.check(context_of(tmp_path)).status == "skip"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["VLLM::EngineCore"], "engine"),
        (["VLLM::Worker_TP0_DP0"], "engine"),
        (["EngineCore_0"], "engine"),
        (["sglang::detokenizer"], "engine"),
        (["python3", "/usr/bin/vllm", "serve", "m"], "engine"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "engine"),
        (["python3", "-m", "sglang.launch_server"], "engine"),
        (["ray::WorkerDict.generate()"], "actor"),
        (["ray::IDLE"], "ray"),
        (["ray::DashboardAgent"], "ray"),
        (["/x/ray/core/src/ray/raylet/raylet", "--a"], "ray"),
        (["/x/gcs_server"], "ray"),
        (["/usr/bin/python3", "-u", "/x/site-packages/ray/dashboard/dashboard.py", "--port=8265"], "ray"),
        (["vim", "vllm.py"], ""),
        (["python3", "raylet.py"], ""),
        ([], ""),
    ],
)
def test_what_a_command_line_says(words, kind):
    assert kind_of(words) == kind
