"""Nodes of one run in one process: each with its own directories, against any store."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from ckptsync.actions.pull import pull_step
from ckptsync.actions.push import push_step, settle_local
from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.store.objects import open_objects
from ckptsync.sync.push import push
from ckptsync.sync.remote import Remote

CONFIG = """
[run]
name = "run"
output_dir = "{home}/out"
state_dir = "{home}/state"
[node]
name = "{name}"
[upload]
store = "{store}"
driver = "{driver}"
"""


class Bench:
    """Makes nodes, and looks at what the store holds of their run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"memory://{uuid.uuid4().hex}"

    @property
    def store(self):
        return open_objects(self.url)

    def home(self, name: str) -> Path:
        home = self.root / name
        (home / "out").mkdir(parents=True, exist_ok=True)
        return home

    def out(self, name: str) -> Path:
        return self.home(name) / "out"

    def node(self, name, *, store=None, url="", driver="obstore", extra=""):
        """A fresh process, as it were: opened again, it knows what is on its disk. `store` = an object to use."""
        home = self.home(name)
        text = CONFIG.format(home=home, name=name, store=url or self.url, driver=driver) + extra
        node = open_node(parse(text.encode(), str(home / "c.toml"), {}))
        if store is not None:
            remote = Remote(store, "run")
            known = home / "state" / "run_id"
            known.write_text(remote.open_run(known.read_text() if known.exists() else "")[0])
            node._remote = remote
        if node.recognise() is not None:
            node.local.setup = replace(node.local.setup, settle_s=0.0)
        return node

    def save(self, node, step):
        """The verified save of a step."""
        views = {view.step: view for view in settle_local(node.local)}
        assert views[step].save is not None, views[step].problems
        return views[step].save

    def push(self, node, step, *, root=None, workers=2):
        """The push alone, without lock and staging."""
        save = self.save(node, step)
        options = replace(node.push_options, workers=workers)
        return push(
            save, root or f"{node.output_dir}/{save.part.name}", node.remote(), node.saves, node.layout, options
        )

    def push_command(self, node, step=None):
        return push_step(node, step, progress=lambda _: None)

    def pull(self, node, *, step=None, dest=None):
        said = []
        with pull_step(node, step=step, max_step=None, dest=dest, keep_newer=False, say=said.append) as planned:
            return planned.execute(lambda _: None)

    def objects(self, prefix="run", kind=""):
        return sorted(meta.key for meta in self.store.list(prefix) if f"/{kind}/" in f"/{meta.key}" or not kind)


@pytest.fixture(params=["memory", "s3"])
def url(request):
    """A store of one test: in memory, and a real S3 server."""
    fresh = uuid.uuid4().hex
    if request.param == "memory":
        return f"memory://{fresh}"
    request.getfixturevalue("s3_environ")
    return request.getfixturevalue("s3_server").url(fresh)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def picture():
    """What a tree is, bit for bit: path -> (mode, mtime, bytes or target)."""

    def take(root) -> dict:
        found = {}
        for top, dirs, files in os.walk(root):
            for entry in (Path(top, name) for name in (".", *dirs, *files)):
                stat = entry.lstat()
                if entry.is_symlink():
                    found[os.path.relpath(entry, root)] = os.readlink(entry)
                else:
                    data = entry.read_bytes() if entry.is_file() else b""
                    found[os.path.relpath(entry, root)] = (stat.st_mode, stat.st_mtime_ns, data)
        return found

    return take
