"""verl's own code loads our callback as its configuration names it, and calls it (`make test-trainers`)."""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from ckptsync.integrations import verl

pytestmark = pytest.mark.trainers
SCRIPT = """
import sys
from omegaconf import OmegaConf
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback

config = OmegaConf.create({"trainer": {"checkpoint_callback_class": "ckptsync_callback.SaveCallback"}})
callback = build_checkpoint_callback(config)
assert callback.config is config
callback.on_save(trainer=object(), global_step=40, checkpoint_dir="checkpoints/global_step_40", async_save=False)
"""


def test_verl_builds_and_calls_the_copied_file(tmp_path):
    python = os.environ.get("CKPTSYNC_TRAINERS_PYTHON")
    if not python:
        pytest.fail("set CKPTSYNC_TRAINERS_PYTHON to an interpreter with verl (make test-trainers does)")
    shutil.copy(Path(verl.__file__), tmp_path / "ckptsync_callback.py")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(tmp_path / "control.sock"))
        daemon.settimeout(20)
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "CKPTSYNC_SOCKET": str(tmp_path / "control.sock")}
        done = subprocess.run(
            [os.path.abspath(python), "-c", SCRIPT],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        message = json.loads(daemon.recv(65536))
    assert message["saved"] == 40
    assert f"{tmp_path}/checkpoints/global_step_40" in message["directories"], "verl's paths may be relative"
