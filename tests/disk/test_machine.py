"""What the system says of processors and pressure is read as it is written, wherever it stands, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ckptsync.disk.machine import Pressure, cores
from ckptsync.model.yielding import Stalls

BOUND = len(os.sched_getaffinity(0))


@pytest.fixture
def system(tmp_path):
    """Files by name; returns the arguments of `cores`."""

    def make(group, **files):
        (tmp_path / "self").write_text(group)
        for name, text in files.items():
            path = tmp_path / "cg" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path / "self"), str(tmp_path / "cg")

    return make


def test_without_a_quota_it_is_the_processors_that_we_are_bound_to(system):
    assert cores(*system("0::/a\n", **{"a__cpu.max": "max 100000\n"})) == BOUND
    assert cores("/nowhere", "/nowhere") == BOUND


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}),
        ("0::/pod/job\n", {"pod__job__cpu.max": "50000 100000\n"}),
        ("0::/pod/job\n", {"pod__cpu.max": "10000 100000\n", "pod__job__cpu.max": "max 100000\n"}),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {"cpu,cpuacct__job__cpu.cfs_quota_us": "100000", "cpu,cpuacct__job__cpu.cfs_period_us": "100000"},
        ),
        ("1:cpu:/job\n", {"cpu__job__cpu.cfs_quota_us": "1000\n", "cpu__job__cpu.cfs_period_us": "100000\n"}),
    ],
)
def test_a_quota_of_the_group_or_one_above_it_counts_and_leaves_at_least_one(system, group, files):
    assert cores(*system(group, **files)) == 1


@pytest.mark.parametrize("text", ["", "max", "garbage 1", "1 0", "-1 100000"])
def test_a_quota_that_cannot_be_read_is_none(system, text):
    assert cores(*system("0::/\n", **{"cpu.max": text})) == BOUND
    assert cores(*system("1:cpu:/\nnonsense\n")) == BOUND


def test_pressure_is_a_share_of_the_time_since_the_last_look(tmp_path):
    for name, total in (("cpu", 500_000), ("io", 0), ("memory", 10)):
        (tmp_path / name).write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
    pressure = Pressure([f"{tmp_path}/nowhere/{{}}", f"{tmp_path}/{{}}"])
    assert pressure.look(100.0) is None
    (tmp_path / "cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n")
    assert pressure.look(104.0) == Stalls(cpu=0.25)
    (tmp_path / "io").unlink()
    assert pressure.look(105.0) == Stalls()


def test_a_kernel_that_tells_nothing_is_no_pressure(tmp_path):
    pressure = Pressure([f"{tmp_path}/{{}}"])
    assert (pressure.look(1.0), pressure.look(2.0)) == (None, None)


GIVE_WAY = """
import os, threading
from ckptsync.disk.machine import give_way, is_idle
assert not is_idle()
assert give_way()
seen = []
thread = threading.Thread(target=lambda: seen.append((is_idle(), os.getpriority(os.PRIO_PROCESS, 0))))
thread.start(); thread.join()
idle, nice = seen[0]
assert idle or nice == 19, seen
"""


def test_a_process_that_gives_way_does_so_with_all_that_it_starts():
    subprocess.run([sys.executable, "-c", GIVE_WAY], check=True, timeout=60)


@pytest.mark.skipif(not os.path.exists("/proc/self/autogroup"), reason="this kernel has no autogroups")
@pytest.mark.parametrize("own", [True, False])
def test_a_session_of_its_own_gives_way_to_others_and_anothers_stays_as_it_is(own):
    code = (
        "from ckptsync.disk.machine import give_way\n"
        "give_way()\nprint(open('/proc/self/autogroup').read().split()[-1])\n"
    )
    begin = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    command = [sys.executable, "-c", *([code] if own else [begin, code])]  # in a session, as its leader or not
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, start_new_session=True)
    assert done.stdout.split() == ["19" if own else "0"]


def test_freed_memory_is_used_again_and_not_asked_of_the_kernel_each_time():
    """Large blocks that are freed and wanted again: without it each costs a page fault per 4 KiB."""
    code = (
        "import resource, sys\n"
        "from ckptsync.disk.machine import keep_freed_memory\n"
        "if sys.argv[1] == 'kept': keep_freed_memory()\n"
        "def use():\n"
        "    blocks = [bytearray(8 << 20) for _ in range(4)]\n"
        "    for block in blocks: block[::4096] = b'x' * len(block[::4096])\n"
        "use()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(5): use()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = {
        how: int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, check=True).stdout)
        for how in ("kept", "returned")
    }
    assert faults["kept"] < faults["returned"] / 4
