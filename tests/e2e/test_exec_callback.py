"""A trainer under `exec --daemon` tells the daemon of its steps, without anybody having named the socket to it."""

from __future__ import annotations

import sys
import time

from ckptsync.integrations import verl

TRAINER = """
import sys, time
from pathlib import Path
from ckptsync.testing.checkpoints import verl_step
sys.path.insert(0, sys.argv[1])  # as a copied file: nothing of ckptsync
from verl import SaveCallback

step = verl_step(Path(sys.argv[2]), 20)
saved = time.monotonic()
while not list(Path(sys.argv[3]).glob("*/steps/*20/commits/*")):
    SaveCallback(config=None).on_save(trainer=None, global_step=20, checkpoint_dir=str(step), async_save=False)
    if time.monotonic() > saved + 60:
        sys.exit("not committed")
    time.sleep(0.5)
"""


def test_a_step_is_committed_long_before_it_would_have_been_quiet(node):
    node.config.write_text(node.config.read_text() + '[watch]\nsettle = "10m"\nscan_interval = "10m"\n')
    began = time.monotonic()
    folder = verl.__file__.rpartition("/")[0]
    run = node.start("exec", "--daemon", "--", sys.executable, "-c", TRAINER, folder, node.ckpt, node.store)
    done = run.wait()
    assert done.code == 0, done.err
    assert "global_step_20 is complete, says the trainer" in done.err
    assert time.monotonic() - began < 120
