"""Canaries: keys in the environment stay there, on runs that succeed and on runs that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptsync.cli.main import main
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.seaweed import SeaweedFS

CANARIES = ("CANARYKEYID7731", "canary/Secret+4412", "canaryTOKEN9920")
COMMAND = [sys.executable, "-c", "import sys; from ckptsync.cli.main import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def server():
    """A server whose own keys are the canaries."""
    with SeaweedFS(access_key=CANARIES[0], secret_key=CANARIES[1]) as running:
        yield running


@pytest.fixture
def run(tmp_path, server):
    """run(*line, url=..., **environ): (exit code, everything that was printed)."""
    (tmp_path / "out").mkdir()
    base = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CKPTSYNC_"))}
    base |= {**server.environ, "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}

    def go(*line, url="", driver="obstore", level="full", **environ):
        (tmp_path / "ckptsync.toml").write_text(
            f'[run]\nname = "run"\noutput_dir = "out"\nstate_dir = "state"\n[watch]\nsettle = "2s"\n'
            f'[verify]\nlevel = "{level}"\n'
            f'[upload]\nstore = "{url or server.url("canary")}"\ndriver = "{driver}"\n'
        )
        done = subprocess.run(
            [*COMMAND, *line],
            cwd=tmp_path,
            env={**base, "NO_PROXY": "127.0.0.1", **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return go


def assert_clean(text, root):
    """No canary in what was printed, nor in any file below `root`."""
    assert [canary for canary in CANARIES if canary in text] == []
    for top, _, names in os.walk(root):
        for path in (Path(top, name) for name in names):
            if path.is_file():
                data = path.read_bytes()
                assert [canary for canary in CANARIES if canary.encode() in data] == [], path


def test_a_canary_would_be_seen(tmp_path):
    """The control: this is what the other tests rule out."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "status.json").write_text(f'{{"problem": "{CANARIES[1]}"}}')
    with pytest.raises(AssertionError):
        assert_clean("", tmp_path)
    with pytest.raises(AssertionError):
        assert_clean(f"403 for {CANARIES[0]}", tmp_path / "state" / "none")


@pytest.mark.parametrize("driver", ["obstore", "fsspec"])
def test_runs_that_succeed(tmp_path, run, server, driver):
    verl_step(tmp_path / "out", 20)
    printed = ""
    url = server.url(f"good-{driver}")
    for line in (("run", "--once"), ("status", "--json")):
        code, text = run(*line, url=url, driver=driver, CKPTSYNC_DEBUG="1")
        assert code == 0, text
        printed += text
    assert "step 20 committed" in printed
    assert_clean(printed, tmp_path)


@pytest.mark.parametrize(
    ("driver", "wrong"),
    [
        ("obstore", {"AWS_SECRET_ACCESS_KEY": CANARIES[1] + "X"}),
        ("fsspec", {"AWS_SECRET_ACCESS_KEY": CANARIES[1] + "X"}),
        ("obstore", {"AWS_SESSION_TOKEN": CANARIES[2]}),
        ("obstore", {"url": "s3://nobody-made-this/x"}),
    ],
    ids=["secret", "secret with fsspec", "token", "bucket"],
)
def test_runs_that_fail(tmp_path, run, driver, wrong):
    verl_step(tmp_path / "out", 20)
    code, text = run("run", "--once", driver=driver, CKPTSYNC_DEBUG="1", **wrong)
    assert code == 6 or "AWS_SESSION_TOKEN" in wrong, text  # a server may ignore a token that it did not ask for
    assert_clean(text, tmp_path)


def test_a_secret_in_the_configuration_is_refused_and_not_repeated(tmp_path, run):
    code, text = run("status", url=f"s3://{CANARIES[0]}:canary-in-url@bucket/x")
    assert code == 3
    assert "canary-in-url" not in text
    assert CANARIES[0] not in text


def test_children_get_neither_arguments_nor_environment_with_keys(tmp_path, monkeypatch, capfd):
    """Level deep loads foreign bytes in a child; whatever it is, it finds no keys."""
    pytest.importorskip("torch")
    made = verl_step(tmp_path, 20, real=True, kinds=("model",))
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, canary in zip(names, CANARIES, strict=True):
        monkeypatch.setenv(name, canary)
    started = []
    popen = subprocess.Popen

    def recorded(arguments, **options):
        # What it is given, not /proc: there both are empty until the kernel has finished the exec.
        given = options.get("env")
        started.append(repr((arguments, dict(os.environ) if given is None else given)))
        return popen(arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", recorded)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CKPTSYNC_CONFIG", raising=False)
    assert main(["verify", str(made), "--level", "deep"]) == 0
    assert any("deep" in seen for seen in started)
    assert [canary for canary in CANARIES for seen in started if canary in seen] == []
    assert_clean("".join(capfd.readouterr()), tmp_path)
