from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ckptsync.cli.main import main
from ckptsync.config import load
from ckptsync.daemon.probe import probe
from ckptsync.daemon.unit import drop_in, writable_paths
from ckptsync.errors import ConfigError

UNITS = Path(__file__).parents[2] / "systemd"
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def config(tmp_path):
    """Write a configuration and load it as the unit would."""

    def config(text='[run]\noutput_dir = "/data/verl/ck"\n'):
        file = tmp_path / "c.toml"
        file.write_text(text)
        return load(str(file), {"STATE_DIRECTORY": "/var/lib/ckptsync/ck"})

    return config


def lines(config, **changes):
    arguments = {"user": "trainer", "executable": "/opt/c/bin/ckptsync", "config_file": "/etc/ckptsync/config.toml"}
    return drop_in(config, **{**arguments, **changes}).splitlines()


def exposure(root, unit):
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--root={root}", "--threshold=15", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@needs_analyze
@pytest.mark.parametrize("unit", ["ckptsync.service", "ckptsync@.service"])
def test_the_units_are_hardened(tmp_path, unit):
    target = tmp_path / "etc/systemd/system"
    target.mkdir(parents=True)
    shutil.copy(UNITS / unit, target)
    code, report = exposure(tmp_path, unit.replace("@", "@run"))
    assert code == 0, report


@needs_analyze
def test_an_installed_unit_is_hardened_with_every_relaxation(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[run]\noutput_dir = "/home/me/ck"\n[verify]\nlevel = "deep"\n')
    assert main(["service", "install", "--user", "me", "-c", str(file), "--root", str(tmp_path)]) == 0
    code, report = exposure(tmp_path, "ckptsync.service")
    assert code == 0, report


@needs_analyze
def test_the_control_an_unhardened_unit_fails(tmp_path):
    target = tmp_path / "etc/systemd/system"
    target.mkdir(parents=True)
    (target / "plain.service").write_text("[Service]\nUser=me\nExecStart=/bin/true\n")
    code, report = exposure(tmp_path, "plain.service")
    assert code == 1, report


def test_the_two_units_differ_only_in_names():
    plain, template = ((UNITS / name).read_text() for name in ("ckptsync.service", "ckptsync@.service"))

    def settings(text):
        return [line for line in text.splitlines() if line and not line.startswith("# ")]

    for old, new in (
        ("/etc/ckptsync/%i.toml", "/etc/ckptsync/config.toml"),
        ("/etc/ckptsync/%i.env", "/etc/ckptsync/ckptsync.env"),
        ("/etc/ckptsync/%i-aws-credentials", "/etc/ckptsync/aws-credentials"),
        ("StateDirectory=ckptsync/%i", "StateDirectory=ckptsync"),
        ("RuntimeDirectory=ckptsync/%i", "RuntimeDirectory=ckptsync"),
        (" (%i)", ""),
    ):
        assert old in template
        template = template.replace(old, new)
    assert settings(plain) == settings(template)


def test_no_address_is_denied_and_stopping_has_time():
    for unit in UNITS.glob("*.service"):
        text = unit.read_text()
        assert not re.search("^IPAddressDeny", text, re.MULTILINE)
        assert "EnvironmentFile=-/etc/ckptsync/" in text
        assert "TimeoutStopSec=90s" in text


def test_the_drop_in_names_user_command_and_the_parent_of_output_dir(config):
    assert lines(config())[1:] == [
        "[Unit]",
        'RequiresMountsFor="/data/verl"',
        "[Service]",
        "User=trainer",
        "ExecStart=",
        'ExecStart="/opt/c/bin/ckptsync" run --config "/etc/ckptsync/config.toml"',
        'ReadWritePaths="/data/verl"',
        "TimeoutStopSec=90s",
        "StateDirectory=",
        "StateDirectory=ckptsync/ck",
        "StateDirectoryMode=0700",
        "RuntimeDirectory=",
        "RuntimeDirectory=ckptsync/ck",
        "RuntimeDirectoryMode=0750",
    ]


def test_stopping_takes_longer_than_the_daemon_may(config):
    shown = lines(config('[run]\noutput_dir = "/data/verl/ck"\n[daemon]\nstop_timeout = "10m"\n'))
    assert "TimeoutStopSec=630s" in shown


def test_state_store_and_link_elsewhere_are_writable_once(config):
    text = (
        '[run]\noutput_dir = "/data/verl/ck"\nstate_dir = "/data/state"\n[promote]\nlink = "/data/verl/x/latest"\n'
        '[upload]\nstore = "file:///nfs/store"\n'
    )
    assert writable_paths(config(text)) == ("/data/verl", "/data/state", "/nfs/store")
    assert "StateDirectory=ckptsync/ck" not in lines(config(text))
    inside = text.replace("/nfs/store", "/data/state/store")
    assert writable_paths(config(inside)) == ("/data/verl", "/data/state")


def test_the_root_directory_is_never_opened(config):
    with pytest.raises(ConfigError, match="cannot lie in the root directory"):
        lines(config('[run]\noutput_dir = "/ck"\n'))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/ck", "ProtectHome=read-only"),
        ("/root/ck/x", "ProtectHome=read-only"),
        ("/tmp/x/ck", "PrivateTmp=no"),
        ("/homeless/x/ck", None),
    ],
)
def test_only_what_lies_in_the_way_is_relaxed(config, path, expected):
    shown = lines(config(f'[run]\noutput_dir = "{path}"\n'))
    relaxed = [line for line in shown if line.startswith(("ProtectHome", "PrivateTmp"))]
    assert relaxed == ([expected] if expected else [])


def test_a_command_in_a_home_directory_can_be_run(config):
    assert "ProtectHome=read-only" in lines(config(), executable="/home/me/venv/bin/ckptsync")


def test_deep_verification_gets_its_memory(config):
    text = '[run]\noutput_dir = "/data/verl/ck"\n[verify]\nlevel = "deep"\ndeep_memory = "3GiB"\n'
    assert f"MemoryHigh={4 * 1024**3}" in lines(config(text))


def test_odd_paths_are_escaped_as_systemd_reads_them(config):
    shown = lines(config('[run]\noutput_dir = "/d/a b%c/ck"\n'), config_file='/etc/$x "y".toml')
    assert 'ReadWritePaths="/d/a b%%c"' in shown
    assert r'ExecStart="/opt/c/bin/ckptsync" run --config "/etc/$$x \"y\".toml"' in shown


def test_a_line_break_cannot_add_lines(config):
    with pytest.raises(ConfigError, match="control character"):
        lines(config('[run]\noutput_dir = "/d/a\\nUser=root/ck"\n'))
    with pytest.raises(ConfigError, match="control character"):
        lines(config(), user="x\nAmbientCapabilities=CAP_SYS_ADMIN")


@pytest.fixture
def toml(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[run]\noutput_dir = "/data/verl/ck"\n')
    return str(file)


def test_dry_run_prints_both_files_and_writes_nothing(toml, tmp_path, capsys):
    assert main(["service", "install", "--user", "me", "-c", toml, "--dry-run", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "# /etc/systemd/system/ckptsync.service\n" in shown
    assert "# /etc/systemd/system/ckptsync.service.d/10-install.conf\n" in shown
    assert f'run --config "{toml}"' in shown
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_install_and_uninstall_leave_only_what_others_put_there(toml, tmp_path, capsys):
    units = tmp_path / "etc/systemd/system"
    assert main(["service", "install", "--user", "me", "-c", toml, "--root", str(tmp_path)]) == 0
    mine = units / "ckptsync.service.d/50-mine.conf"
    mine.write_text("[Service]\nMemoryHigh=2G\n")
    assert (units / "ckptsync.service").read_text() == (UNITS / "ckptsync.service").read_text()
    assert main(["service", "uninstall", "--root", str(tmp_path)]) == 0
    assert [path for path in units.rglob("*") if path.is_file()] == [mine]
    assert Path(toml).exists()
    assert main(["service", "uninstall", "--root", str(tmp_path)]) == 2
    assert "is not installed" in capsys.readouterr().err


def test_the_template_goes_with_its_last_instance(toml, tmp_path):
    units = tmp_path / "etc/systemd/system"
    for name in ("a", "b"):
        assert main(["service", "install", "--user", "me", "-c", toml, "--name", name, "--root", str(tmp_path)]) == 0
    assert main(["service", "uninstall", "--name", "a", "--root", str(tmp_path)]) == 0
    assert (units / "ckptsync@.service").exists()
    assert not (units / "ckptsync@a.service.d").exists()
    assert main(["service", "uninstall", "--name", "b", "--root", str(tmp_path)]) == 0
    assert list(units.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["install", "--user", "me", "-c", "/none.toml"], 3, r"cannot read the configuration: /none\.toml: .*No such"),
        (["install", "-c", "/none.toml"], 2, "missing option '--user'"),
        (["install", "--user", "me", "--name", "a/b"], 2, "not the name of an instance: a/b"),
        (["uninstall", "--name", "none"], 2, "the service is not installed"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, arguments, code, line):
    assert main(["service", *arguments]) == code
    shown = capsys.readouterr().err
    assert re.search(line, shown), shown
    assert shown.count("\n") == 1


def test_installing_needs_root(toml, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["service", "install", "--user", "me", "-c", toml]) == 2
    assert re.search(r"this needs root \(sudo .*ckptsync service", capsys.readouterr().err)


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs this machine")
def test_installing_needs_systemd(toml, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["service", "install", "--user", "me", "-c", toml]) == 2
    assert "systemd does not run this machine" in capsys.readouterr().err


@pytest.fixture
def run_config():
    """A configuration with one step in a directory that others can enter, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        step = root / "parent/ck/global_step_1"
        step.mkdir(parents=True)
        (step / "data.pt").write_bytes(b"x")
        (root / "state").mkdir()
        file = root / "c.toml"
        file.write_text('[run]\noutput_dir = "parent/ck"\nstate_dir = "state"\n')
        yield load(str(file), {})


def test_the_probe_leaves_only_staging_and_state(run_config):
    root = Path(run_config.file).parent
    assert probe(run_config) == ()
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {"c.toml", "parent/ck/global_step_1/data.pt"}


@pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")
def test_the_probe_as_a_user_finds_what_it_may_not_do(run_config):
    root = Path(run_config.file).parent
    for path in (root / "parent", root / "parent/ck", root / "parent/ck/global_step_1", root / "state"):
        os.chown(path, 12345, 12345)
    foreign = root / "parent/ck/global_step_1/data.pt"
    protected = Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1"
    assert [line for line in _as_user(run_config) if "data.pt cannot be hard-linked" not in line] == []
    assert len(_as_user(run_config)) == protected
    foreign.chmod(0o600)
    assert re.search(r"cannot read a checkpoint: .*data\.pt: Permission denied", "".join(_as_user(run_config)))
    os.chown(foreign, 12345, 12345)
    assert _as_user(run_config) == []
    os.chown(root / "state", 0, 0)
    assert re.search(r"cannot write to a directory: .*state: not writable", "".join(_as_user(run_config)))


def _as_user(config):
    """The lines of the probe in a child that is user 12345."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)
            try:
                text = "\n".join(probe(config))
            except ConfigError as error:
                text = str(error)
            os.write(writer, text.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read().decode()
    os.waitpid(child, 0)
    return text.splitlines()
