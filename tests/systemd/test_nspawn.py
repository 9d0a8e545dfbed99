"""The life of the installed service on a booted Debian machine, in order: each test goes on from the one before."""

from __future__ import annotations

import json
import time

import pytest

from ckptsync.testing.seaweed import SeaweedFS

pytestmark = pytest.mark.systemd

CKPTSYNC = "/opt/ckptsync/bin/ckptsync"
PYTHON = "/opt/ckptsync/bin/python"
CONFIG = "/etc/ckptsync/config.toml"
UNIT = "ckptsync.service"
OUTPUT = "/data/verl/checkpoints"
EXTENSIONS = ("numpy", "blake3", "zstandard", "obstore", "pydantic_core")
SAVE = "import sys; from pathlib import Path; from ckptsync.testing.checkpoints import verl_step; "
SAVE += "verl_step(Path(sys.argv[1]), int(sys.argv[2]), world=2, n=1 << 20)"


@pytest.fixture(scope="module")
def store():
    with SeaweedFS() as server:
        yield server


def configure(machine, store, **daemon):
    """Write the configuration; `daemon` are lines of [watch]."""
    watch = "\n".join(f'{key} = "{value}"' for key, value in {"settle": "2s", "scan_interval": "1s", **daemon}.items())
    (machine.root / CONFIG.lstrip("/")).write_text(
        f'[run]\noutput_dir = "{OUTPUT}"\nname = "r1"\n[watch]\n{watch}\n'
        f'[upload]\nstore = "{store.url("p")}"\nendpoint = "{store.endpoint}"\nregion = "us-east-1"\n'
        '[daemon]\nstop_timeout = "5s"\n'
    )


@pytest.fixture(scope="module")
def installed(machine, store):
    """The machine with the service installed by `service install`."""
    machine.run("install", "-d", "-o", "trainer", "-g", "trainer", "/data/verl", OUTPUT)
    configure(machine, store)
    secrets = machine.root / "etc/ckptsync/ckptsync.env"
    secrets.write_text("".join(f"{key}={value}\n" for key, value in store.environ.items()))
    secrets.chmod(0o600)
    machine.run(CKPTSYNC, "service", "install", "--user", "trainer", "--config", CONFIG)
    return machine


def main_pid(machine):
    return machine.show(UNIT, "MainPID")["MainPID"]


def save(machine, step):
    machine.run(PYTHON, "-c", SAVE, OUTPUT, step, user="trainer")


def wait_until(machine, step, until):
    arguments = ("--step", step, "--until", until, "--timeout", "2m", "--config", CONFIG)
    machine.run("env", *_credentials(machine), CKPTSYNC, "wait", *arguments, user="trainer")


def _credentials(machine):
    return (machine.root / "etc/ckptsync/ckptsync.env").read_text().split()


def test_the_service_is_ready_and_runs_as_the_trainer(installed):
    shown = installed.show(UNIT, "ActiveState", "User", "UnitFileState", "NotifyAccess", "StateDirectory")
    assert shown["ActiveState"] == "active"
    assert shown["User"] == "trainer"
    assert shown["UnitFileState"] == "enabled"
    assert shown["StateDirectory"] == "ckptsync/r1"
    assert installed.run("stat", "-c", "%a", "/var/lib/ckptsync/r1").strip() == "700"


def test_a_step_is_promoted_and_pushed_under_the_full_hardening(installed):
    save(installed, 20)
    wait_until(installed, 20, "committed")
    latest = installed.root / OUTPUT.lstrip("/") / "latest"
    assert latest.readlink().name == "global_step_20"


def test_every_hardening_line_is_in_force_while_the_extensions_work(installed):
    pid = main_pid(installed)
    status = dict(line.split(":\t", 1) for line in installed.run("cat", f"/proc/{pid}/status").splitlines())
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0
    maps = installed.run("cat", f"/proc/{pid}/maps")
    for extension in EXTENSIONS:
        assert f"/{extension}" in maps
    assert not [line for line in maps.splitlines() if "wx" in line.split()[1]]
    unit = (installed.root / "etc/systemd/system" / UNIT).read_text()
    properties = [line.partition("=")[::2] for line in unit.splitlines() if line.endswith("=yes")]
    assert len(properties) > 15
    assert installed.show(UNIT, *dict(properties)) == dict(properties)


def test_the_service_can_write_only_where_it_must(installed):
    pid = main_pid(installed)
    inside = ("nsenter", "--target", pid, "--mount")
    for directory, writable in (("/data/verl", True), ("/var/lib/ckptsync/r1", True), ("/etc", False), ("/srv", False)):
        done = installed.run(*inside, "test", "-w", directory, check=False)
        assert (done.returncode == 0) is writable, directory
    assert installed.run(*inside, "test", "-e", "/home/trainer", check=False).returncode != 0


def test_the_trainer_and_its_group_reach_the_control_socket_and_nobody_else(installed, wait_for):
    """Told without a variable, by the path that the unit gives it; the directory stays when the daemon goes."""
    socket, directory = "/run/ckptsync/r1/control.sock", "/run/ckptsync/r1"
    assert installed.run("stat", "-c", "%a %U %G", socket, directory).split() == [
        *("660", "trainer", "trainer"),
        *("750", "trainer", "trainer"),
    ]
    installed.run("useradd", "--groups", "trainer", "colleague")
    installed.run("useradd", "stranger")
    tell = f"from ckptsync.integrations.verl import tell; tell(20, '{OUTPUT}/global_step_20')"
    for user in ("stranger", "colleague", "trainer"):
        before = installed.journal(UNIT).count("says the trainer")
        installed.run(PYTHON, "-c", tell, user=user)
        if user == "colleague":
            wait_for(lambda: "global_step_20 is complete, says the trainer" in installed.journal(UNIT), "the hint")
        elif user == "stranger":
            time.sleep(2)
            assert installed.journal(UNIT).count("says the trainer") == before
    installed.run("test", "-w", socket, user="trainer")
    installed.run("systemctl", "restart", UNIT)
    assert installed.run("stat", "-c", "%a", socket, directory).split() == ["660", "750"]


def test_reload_takes_a_new_configuration_and_keeps_the_process(installed, store, wait_for):
    pid = main_pid(installed)
    configure(installed, store, scan_interval="500ms")
    installed.run("systemctl", "reload", UNIT)
    wait_for(lambda: "configuration read again" in installed.journal(UNIT), "the reload")
    save(installed, 40)
    wait_until(installed, 40, "committed")
    assert main_pid(installed) == pid


def test_a_wrong_configuration_is_refused_and_the_old_one_stays(installed, store, wait_for):
    pid = main_pid(installed)
    (installed.root / CONFIG.lstrip("/")).write_text("[run]\noutput_dri = 1\n")
    installed.run("systemctl", "reload", UNIT)
    wait_for(lambda: "did you mean output_dir?" in installed.journal(UNIT), "the refusal")
    configure(installed, store)
    save(installed, 60)
    wait_until(installed, 60, "committed")
    assert main_pid(installed) == pid


def test_a_hung_daemon_is_killed_by_the_watchdog_and_started_again(installed, wait_for):
    drop_in = installed.root / f"etc/systemd/system/{UNIT}.d/90-test.conf"
    drop_in.write_text("[Service]\nWatchdogSec=12s\nTimeoutAbortSec=1s\nRestartSec=1s\n")
    installed.run("systemctl", "daemon-reload")
    installed.run("systemctl", "restart", UNIT)
    pid = main_pid(installed)
    time.sleep(15)  # longer than the watchdog's patience: a live daemon pings
    assert main_pid(installed) == pid
    installed.run("systemctl", "kill", "--signal=STOP", UNIT)
    wait_for(lambda: main_pid(installed) not in ("0", pid), "the restart")
    wait_for(lambda: installed.show(UNIT, "ActiveState")["ActiveState"] == "active", "READY=1")
    assert int(installed.show(UNIT, "NRestarts")["NRestarts"]) >= 1
    assert "Watchdog timeout" in installed.run("journalctl", "--no-pager", "--unit", UNIT)
    save(installed, 80)
    wait_until(installed, 80, "committed")


def test_status_in_a_shell_sees_the_state_of_the_service(installed):
    arguments = ("env", *_credentials(installed), CKPTSYNC, "status", "--json", "--config", CONFIG)
    report = json.loads(installed.run(*arguments, user="trainer"))
    assert report["daemon"]["running"] is True
    assert report["remote"]["committed"] == 80


def test_stop_is_clean_and_in_time(installed):
    installed.run("systemctl", "stop", UNIT)
    shown = installed.show(UNIT, "ActiveState", "Result", "ExecMainStatus")
    assert shown == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}


def test_install_refuses_a_user_that_does_not_own_the_checkpoints(installed):
    done = installed.run(CKPTSYNC, "service", "install", "--user", "nobody", "--config", CONFIG, check=False)
    assert done.returncode == 3
    assert "it belongs to trainer (--user trainer)" in done.stderr


def test_a_wrong_configuration_is_not_tried_again_and_again(installed, store):
    (installed.root / CONFIG.lstrip("/")).write_text("[run]\noutput_dri = 1\n")
    assert installed.run("systemctl", "start", UNIT, check=False).returncode != 0
    shown = installed.show(UNIT, "ActiveState", "ExecMainStatus")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "3"}
    configure(installed, store)
    installed.run("systemctl", "restart", UNIT)
    assert installed.show(UNIT, "ActiveState")["ActiveState"] == "active"


def test_uninstall_removes_all_but_data(installed):
    installed.run("rm", f"/etc/systemd/system/{UNIT}.d/90-test.conf")
    installed.run(CKPTSYNC, "service", "uninstall")
    assert installed.show(UNIT, "LoadState", "ActiveState") == {"LoadState": "not-found", "ActiveState": "inactive"}
    assert not (installed.root / f"etc/systemd/system/{UNIT}").exists()
    assert not (installed.root / f"etc/systemd/system/{UNIT}.d").exists()
    assert (installed.root / "var/lib/ckptsync/r1").is_dir()
    assert (installed.root / OUTPUT.lstrip("/") / "global_step_80/data.pt").is_file()
    assert (installed.root / CONFIG.lstrip("/")).is_file()
