"""A Debian 12 machine for the test of the service: a tree made by debootstrap, booted by systemd-nspawn.

The tree comes from the mirror that this machine's apt uses, and is kept below $XDG_CACHE_HOME/ckptsync-tests; the
wheel with its dependencies comes from where this machine's pip gets them. Each run works on a copy.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SUITE = "bookworm"
PYTHON = "3.11"  # of this suite
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOLS = ("debootstrap", "systemd-nspawn", "nsenter", "apt-get", "apt-config")
VENV = "/opt/ckptsync"
CLEAN_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def run(command, **options):
    """Run a command, and show what it said if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def wait_for(condition, what, seconds=90.0):
    """Poll until `condition()` is true and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.2)
    pytest.fail(f"timed out waiting for {what}")


@pytest.fixture(name="wait_for", scope="session")
def wait_for_fixture():
    return wait_for


def mirror():
    """The Debian mirror that this machine's apt is configured for."""
    form = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    for line in run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).splitlines():
        origin, label, uri = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return uri
    return pytest.skip("this machine's apt knows no Debian mirror (run apt-get update first)")


def apt_network():
    """The proxy and certificates of apt's configuration, as debootstrap takes them: (environment, arguments)."""
    keys = {"HTTP": "Acquire::http::Proxy", "HTTPS": "Acquire::https::Proxy", "CA": "Acquire::https::CAInfo"}
    shown = run(["apt-config", "shell", *(word for pair in keys.items() for word in pair)])
    found = dict(line.split("=", 1) for line in shlex.split(shown))
    env = {f"{key.lower()}_proxy": found[key] for key in ("HTTP", "HTTPS") if key in found}
    return {**os.environ, **env}, ([f"--ca-certificate={found['CA']}"] if "CA" in found else [])


@pytest.fixture(scope="session")
def base_tree():
    """A bare Debian tree, built once and kept."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root, debootstrap and systemd-container (missing: {', '.join(missing) or 'root'})")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ckptsync-tests"
    key = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]
    tree = cache / f"debian-{SUITE}-{key}"
    if not tree.exists():
        half_made = cache / f"{tree.name}.new"
        shutil.rmtree(half_made, ignore_errors=True)
        half_made.mkdir(parents=True)
        env, certificates = apt_network()
        keyring = [f"--keyring={KEYRING}"] if KEYRING.exists() else []
        options = ["--variant=minbase", f"--include={','.join(PACKAGES)}", *keyring, *certificates]
        run(["debootstrap", *options, SUITE, str(half_made), mirror()], env=env)
        half_made.rename(tree)
    return tree


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """The project's wheel and all it depends on, for the tree's Python."""
    directory = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(directory), str(PROJECT)])
    (wheel,) = directory.glob("ckptsync-*.whl")
    options = ["--only-binary=:all:", "--python-version", PYTHON, "--dest", str(directory)]
    run([*pip, "download", *options, str(wheel)])
    return directory


@pytest.fixture(scope="session")
def tree(base_tree, wheels, tmp_path_factory):
    """A tree of this run's own, with the wheel in /opt/ckptsync and the account `trainer`."""
    tree = tmp_path_factory.mktemp("machine") / "tree"
    run(["cp", "-a", "--reflink=auto", str(base_tree), str(tree)])
    shutil.copytree(wheels, tree / "wheels")
    chroot = ["chroot", str(tree)]
    run([*chroot, "python3", "-m", "venv", VENV], env=CLEAN_ENV)
    pip = [f"{VENV}/bin/pip", "--quiet", "--disable-pip-version-check", "install"]
    run([*chroot, *pip, "--no-index", "--find-links", "/wheels", "ckptsync"], env=CLEAN_ENV)
    run([*chroot, "useradd", "--create-home", "trainer"], env=CLEAN_ENV)
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (tree / "etc/ckptsync").mkdir()
    yield tree
    shutil.rmtree(tree)


class Machine:
    """The booted tree.

    Attributes:
        root: its root directory, seen from here.
    """

    def __init__(self, root, init):
        self.root, self._init = root, init

    def run(self, *command, user=None, check=True):
        """Run a command inside; returns stdout, or the finished process if `check` is off."""
        become = ["runuser", "-u", user, "--"] if user else []
        inside = ["nsenter", "--target", str(self._init), "--all", *become, *map(str, command)]
        if check:
            return run(inside, env=CLEAN_ENV)
        return subprocess.run(inside, env=CLEAN_ENV, capture_output=True, text=True, check=False)

    def show(self, unit, *properties):
        """Properties of a unit as text, by name."""
        shown = self.run("systemctl", "show", unit, *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in shown.splitlines())

    def journal(self, unit):
        """What a unit has logged."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)


@pytest.fixture(scope="session")
def machine(tree, tmp_path_factory):
    """Boot the tree; it shares this machine's network."""
    console = tmp_path_factory.mktemp("console") / "log"
    options = ["--boot", "--register=no", "--keep-unit", "--console=pipe", f"--directory={tree}"]
    with console.open("wb") as log:
        container = subprocess.Popen(["systemd-nspawn", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
        init = wait_for(lambda: container.poll() is None and children.read_text().split(), "the container's init")[0]
        machine = Machine(tree, int(init))
        states = ("running", "degraded")
        wait_for(
            lambda: machine.run("systemctl", "is-system-running", check=False).stdout.strip() in states, "the boot"
        )
        yield machine
        machine.run("systemctl", "poweroff", check=False)
        container.wait(timeout=60)
    finally:
        if container.poll() is None:
            container.kill()
            container.wait()
        print(console.read_text(errors="replace")[-4000:])  # noqa: T201 - pytest shows it when a test fails
