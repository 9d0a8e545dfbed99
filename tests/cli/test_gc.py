"""`ckptsync gc` and `scrub` against a real S3 server, and what a script sees of them."""

from __future__ import annotations

import json
import os
import uuid

import pytest

from ckptsync.cli.main import main
from ckptsync.config import load
from ckptsync.stores import open_store
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.fingerprint import fingerprint


@pytest.fixture
def run(s3_environ, tmp_path, capsys, quick):
    """Steps 10, 20 and 30 are in a bucket; calls the command line, and gives its code and its output."""
    config = tmp_path / "c.toml"
    config.write_text(
        f'[run]\nname = "run"\noutput_dir = "{tmp_path}/out"\nstate_dir = "{tmp_path}/state"\n'
        f'[watch]\nsettle = "2s"\n[upload]\nstore = "s3://test/{uuid.uuid4().hex}"\n'
        "[retention.local]\nkeep_last = 1\n[retention.remote]\nkeep_last = 2\n"
    )

    def call(command, *arguments):
        code = main([command, "--config", str(config), *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    for step in (10, 20, 30):
        verl_step(tmp_path / "out", step, world=2, n=20_000, seed=step)
    for step in (10, 20, 30):
        assert call("push", "--step", str(step))[0] == 0
    return call


def remote_steps(run):
    return {row["step"] for row in json.loads(run("steps", "--json")[1]) if row["remote"] == "committed"}


def test_what_retention_gives_up_goes_after_the_grace_and_nothing_else(run, tmp_path):
    planned = json.loads(run("gc", "--dry-run", "--json")[1])
    assert planned["announced"]["steps"] == [10]
    announced = json.loads(run("gc", "--json")[1])
    assert announced["announced"] == planned["announced"]
    assert [each["number"] for each in announced["waiting"]] == [1]
    assert run("pull", "--step", "10", "--dry-run", "--dest", str(tmp_path / "d"))[0] == 5, "void from now on"
    code, out, _ = run("gc")
    assert (code, "collection 1 waits" in out) == (0, True)
    done = json.loads(run("gc", "--grace", "0s", "--json")[1])
    assert done["swept"] == [
        {"number": 1, "keys": sum(planned["announced"][k] for k in ("commits", "parts", "chunks"))}
    ]
    assert done["freed"] == planned["announced"]["bytes"] > 0
    assert remote_steps(run) == {20, 30}
    for step in (20, 30):
        assert run("pull", "--step", str(step), "--dest", str(tmp_path / "back"))[0] == 0
        name = f"global_step_{step}"
        assert fingerprint(tmp_path / "back" / name) == fingerprint(tmp_path / "out" / name)
        assert run("gc", "--grace", "0s")[0] == 0


def test_a_step_here_that_was_collected_there_is_not_said_to_be_there(run):
    assert run("gc", "--grace", "0s")[0] == 0
    here = {row["step"]: row for row in json.loads(run("retain", "--json", "--dry-run")[1])["local"]}
    assert here[10]["reasons"] == ["no policy keeps it", "it has been collected in the store"]


@pytest.mark.parametrize(("command", "option", "value"), [("gc", "--grace", "soon"), ("scrub", "--sample", "5")])
def test_bad_arguments_are_one_line(run, command, option, value):
    code, out, err = run(command, "--remote", option, value) if command == "scrub" else run(command, option, value)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert option in err


def test_scrub_heals_the_store_and_tells_of_a_rotten_file(run, tmp_path):
    store = open_store(load(str(tmp_path / "c.toml")))
    for meta in list(store.list("run/chunks")):
        store.put(meta.key, b"rotten")
    found = json.loads(run("scrub", "--remote", "--json")[1])
    assert len(found["healed"]) == found["remote"]["chunks"] > 0
    assert run("pull", "--step", "20", "--dest", str(tmp_path / "back"))[0] == 0
    assert json.loads(run("scrub", "--remote", "--sample", "50%", "--json")[1])["healed"] == []
    path = tmp_path / "out/global_step_20/actor/model_world_size_2_rank_0.pt"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    code, out, _ = run("scrub", "--json")
    assert (code, len(json.loads(out)["damaged"])) == (4, 1)
