"""What scripts read: the exact shapes of --json, and the exit codes beside them."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from ckptsync.cli.main import main
from ckptsync.disk.lock import RunLock
from ckptsync.testing.checkpoints import hf_step, verl_step


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPTSYNC_CONFIG", raising=False)
    (tmp_path / "ckptsync.toml").write_text(
        '[run]\nname = "run"\noutput_dir = "out"\nstate_dir = "state"\n[node]\nname = "n1"\n[watch]\nsettle = "2s"\n'
    )
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def said(capsys):
    """Run a command line; returns (exit code, its JSON document). Nothing else is on stdout."""

    def run(*line):
        code = main([*line, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def uploaded(here, capsys):
    """Step 20, verified, promoted and committed by one pass."""
    verl_step(here / "out", 20, world=2)
    assert main(["run", "--once"]) == 0
    capsys.readouterr()
    return here / "out" / "global_step_20"


def test_verify(here, said):
    made = verl_step(here / "out", 20, world=2)
    whole = {"ok": True, "step": 20, "layout": "verl", "level": "full", "problems": []}
    assert said("verify", str(made)) == (0, whole)
    assert said("verify", str(made), "--level", "structure") == (0, {**whole, "level": "structure"})
    assert said("verify") == (0, whole)

    (made / "actor" / "model_world_size_2_rank_1.pt").unlink()
    code, document = said("verify", str(made))
    assert code == 4
    (problem,) = document.pop("problems")
    assert document == {"ok": False, "step": 20, "layout": "verl", "level": "full"}
    assert problem.keys() == {"path", "code", "message"}
    assert (problem["path"], problem["code"]) == ("actor", "missing")
    assert "rank 1 of 2" in problem["message"]


def test_verify_names_each_truncated_file(here, said):
    made = verl_step(here / "out", 20, world=2)
    for rank in (0, 1):
        shard = made / "actor" / f"optim_world_size_2_rank_{rank}.pt"
        shard.write_bytes(shard.read_bytes()[: -rank - 40])
    code, document = said("verify", str(made))
    assert code == 4
    assert {problem["path"] for problem in document["problems"]} == {
        "actor/optim_world_size_2_rank_0.pt",
        "actor/optim_world_size_2_rank_1.pt",
    }


def test_verify_a_part(here, said):
    made = verl_step(here / "out", 20, world=4, ranks=(0, 1))
    assert said("verify", str(made))[0] == 4
    assert said("verify", str(made), "--part")[0] == 0


def test_push_tells_where_the_time_went_if_asked(here, said, capsys):
    verl_step(here / "out", 20, world=2)
    code, document = said("push", "--profile")
    assert code == 0
    profile = document["profile"]
    assert profile["stages_s"].keys() == {"read", "hash", "encode", "put", "wait"}
    assert profile["sent"] == document["bytes_sent"] > 0
    assert profile["bottleneck"]
    assert main(["push", "--profile"]) == 0
    printed = capsys.readouterr().out
    assert "encode" in printed
    assert "there already" in printed


def test_push(here, said):
    verl_step(here / "out", 20)
    code, document = said("push")
    assert code == 0
    assert document.keys() == {"step", "part", "commit", "bytes", "bytes_sent", "problems"}
    assert (document["step"], document["problems"]) == (20, [])
    assert document["part"].startswith("n1@")
    assert (here / "state/store/run/steps/000000000020/commits" / f"{document['commit']}.json").is_file()
    assert 0 < document["bytes_sent"] <= document["bytes"]

    again = said("push", "--step", "20")
    assert again == (0, {**document, "bytes_sent": 0})


def test_pull(here, uploaded, said):
    files = {path: path.read_bytes() for path in uploaded.rglob("*") if path.is_file()}
    size = sum(len(data) for data in files.values())
    code, document = said("pull", "--dest", str(here / "fresh"))
    assert code == 0
    assert document.keys() >= {"step", "path", "files", "bytes_fetched", "bytes_reused", "resume_args"}
    assert (document["step"], document["path"]) == (20, str(here / "fresh" / "global_step_20"))
    assert document["files"] == len(files)
    assert document["bytes_fetched"] + document["bytes_reused"] == size
    assert all(isinstance(argument, str) for argument in document["resume_args"])
    assert any(document["path"] in argument for argument in document["resume_args"])

    code, document = said("pull")
    assert (code, document["bytes_fetched"], document["moved_aside"]) == (0, 0, [])
    assert {path: path.read_bytes() for path in uploaded.rglob("*") if path.is_file()} == files


def test_a_dry_run_writes_nothing(here, uploaded, capsys):
    assert main(["pull", "--dest", "fresh", "--dry-run"]) == 0
    assert "restore step 20" in capsys.readouterr().out
    assert not (here / "fresh" / "global_step_20").exists()


def test_steps(here, uploaded, said):
    broken = verl_step(here / "out", 40, world=2)
    shard = broken / "actor" / "model_world_size_2_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:-50])
    past = time.time() - 60
    os.utime(shard, (past, past))
    for path in broken.rglob("*"):
        os.utime(path, (past + 1, past + 1))
    code, document = said("steps")
    assert code == 0
    assert [row["step"] for row in document] == [20, 40]
    assert all(row.keys() == {"step", "local", "remote", "latest", "reasons"} for row in document)
    first, second = document
    assert first == {"step": 20, "local": "verified", "remote": "committed", "latest": True, "reasons": []}
    assert (second["remote"], second["latest"]) == ("absent", False)
    assert second["local"] in ("broken", "growing")
    assert second["reasons"]


def test_no_steps_at_all(said):
    assert said("steps") == (0, [])


def test_status(here, uploaded, said):
    code, document = said("status")
    assert code == 0
    assert document.keys() == {"run", "node", "daemon", "local", "remote", "disk", "resume", "problems"}
    assert (document["run"], document["node"]) == ("run", "n1")
    assert document["daemon"].keys() == {"running", "last_pass"}
    assert document["daemon"]["running"] is False
    assert document["local"] == {"newest": 20, "verified": 20, "latest": "global_step_20"}
    assert document["remote"].keys() == {"committed", "age_s", "lag_steps"}
    assert (document["remote"]["committed"], document["remote"]["lag_steps"]) == (20, 0)
    assert document["remote"]["age_s"] >= 0
    assert document["disk"].keys() == {"free", "next_save"}
    assert document["disk"]["next_save"] == sum(path.stat().st_size for path in uploaded.rglob("*") if path.is_file())
    assert document["resume"] is None
    assert document["problems"] == []


def test_status_before_anything_happened(said):
    code, document = said("status")
    assert code == 0
    assert document["local"] == {"newest": None, "verified": None, "latest": None}
    assert document["remote"] == {"committed": None, "age_s": None, "lag_steps": None}


def test_status_says_that_nobody_looks_after_a_step(here, uploaded, said):
    for step in range(30, 100, 10):
        verl_step(here / "out", step, world=2)
    _, document = said("status")
    left = "step 90, 80, 70, 60, 50 and 2 more will not be verified or uploaded"
    assert document["problems"] == [f"no daemon runs: {left} (`ckptsync run`)"]


def test_status_tells_people_where_it_remembers(here, capsys):
    """Another user, or another machine's copy of the configuration, remembers nothing of the run."""
    verl_step(here / "out", 20, world=2)
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["remembered", "in", str(here / "state")] for line in lines)
    assert any(line.endswith("; no save is verified yet") for line in lines)


def test_steps_tells_people_what_partial_means(here, capsys):
    with (here / "ckptsync.toml").open("a") as file:
        file.write(f'[upload]\nstore = "{(here / "bucket").as_uri()}"\nevery_steps = 100\n')
    verl_step(here / "out", 30, world=2)
    assert main(["run", "--once"]) == 0
    capsys.readouterr()
    assert main(["steps"]) == 0
    *_, row, last = capsys.readouterr().out.splitlines()
    assert row.split()[:3] == ["30", "verified", "partial"]
    assert last == "partial: the store knows of the step, and does not hold it ([upload] every_steps = 100)"


def test_status_check(here, uploaded, said):
    code, document = said("status", "--check")
    assert (code, document["ok"]) == (4, False)
    assert "daemon is not running" in document["message"]

    with RunLock(str(here / "state" / "daemon.lock")):  # as the daemon holds it
        assert said("status", "--check") == (0, {"ok": True, "message": "ok: step 20 is committed, 0 steps behind"})
        assert said("status", "--check", "--max-age", "1h", "--max-lag", "0")[0] == 0
        code, document = said("status", "--check", "--max-age", "0s")
        assert (code, document["ok"]) == (4, False)
        assert "the last commit (step 20)" in document["message"]


def test_status_check_of_an_uploader_that_always_fails(here, uploaded, said, capsys):
    """The store goes away; what is verified meanwhile is what is at risk."""
    chunks = here / "state" / "store" / "run" / "chunks"
    chunks.rename(chunks.with_name("away"))
    chunks.write_text("not a directory")
    verl_step(here / "out", 40, world=2)
    assert main(["run", "--once"]) == 6
    capsys.readouterr()
    with RunLock(str(here / "state" / "daemon.lock")):
        assert said("status", "--check", "--max-lag", "20")[0] == 0
        code, document = said("status", "--check", "--max-lag", "19")
        assert code == 4
        assert "20 steps behind" in document["message"]
        code, document = said("status")
    assert document["local"] == {"newest": 40, "verified": 40, "latest": "global_step_40"}
    assert (document["remote"]["committed"], document["remote"]["lag_steps"]) == (20, 20)
    assert document["problems"]


def test_wait(here, uploaded, said):
    assert said("wait") == (0, {"ok": True, "step": 20, "state": "verified", "message": "step 20 is verified"})
    committed = {"ok": True, "step": 20, "state": "committed", "message": "step 20 is committed"}
    assert said("wait", "--until", "committed", "--step", "20") == (0, committed)
    code, document = said("wait", "--step", "40", "--timeout", "0s")
    assert (code, document["ok"], document["step"], document["state"]) == (4, False, 40, "absent")


def test_wait_ends_at_once_for_a_broken_step(here, said, capsys):
    made = verl_step(here / "out", 20)
    shard = made / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:-50])
    assert main(["run", "--once"]) == 0
    capsys.readouterr()
    code, document = said("wait", "--step", "20")
    assert (code, document["ok"], document["state"]) == (4, False, "broken")


def test_another_layout_reads_the_same(here, said):
    made = hf_step(here / "out", 500, shards=2)
    assert said("verify", str(made))[1]["ok"] is True
    assert said("push")[0] == 0
    code, document = said("pull", "--dest", "fresh")
    assert (code, document["step"]) == (0, 500)


def test_wait_knows_a_committed_step_that_the_trainer_has_deleted(here, uploaded, said):
    verl_step(here / "out", 40, world=2)
    shutil.rmtree(uploaded)
    shutil.rmtree(here / "state" / "saves")
    code, document = said("wait", "--until", "committed", "--step", "20")
    assert (code, document["ok"], document["state"]) == (0, True, "committed")
