"""One run on one or more nodes: real directories, real processes, the real command line."""

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from ckptsync.disk.durable import is_temporary_name

TRACKER = "latest_checkpointed_iteration.txt"


@dataclass
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def line(self):
        """The last line on stderr: the error, if there was one."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


class Warm:
    """See warm.py. `inside` is what its command begins with, to run it on another host."""

    def __init__(self, scratch, *, inside=()):
        command = [*inside, sys.executable, str(Path(__file__).with_name("warm.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._scratch, self._numbers = scratch, count()
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, argv, **options):
        number = next(self._numbers)
        out, err = self._scratch / f"{number}.out", self._scratch / f"{number}.err"
        out.touch()  # a child that is killed at once has not made them
        err.touch()
        pid = self.ask({"argv": [str(a) for a in argv], "out": str(out), "err": str(err), **options})
        return Running(self, pid, out, err)

    def close(self):
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@dataclass
class Running:
    """A started command."""

    warm: Warm
    pid: int
    out: Path
    err: Path
    done: Done | None = None

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self):
        if self.done is None:
            code = self.warm.ask({"wait": self.pid})
            self.done = Done(code, self.out.read_text(), self.err.read_text())
            self.out.unlink()
            self.err.unlink()
        return self.done

    def kill(self):
        self.send(signal.SIGKILL)
        return self.wait()


@dataclass
class NodeOfRun:
    """One node's directories, configuration and commands.

    `ckpt` is output_dir, `staging` the hidden directory beside it, `store` a directory shared by the nodes of a run.
    """

    warm: Warm
    root: Path
    name: str = "n0"
    store: Path | None = None
    settings: str = ""
    nodes: int = 1
    layout: str = "auto"
    environ: dict = field(default_factory=dict)

    def __post_init__(self):
        self.home = self.root / self.name
        self.ckpt = self.home / "ckpt"
        self.staging = self.home / ".ckpt.ckptsync"
        self.state = self.home / "state"
        self.store = self.store or self.root / "store"
        self.latest = self.ckpt / "latest"
        self.tracker = self.ckpt / TRACKER
        self.config = self.home / "ckptsync.toml"
        self.ckpt.mkdir(parents=True)
        self.write_config()

    def write_config(self, store=None):
        self.config.write_text(
            f'[run]\nname = "r"\noutput_dir = "{self.ckpt}"\nstate_dir = "{self.state}"\nlayout = "{self.layout}"\n'
            f'[node]\nname = "{self.name}"\ncount = {self.nodes}\n'
            f'[upload]\nstore = "{store or self.store.as_uri()}"\nevery_steps = 1\n'
            'yield_to_trainer = false\n[daemon]\nstop_timeout = "20s"\n' + self.settings
        )

    def start(self, command, *arguments, **options):
        return self.warm.start([command, "--config", self.config, *arguments], environ=self.environ, **options)

    def run(self, command, *arguments, **options):
        return self.start(command, *arguments, **options).wait()

    def once(self):
        """`run --once`, which must go well; returns what it logged."""
        done = self.run("run", "--once")
        assert done.code == 0, done.err
        return done.err

    def pull(self, *arguments):
        """`pull`, which must go well; returns its JSON."""
        done = self.run("pull", "--json", *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)

    def steps(self):
        """step -> its row of `steps`."""
        done = self.run("steps", "--json")
        assert done.code == 0, done.err
        return {row["step"]: row for row in json.loads(done.out)}

    def named(self):
        """What `latest` says."""
        return os.readlink(self.latest) if self.latest.is_symlink() else None

    def commits(self, step):
        """The names of a step's commits in the store."""
        directory = self.store / "r" / "steps" / f"{step:012d}" / "commits"
        return sorted(filter(_is_object, os.listdir(directory))) if directory.is_dir() else []

    def chunks(self):
        """Every chunk object."""
        found = (self.store / "r" / "chunks").rglob("*")
        return sorted(path for path in found if path.is_file() and _is_object(path.name))

    def leftovers(self):
        """What is half made in staging: nothing, after any command that was not killed."""
        return [
            f"{kind}/{name}"
            for kind in ("tmp", "restore", "held")
            if (self.staging / kind).is_dir()
            for name in os.listdir(self.staging / kind)
        ]


def _is_object(name):
    """What a killed put left beside it is none, for no reader."""
    return not is_temporary_name(name)


def tree(root, *, times=True):
    """Everything below a directory and itself: path -> (kind, mode, mtime, content)."""
    found = {}
    root = Path(root)
    for path in (root, *root.rglob("*")):
        raw = path.lstat()
        if path.is_symlink():
            entry = ("link", 0, 0, os.readlink(path))
        elif path.is_dir():
            entry = ("dir", stat.S_IMODE(raw.st_mode), raw.st_mtime_ns if times else 0, "")
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            entry = ("file", stat.S_IMODE(raw.st_mode), raw.st_mtime_ns if times else 0, content)
        found[os.fsencode(path.relative_to(root))] = entry
    return found


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def warm_class():
    """As `node_class`."""
    return Warm


@pytest.fixture(scope="session")
def node_class():
    """For fixtures that live longer than a test."""
    return NodeOfRun


@pytest.fixture
def make_node(warm, tmp_path):
    """Make a node: make_node("n1", nodes=2, settings="...")."""

    def make(name="n0", *, root=tmp_path, **options):
        return NodeOfRun(warm, root, name, **options)

    return make


@pytest.fixture
def node(make_node):
    """A run of one node."""
    return make_node()


@pytest.fixture
def pair(make_node):
    """Two nodes of a run: each has two of four ranks, the driver runs on the first."""
    first = make_node("n0", nodes=2)
    return first, make_node("n1", nodes=2, store=first.store)


@pytest.fixture(scope="session")
def tree_of():
    """See `tree`."""
    return tree


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a file system of some bytes and returns its directory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = []

    def mount(name, size):
        disk = tmp_path / name
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this environment does not allow mounts")
        mounted.append(disk)
        return disk

    yield mount
    for disk in mounted:
        subprocess.run(["umount", "-l", disk], check=True)
