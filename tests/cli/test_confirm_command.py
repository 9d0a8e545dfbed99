"""`ckptsync confirm` as people and scripts use it."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest
from train_logs import RAY, layered_start, step_line, steps, v1_start

from ckptsync.app import open_node
from ckptsync.cli.main import main
from ckptsync.config import load
from ckptsync.model.launch import LaunchRecord
from ckptsync.resume.confirmation.confirm import Confirming
from ckptsync.sync.launches import Launches
from ckptsync.testing.checkpoints import layered_step, verl_step

BEFORE = steps(1, 44)
NAMES = ["resumed", "first_step", "epoch", "optimizer", "dataloader"]
NAMES += ["learning_rate", "loss", "rollouts", "state_dict", "memory"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPTSYNC_CONFIG", raising=False)
    (tmp_path / "ckptsync.toml").write_text(
        '[run]\nname = "run"\noutput_dir = "out"\nstate_dir = "state"\n[node]\nname = "n1"\n[watch]\nsettle = "2s"\n'
    )
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def log(here):
    """log(lines): writes the trainer's log."""

    def write(*lines, name="train.log"):
        (here / name).write_text("".join(lines))
        return str(here / name)

    return write


@pytest.fixture
def said(capsys):
    def run(*line):
        code = main(["confirm", *line, "--json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else captured.err

    return run


def launched(resumed_step):
    """What `exec` writes down before it starts the trainer."""
    node = open_node(load())
    node.recognise()
    remote = node.remote()
    launches = Launches(remote)
    started = launches.now_ns("n1")
    record = LaunchRecord(
        "run", remote.run_id, f"local-{started}", "n1", started, argv=("python",), resumed_step=resumed_step
    )
    launches.put(record)
    return launches, record


def test_a_resume_that_went_on_is_zero_and_one_that_did_not_is_nine(log, said):
    code, document = said("--train-log", log(*BEFORE, *v1_start(40), *steps(41, 43)), "--step", "40")
    assert code == 0
    assert {**document, "checks": [check["name"] for check in document["checks"]]} == {
        "ok": True,
        "step": 40,
        "first": 41,
        "pending": False,
        "checks": NAMES,
    }
    assert all(check.keys() == {"name", "status", "message", "remedy"} for check in document["checks"])
    code, document = said("--train-log", log(*BEFORE, *v1_start(20), *steps(21, 23)), "--step", "40")
    assert (code, document["ok"]) == (9, False)


def test_people_read_a_table_the_remedies_and_a_sentence(log, capsys):
    assert main(["confirm", "--train-log", log(f"{RAY}Training from scratch\n", *steps(1, 2)), "--step", "40"]) == 9
    out = capsys.readouterr().out
    assert "resumed: stop it; `ckptsync preflight` says why" in out
    assert out.splitlines()[-1].startswith("the training does not go on from step 40: the log says that it trains from")


def test_the_log_before_may_be_another_file(log, said):
    new, old = log(*v1_start(40), *steps(41, 43)), log(*BEFORE, name="old.log")
    _, document = said("--train-log", new)
    assert {c["name"]: c["status"] for c in document["checks"]}["loss"] == "skip"
    _, document = said("--train-log", new, "--before", old)
    assert {c["name"]: c["status"] for c in document["checks"]}["loss"] == "pass"


def test_what_the_step_holds_is_compared(here, log, said):
    layered_step(here / "out", 40, epoch=2)  # its dataloader has yielded 320 samples
    code, document = said("--train-log", log(*layered_start(40, 2, 320), *steps(41, 41)))
    assert code == 0
    assert [c["status"] for c in document["checks"] if c["name"] in ("epoch", "dataloader")] == ["pass", "pass"]
    code, document = said("--train-log", log(*layered_start(40, 0, 0), *steps(41, 41)))
    assert code == 9
    assert [c["status"] for c in document["checks"] if c["name"] in ("epoch", "dataloader")] == ["fail", "fail"]


def test_the_step_and_the_outcome_are_those_of_the_newest_launch(here, log, said, capsys):
    verl_step(here / "out", 40)
    launches, record = launched(40)
    code, document = said("--train-log", log(*BEFORE, *v1_start(20), *steps(21, 23)))
    assert code == 9
    assert document["step"] == 40, "the log's own word is not enough"
    assert launches.noted(record, "confirm")["ok"] is False
    assert said("--train-log", log(*BEFORE, *v1_start(40), *steps(41, 43)))[0] == 0
    noted = launches.noted(record, "confirm")
    assert (noted["ok"], noted["message"]) == (True, "the training goes on from step 40")
    main(["confirm", "--train-log", log(*v1_start(20), *steps(21, 23)), "--step", "20"])
    assert "not kept with the newest launch: that resumed from step 40" in capsys.readouterr().err
    assert launches.noted(record, "confirm") == noted


def test_status_shows_the_last_outcome(log, said, capsys):
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["resume"] is None
    said("--train-log", log(*BEFORE, *v1_start(40), *steps(41, 43)))
    main(["status", "--json"])
    resume = json.loads(capsys.readouterr().out)["resume"]
    assert 0 <= resume.pop("age_s") < 60
    assert resume == {"ok": True, "step": 40, "first": 41, "message": "the training goes on from step 40"}
    main(["status"])
    assert "the training goes on from step 40 (now)" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", '{"ok": 1}', '{"ok": true, "message": "m", "at_s": "x"}', "[" * 5000])
def test_an_outcome_that_cannot_be_read_is_none(here, capsys, content):
    (here / "state").mkdir()
    (here / "state/confirm.json").write_text(content)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resume"] is None


def test_a_store_that_is_gone_does_not_hide_what_the_log_says(here, log, capsys):
    (here / "ckptsync.toml").write_text(
        (here / "ckptsync.toml").read_text()
        + '[upload]\nstore = "s3://b/p"\nendpoint = "http://127.0.0.1:9"\nregion = "r"\n'
    )
    assert main(["confirm", "--train-log", log(*BEFORE, *v1_start(40), *steps(41, 43))]) == 0
    assert "the newest launch is not known" in capsys.readouterr().err


@pytest.fixture
def growing(monkeypatch):
    """growing(path, lines): a trainer that goes on writing its log, once `confirm` has read what is there."""
    threads, followed, mark = [], threading.Event(), Confirming.mark

    def marked(self):
        mark(self)
        followed.set()

    monkeypatch.setattr(Confirming, "mark", marked)

    def grow(path, *lines):
        def write():
            assert followed.wait(60)
            with open(path, "a") as file:
                for line in lines:
                    time.sleep(0.1)
                    file.write(line)
                    file.flush()

        threads.append(threading.Thread(target=write))
        threads[-1].start()

    yield grow
    for thread in threads:
        thread.join()


def test_follow_waits_for_the_first_steps(log, said, growing):
    path = log(*BEFORE)
    growing(path, *v1_start(40), step_line(41), step_line(42))
    code, document = said("--train-log", path, "--step", "40", "--follow", "--steps", "2", "--timeout", "1m")
    assert (code, document["first"], document["pending"]) == (0, 41, False)


def test_follow_does_not_take_the_last_resume_for_this_one(log, said, growing):
    """It went on well from step 40, and crashed; the one that comes now does not."""
    path = log(*BEFORE, *v1_start(40), *steps(41, 44))
    growing(path, *["loading\n"] * 5, *v1_start(40), *steps(41, 42, actor__loss=9.0))
    assert said("--train-log", path, "--step", "40", "--follow", "--timeout", "1m")[0] == 9


def test_follow_does_not_wait_for_what_has_failed(log, said, growing):
    path, began = log(*BEFORE), time.monotonic()
    growing(path, "Training from scratch\n")
    assert said("--train-log", path, "--step", "40", "--follow", "--timeout", "10m")[0] == 9
    assert time.monotonic() - began < 60


def test_a_log_from_before_the_newest_launch_is_refused(here, log, capsys):
    verl_step(here / "out", 40)
    path = log(*BEFORE, *v1_start(40), *steps(41, 43))
    old = time.time() - 3600
    os.utime(path, (old, old))
    launched(40)
    assert main(["confirm", "--train-log", path]) == 2
    assert "the log ends before the newest launch began" in capsys.readouterr().err


def test_time_runs_out(here, said):
    code, document = said("--train-log", str(here / "no.log"), "--step", "40", "--follow", "--timeout", "1s")
    assert (code, document["pending"]) == (9, True)


def test_without_a_step_after_the_resume_nothing_is_confirmed(log, said):
    assert said("--train-log", log(*v1_start(40)))[0] == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing option"),
        (("--train-log", "no.log"), "there is no such log"),
        (("--train-log", "ok.log"), "nobody knows which step was resumed from"),
        (("--train-log", "ok.log", "--timeout", "soon"), "cannot read --timeout"),
        (("--train-log", "ok.log", "--step", "40", "--before", "no.log"), "there is no such log"),
    ],
)
def test_what_cannot_be_asked_is_two(log, capsys, arguments, message):
    log(*steps(41, 43), name="ok.log")
    assert main(["confirm", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_known_is_told_to_people_with_the_way_to_know_it_once_for_all(here, log, capsys):
    verl_step(here / "out", 44, world=2)
    assert main(["confirm", "--train-log", log(*v1_start(44), *steps(45, 46))]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "--before FILE" in line]
    assert "learning_rate, loss: give the log of the training before the resume: --before FILE" in told
