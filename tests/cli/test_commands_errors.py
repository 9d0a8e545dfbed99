"""Whatever is wrong, each command says so in one line with the right exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import socket

import pytest

from ckptsync.cli.main import main
from ckptsync.store.retrying import RetryingStore
from ckptsync.testing.checkpoints import verl_step

USING_RUN = ["run --once", "push", "pull", "steps", "status", "wait", "verify"]
USING_STORE = ["run --once", "push", "pull", "steps"]
WRITING = ["run --once", "push"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPTSYNC_CONFIG", raising=False)
    monkeypatch.setitem(RetryingStore.__init__.__kwdefaults__, "sleep", lambda _: None)


@pytest.fixture
def configure(tmp_path):
    """configure(tables): ./ckptsync.toml for ./out, with these tables behind."""

    def write(tables="", run=""):
        text = f'[run]\nname = "run"\noutput_dir = "out"\nstate_dir = "state"\n{run}\n[watch]\nsettle = "2s"\n{tables}'
        (tmp_path / "ckptsync.toml").write_text(text)

    (tmp_path / "out").mkdir()
    return write


@pytest.fixture
def refused(capfd):
    """Run a command line that must fail: returns (exit code, its one line)."""

    def run(line):
        code = main(line.split())
        out, err = capfd.readouterr()
        lines = [text for text in err.splitlines() if text.startswith("ckptsync: ")]
        assert "Traceback" not in out + err
        assert "unexpected error" not in out + err
        assert len(lines) == 1, (out, err)
        return code, lines[0]

    return run


def written(path):
    return sorted(os.path.relpath(os.path.join(top, name), path) for top, _, names in os.walk(path) for name in names)


@pytest.mark.parametrize("command", USING_RUN)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[run\n", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b'[run]\noutput_dir = "out"\nnmae = "x"\n', "name"),
        (b'[run]\noutput_dir = "out"\n[upload]\nbandwith = "1MB/s"\n', "bandwidth"),
        (b'[run]\noutput_dir = "out"\n[watch]\nsettle = 5\n', "settle"),
        (b'[run]\noutput_dir = "out"\n[upload]\nstore = "s3://user:pw@bucket/x"\n', "password"),
    ],
    ids=["not TOML", "not text", "misspelt name", "misspelt bandwidth", "no unit", "a password"],
)
def test_a_bad_configuration(tmp_path, configure, refused, command, text, said):
    (tmp_path / "ckptsync.toml").write_bytes(text)
    code, line = refused(command)
    assert code == 3
    assert said in line
    assert "ckptsync.toml" in line
    assert "user:pw" not in line
    assert written(tmp_path) == ["ckptsync.toml"]


@pytest.mark.parametrize("command", ["run --once", "push", "steps", "status", "wait", "verify"])
def test_no_output_dir(tmp_path, configure, refused, command):
    configure()
    (tmp_path / "out").rmdir()
    code, line = refused(command)
    assert code == 3
    assert str(tmp_path / "out") in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", USING_RUN)
def test_a_file_in_place_of_output_dir(tmp_path, configure, refused, command):
    configure()
    (tmp_path / "out").rmdir()
    (tmp_path / "out").write_text("")
    code, line = refused(command)
    assert code == 3
    assert str(tmp_path / "out") in line


@pytest.mark.parametrize("command", USING_RUN)
def test_a_state_dir_that_cannot_be(tmp_path, configure, refused, command):
    configure()
    verl_step(tmp_path / "out", 20)
    (tmp_path / "state").write_text("")
    code, line = refused(command)
    assert code == 3 if command in WRITING else code in (1, 3)
    assert str(tmp_path / "state") in line


@pytest.mark.parametrize("command", USING_STORE)
def test_a_store_that_is_down(tmp_path, configure, refused, s3_environ, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        configure(f'[upload]\nstore = "s3://test/x"\nendpoint = "http://127.0.0.1:{free.getsockname()[1]}"\n')
        verl_step(tmp_path / "out", 20)
        code, line = refused(command)
    assert code == 6
    assert "s3://test/x" in line
    assert "attempts" in line
    if command == "run --once":
        assert (tmp_path / "out" / "latest").is_symlink()


@pytest.mark.parametrize(
    ("command", "driver"), [("push", "obstore"), ("pull", "obstore"), ("steps", "obstore"), ("pull", "fsspec")]
)
def test_no_such_bucket(tmp_path, configure, refused, s3_environ, command, driver):
    configure(f'[upload]\nstore = "s3://nobody-made-this/x"\ndriver = "{driver}"\n')
    verl_step(tmp_path / "out", 20)
    code, line = refused(command)
    assert code == 6
    assert "bucket" in line


@pytest.mark.parametrize("command", ["push", "pull"])
def test_wrong_credentials(tmp_path, configure, refused, s3_environ, monkeypatch, command):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-wrong-secret")
    configure('[upload]\nstore = "s3://test/x"\n')
    verl_step(tmp_path / "out", 20)
    code, line = refused(command)
    assert code == 6
    assert "credentials" in line
    assert "canary" not in line


def test_a_truncated_step_is_found_and_not_pushed(tmp_path, configure, refused, capfd):
    configure()
    made = verl_step(tmp_path / "out", 20)
    shard = made / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:-700])
    assert main(["verify", str(made)]) == 4
    assert "model_world_size_1_rank_0.pt" in capfd.readouterr().out
    code, line = refused("push")
    assert code == 4
    assert "model_world_size_1_rank_0.pt" in line
    assert not list((tmp_path / "state").glob("store/run/steps/*/*"))


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("push --step 30", 4, "there is no step 30"),
        ("pull --step 30", 5, "step 30"),
        ("pull --max-step 10", 5, "nothing to resume from"),
        ("verify out/global_step_30", 4, "global_step_30"),
        ("verify out", 4, "not a step directory"),
        ("verify --level thorough", 2, "unknown level"),
        ("verify out/global_step_20 --layout torchtitan9", 3, "torchtitan9"),
        ("wait --until done", 2, "cannot wait for that"),
        ("wait --timeout soon", 2, "cannot read --timeout"),
        ("status --check --max-age old", 2, "cannot read --max-age"),
        ("push --step many", 2, "--step"),
        ("pull --colour", 2, "--colour"),
        ("push extra", 2, "extra"),
        ("steps -c none.toml", 3, "none.toml"),
        ("status -c out", 3, "out"),
    ],
)
def test_bad_arguments(tmp_path, configure, refused, line, code, said):
    configure()
    verl_step(tmp_path / "out", 20)
    before = written(tmp_path / "out")
    found, text = refused(line)
    assert found == code
    assert said in text
    assert written(tmp_path / "out") == before
    if code == 2:
        assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_dir_that_cannot_be_written(tmp_path, configure, refused):
    configure()
    (tmp_path / "out").chmod(0o500)
    code, line = refused("push")
    assert code == 3
    assert "not writable" in line


def test_a_wait_that_ends_without_its_step_is_four(tmp_path, configure, capfd):
    configure()
    verl_step(tmp_path / "out", 20)
    assert main(["wait", "--step", "20", "--timeout", "0s"]) == 4
    assert "not verified after 0 s" in capfd.readouterr().out


def test_a_file_is_no_step_directory_and_not_one_that_is_gone(refused, tmp_path):
    step = verl_step(tmp_path, 20)
    code, line = refused(f"verify {step}/data.pt")
    assert code == 4
    assert line.startswith(f"ckptsync: not a step directory: {step}/data.pt: it is no directory")


def test_a_directory_that_no_configuration_can_name_is_refused(refused, tmp_path):
    code, line = refused("init --name run --output-dir " + os.fsdecode(b"out-\xff"))
    assert code == 2
    assert "is UTF-8" in line
    assert not (tmp_path / "ckptsync.toml").exists()


def test_resume_arguments_can_be_pasted_into_a_shell(tmp_path, capfd):
    out = tmp_path / "two words"
    out.mkdir()
    (tmp_path / "ckptsync.toml").write_text(
        f'[run]\nname = "run"\noutput_dir = "{out}"\nstate_dir = "state"\n[watch]\nsettle = "2s"\n'
    )
    verl_step(out, 20)
    assert main(["push"]) == 0
    capfd.readouterr()
    assert main(["pull", "--dest", str(tmp_path / "the $new one")]) == 0
    said = shlex.split(capfd.readouterr().out.splitlines()[-1])
    assert said[-1] == f"trainer.resume_from_path={tmp_path / 'the $new one'}/global_step_20"


def test_an_empty_dest_is_not_in_place(configure, capfd, tmp_path):
    """An unset shell variable must not move steps aside."""
    configure()
    verl_step(tmp_path / "out", 20)
    assert main(["pull", "--dest", ""]) == 2
    assert capfd.readouterr().err.startswith("ckptsync: --dest names no directory")


def test_a_dest_where_no_directory_can_be(configure, refused, capfd, tmp_path):
    configure()
    verl_step(tmp_path / "out", 20)
    assert main(["push"]) == 0
    capfd.readouterr()
    code, line = refused("pull --dest /proc/nothing")
    assert code == 3
    assert "cannot create a directory: /proc/nothing" in line


def test_an_empty_path_is_not_the_directory_one_stands_in(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(verl_step(tmp_path, 20))
    assert main(["verify", ""]) == 2
    assert capfd.readouterr().err.startswith("ckptsync: the path names no directory")


@pytest.mark.parametrize("dest", ["out", "out/global_step_20", "out/elsewhere"])
def test_a_dest_inside_output_dir_would_change_what_is_there(configure, refused, tmp_path, dest):
    configure()
    verl_step(tmp_path / "out", 20)
    before = sorted(path for path in (tmp_path / "out").rglob("*"))
    code, line = refused(f"pull --dest {tmp_path}/{dest}")
    assert code == 2
    assert "it lies inside output_dir" in line
    assert sorted(path for path in (tmp_path / "out").rglob("*")) == before
