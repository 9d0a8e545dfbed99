from __future__ import annotations

import json
import shutil

import pytest

from ckptsync.cli.main import main
from ckptsync.config import load


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPTSYNC_CONFIG", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


def test_init_writes_a_configuration_that_loads(tmp_path, capsys):
    assert main(["init"]) == 0
    assert "ckptsync.toml" in capsys.readouterr().out
    assert load(None, {}).file == str(tmp_path / "ckptsync.toml")


def test_init_fills_in_what_is_given(tmp_path):
    arguments = ["--output-dir", 'odd "dir', "--name", "r1", "--store", "s3://bucket/p", "--path", "sub/c.toml"]
    assert main(["init", *arguments]) == 0
    config = load("sub/c.toml", {})
    assert config.run.output_dir == str(tmp_path / 'odd "dir')
    assert (config.run.name, config.upload.store) == ("r1", "s3://bucket/p")
    assert (tmp_path / "sub/c.toml").read_text().count("store = ") == 1


def test_the_directory_names_the_run():
    assert main(["init", "--output-dir", "ck7"]) == 0
    assert load(None, {}).run.name == "ck7"


def test_init_never_overwrites(tmp_path, capsys):
    (tmp_path / "ckptsync.toml").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err.startswith("ckptsync: will not overwrite a configuration: ")
    assert (tmp_path / "ckptsync.toml").read_text() == "mine"


def test_init_writes_nothing_that_would_be_refused(tmp_path, capsys):
    assert main(["init", "--store", "bucket"]) == 3
    assert "[upload] store is not a URL" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_check_shows_what_is_in_force(tmp_path, capsys):
    (tmp_path / "ck").mkdir()
    assert main(["init", "--output-dir", "ck"]) == 0
    capsys.readouterr()
    assert main(["config", "check"]) == 0
    shown = capsys.readouterr().out
    assert f"output_dir  {tmp_path / 'ck'}\n" in shown
    assert "upload      every 100 steps\n" in shown
    assert main(["config", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["name"] == "ck"


def test_check_tries_the_directories(capsys):
    assert main(["init", "--output-dir", "none"]) == 0
    capsys.readouterr()
    assert main(["config", "check", "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ckptsync: cannot use output_dir: ")


@pytest.mark.parametrize("table", ['output_dir = "{0}/ck"', 'output_dir = "{1}"\nstate_dir = "{0}/state"'])
def test_check_and_preflight_refuse_what_cannot_be_written(read_only, tmp_path, capsys, table):
    (tmp_path / "out").mkdir()
    (tmp_path / "ckptsync.toml").write_text("[run]\n" + table.format(read_only, tmp_path / "out") + "\n")
    assert main(["config", "check"]) == 3
    line = capsys.readouterr().err
    assert line.startswith("ckptsync: cannot write to ")
    assert "on a read-only file system" in line
    assert main(["preflight"]) in (3, 9)
    captured = capsys.readouterr()
    assert "ead-only file system" in captured.err + captured.out


def test_init_join_accepts_another_run_in_the_store_and_forgets_what_it_knew(tmp_path, capsys):
    out, config = tmp_path / "out", tmp_path / "ckptsync.toml"
    out.mkdir()
    config.write_text(
        f'[run]\noutput_dir = "{out}"\nstate_dir = "{tmp_path}/state"\n[upload]\nstore = "file://{tmp_path}/store"\n'
    )
    assert main(["init", "--join", "-c", str(config)]) == 0  # makes the run
    (tmp_path / "state" / "run_id").write_text("0" * 32)
    (tmp_path / "state" / "saves" / "old").mkdir(parents=True)
    assert main(["steps", "-c", str(config)]) == 7
    assert "--join" in capsys.readouterr().err
    assert main(["init", "--join", "-c", str(config)]) == 0
    assert main(["steps", "-c", str(config)]) == 0
    assert not (tmp_path / "state" / "saves").exists()


def test_a_store_that_lost_the_run_is_not_an_empty_one(tmp_path, capsys):
    """A store that is not mounted looks empty: `pull` must not say that there is nothing to resume from."""
    out, config = tmp_path / "out", tmp_path / "ckptsync.toml"
    out.mkdir()
    config.write_text(
        f'[run]\noutput_dir = "{out}"\nstate_dir = "{tmp_path}/state"\n[upload]\nstore = "file://{tmp_path}/store"\n'
    )
    assert main(["pull", "-c", str(config)]) == 5
    assert not (tmp_path / "store").exists()
    assert main(["init", "--join", "-c", str(config)]) == 0
    assert main(["pull", "-c", str(config)]) == 5
    shutil.rmtree(tmp_path / "store")
    for command in ("pull", "steps"):
        assert main([command, "-c", str(config)]) == 6
        assert "the store does not hold the run" in capsys.readouterr().err
