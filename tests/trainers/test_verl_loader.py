"""verl's own loader sees the same state before and after a pull (`make test-trainers`)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.trainers
RANKS = Path(__file__).with_name("verl_ranks.py")
WORLD = 2


def ranks(action, root):
    python = os.environ.get("CKPTSYNC_TRAINERS_PYTHON")
    if not python:
        pytest.fail("set CKPTSYNC_TRAINERS_PYTHON to an interpreter with verl (make test-trainers does)")
    command = [
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={WORLD}",
        str(RANKS),
        action,
        str(root),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "VERL_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(re.findall(r"RESTORED rank \d+ global_step_\d+ [0-9a-f]{64}", done.stdout))


def ckptsync(*arguments):
    command = [sys.executable, "-c", "from ckptsync.cli.main import main; raise SystemExit(main())", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verls_own_loader_restores_the_same_state_before_and_after_a_pull(tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    ranks("save", root)
    before = ranks("load", root)
    assert len(before) == WORLD
    assert all("global_step_4" in line for line in before)

    config = tmp_path / "ckptsync.toml"
    config.write_text(f'[run]\noutput_dir = "{root}"\nstate_dir = "{tmp_path}/state"\n[watch]\nsettle = "2s"\n')
    ckptsync("run", "--once", "--config", str(config))
    assert os.readlink(root / "latest") == "global_step_4"
    shutil.rmtree(root)
    out = ckptsync("pull", "--config", str(config))
    assert f"trainer.resume_from_path={root}/global_step_4" in out

    assert ranks("load", root) == before
    (root / "latest_checkpointed_iteration.txt").write_text("2")  # control: another step gives other digests
    ckptsync("pull", "--step", "2", "--config", str(config))
    assert ranks("load", root) != before
