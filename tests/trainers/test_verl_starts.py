"""The check `tracker` expects of verl what verl itself does (`make test-trainers`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from preflighting import fresh

from ckptsync.resume.sources.arguments import parse_arguments
from ckptsync.resume.start import start_of
from ckptsync.testing.checkpoints import age, verl_sft_step, verl_step

pytestmark = pytest.mark.trainers
SCRIPT = Path(__file__).with_name("verl_starts.py")
TRACKER = "latest_checkpointed_iteration.txt"
TRACKERS = (None, "", "twenty", "60", "20", "40", " 40\n")
PATHS = ("global_step_40", "global_step_20", "global_step_40/", "latest", "global_step_40.partial", "40", None)


def directories(root, write):
    """One output_dir for each tracker, with steps 20 and 40: (tracker, home)."""
    for number, text in enumerate(TRACKERS):
        out = root / str(number) / "out"
        age(write(out, 20, world=2), 100)
        write(out, 40, world=2)
        (out / "latest").symlink_to("global_step_40")
        (out / TRACKER).unlink()
        if text is not None:
            (out / TRACKER).write_text(text)
        yield text, out.parent


def cases(text, out, trainer):
    case = {"trainer": trainer, "mode": "auto", "path": None, "directory": str(out)}
    yield case
    if text == "20":
        for path in PATHS:
            yield {**case, "mode": "resume_path", "path": None if path is None else f"{out}/{path}"}
        yield {**case, "path": f"{out}/global_step_40"}
        yield {**case, "mode": "disable"}
        yield {**case, "directory": f"{out}/elsewhere"}


def verl_says(case):
    python = os.environ.get("CKPTSYNC_TRAINERS_PYTHON")
    if not python:
        pytest.fail("set CKPTSYNC_TRAINERS_PYTHON to an interpreter with verl (make test-trainers does)")
    done = subprocess.run(
        [python, str(SCRIPT)], input=json.dumps(case), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def we_say(node, case):
    words = [f"trainer.resume_mode={case['mode']}", f"trainer.default_local_dir={case['directory']}"]
    words += [f"trainer.resume_from_path={case['path']}"] if case["path"] else []
    start = start_of(node, parse_arguments(words), cwd="/", told=True)
    if start.path:
        return node.layout.step_of(os.path.basename(start.path))
    return 0 if start.silent else "stops"


@pytest.mark.parametrize(("trainer", "write"), [("ppo", verl_step), ("sft", verl_sft_step)])
def test_verl_resumes_from_where_we_say(tmp_path, trainer, write):
    asked = [(home, each) for text, home in directories(tmp_path, write) for each in cases(text, home / "out", trainer)]
    theirs = verl_says([case for _, case in asked])
    assert len(theirs) == len(asked) == len(TRACKERS) + len(PATHS) + 3
    differing = [
        (case, said, ours)
        for (home, case), said in zip(asked, theirs, strict=True)
        if (ours := we_say(fresh(home), case)) != said
    ]
    assert differing == []
    assert {0, 20, 40, "stops"} == set(theirs)
