from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from ckptsync import __version__
from ckptsync.cli import main as cli
from ckptsync.errors import CheckpointError, ConflictError, NoSpaceError

HEAVY = (
    "boto3",
    "botocore",
    "numpy",
    "obstore",
    "pydantic",
    "rich",
    "fsspec",
    "zstandard",
    "blake3",
    "watchdog",
    "asyncio",
)


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", "import sys; from ckptsync.cli.main import main; sys.exit(main())", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.fixture
def command(monkeypatch):
    """Install a function as the command `fake`."""

    def install(function):
        module = ModuleType("ckptsync.cli.fake")
        module.fake = function
        monkeypatch.setitem(sys.modules, "ckptsync.cli.fake", module)
        monkeypatch.setitem(cli.COMMANDS, "fake", cli.Command("fake", "fake", "A command for tests."))

    return install


def raising(error):
    def fake() -> None:
        raise error

    return fake


def test_help_names_every_command_and_exit_code(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"  {name}" in shown
        assert command.help in shown
    for meaning in ("0  done", "2  usage", "3  configuration", "5  nothing to resume", "9  preflight failed"):
        assert meaning in shown
    assert "./ckptsync.toml" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_no_arguments_and_short_help_show_the_same(capsys):
    outputs = []
    for arguments in (["--help"], ["-h"], []):
        assert cli.main(arguments) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom ckptsync.cli.main import main\nmain(sys.argv[1:])\n"
        f"print('LOADED', *sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize("command", cli.COMMANDS.values(), ids=cli.COMMANDS.keys())
def test_every_command_is_a_module(command):
    assert find_spec(f"ckptsync.cli.{command.module}") is not None


def test_only_the_wanted_command_is_imported():
    code = (
        "import sys\nfrom ckptsync.cli.main import main\nmain(['init', '--help'])\n"
        "print('LOADED', *sorted(m for m in sys.modules if m.startswith('ckptsync.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ckptsync.cli.init" in done.stdout
    assert "ckptsync.cli.service" not in done.stdout


@pytest.mark.parametrize("command", [["status"], ["steps"], ["select"], ["pull", "--dry-run"]], ids=" ".join)
def test_who_only_looks_does_not_wait_for_numpy(command, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "ckptsync.toml").write_text(
        f'[run]\noutput_dir = "{tmp_path}/out"\nstate_dir = "{tmp_path}/state"\n[upload]\nstore = "file://{tmp_path}/s"\n'
    )
    code = f"import sys\nfrom ckptsync.cli.main import main\nprint(main({command!r}), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] in ("0 False", "5 False"), done.stderr


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ckptsync {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["confg"], "ckptsync: no such command 'confg'. Did you mean 'config', 'confirm'? (see `ckptsync --help`)"),
        (["-c", "x", "init"], "ckptsync: no such option: -c (see `ckptsync --help`)"),
        (["init", "--nmae", "x"], "--nmae"),
        (["config"], "ckptsync: missing command (see `ckptsync config --help`)"),
        (["init", "--name"], "requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(capsys, arguments, line):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckpointError("broken", where="step 3", why="a hole"), 4),
        (ConflictError("two\nlines"), 7),
        (NoSpaceError("full", remedy="free some"), 8),
    ],
)
def test_errors_are_one_line_with_their_exit_code(capsys, command, error, code):
    command(raising(error))
    assert cli.main(["fake"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"ckptsync: {error}\n"
    assert captured.out == ""


def test_an_unexpected_error_is_one_line_and_the_traceback_is_offered(capsys, command, monkeypatch):
    command(raising(ValueError("odd\nthing")))
    monkeypatch.delenv("CKPTSYNC_DEBUG", raising=False)
    assert cli.main(["fake"]) == 1
    line = "ckptsync: unexpected error: ValueError: odd thing (CKPTSYNC_DEBUG=1 shows the traceback)\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("CKPTSYNC_DEBUG", "1")
    assert cli.main(["fake"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith(line)


def test_names_cannot_play_with_the_terminal(capsys, command):
    command(raising(CheckpointError("broken", where="\x1b[2Jstep\udcff")))
    assert cli.main(["fake"]) == 4
    assert capsys.readouterr().err == "ckptsync: broken: \\x1b[2Jstep\\udcff\n"


def test_an_interrupt_is_130(capsys, command):
    command(raising(KeyboardInterrupt()))
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err == ""


def test_a_command_may_return_its_exit_code(command):
    def fake() -> int:
        return 4

    command(fake)
    assert cli.main(["fake"]) == 4


def test_a_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from ckptsync.cli.main import main; sys.exit(main())", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_option_for_the_configuration_follows_the_command(tmp_path):
    done = run("config", "check", "-c", str(tmp_path / "none.toml"))
    assert done.returncode == 3
    assert done.stderr.startswith("ckptsync: cannot read the configuration: ")
    assert done.stderr.count("\n") == 1
