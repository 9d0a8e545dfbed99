"""The example has every key, each line of it is valid; and directories that cannot be used are told with the remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from config_keys import tables

from ckptsync.config import Config, load
from ckptsync.config_paths import check_paths
from ckptsync.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"


def test_the_example_loads(tmp_path):
    config = load(str(EXAMPLE), {})
    assert config.upload.every_steps == 100
    assert config.run.name == "qwen3-grpo"


def _example_lines():
    table = ""
    for line in EXAMPLE.read_text().splitlines():
        if header := re.fullmatch(r"\[([a-z.]+)\]", line):
            table = header[1]
        elif setting := re.fullmatch(r"#?([a-z_]+) = (.+)", line):
            yield table, setting[1], setting[0].lstrip("#")


def test_the_example_shows_every_key_once():
    assert sorted((table, key) for table, key, _ in _example_lines()) == sorted(tables(Config))


@pytest.mark.parametrize(("table", "key", "line"), list(_example_lines()), ids=lambda value: value.partition(" = ")[0])
def test_each_line_of_the_example_is_valid_once_uncommented(read, table, key, line):
    companions = {
        "listen": '\nsecret_file = "/s"',
        "daemons": '\nsecret_file = "/s"',
        "bandwidth_total": "\n[node]\ncount = 4",
    }
    run = "" if key == "output_dir" else 'output_dir = "/d"\n'
    text = f"[{table}]\n{line}{companions.get(key, '')}\n"
    value = read(text + run if table == "run" else f"{text}[run]\n{run}").describe()
    for part in [*table.split("."), key]:
        value = value[part]
    assert value is not None


CHECK = """
import os
from ckptsync.config import load
from ckptsync.config_paths import check_paths
from ckptsync.errors import ConfigError
if os.geteuid() == 0:  # only now: the interpreter may lie where others cannot read it
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    check_paths(load(None, {{"STATE_DIRECTORY": {state!r}}}, output_dir={output!r}))
except ConfigError as error:
    print(error)
else:
    print("fine")
"""


def _check(output, state):
    """What check_paths says to a user without privileges."""
    code = CHECK.format(output=str(output), state=str(state))
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def test_directories_are_fine_or_named_with_the_remedy(public_dir):
    parent, state = public_dir / "parent", public_dir / "state"
    for directory in (parent, parent / "ck", state):
        directory.mkdir()
        if os.geteuid() == 0:
            os.chown(directory, 65534, 65534)
    assert _check(parent / "ck", state) == "fine"
    parent.chmod(0o555)
    assert re.search(
        r"cannot write to the parent of output_dir: .*parent: .*ReadWritePaths", _check(parent / "ck", state)
    )
    parent.chmod(0o755)
    (parent / "ck").chmod(0o555)
    assert re.search(
        r"cannot write to output_dir: .*parent/ck: not writable for .*make it", _check(parent / "ck", state)
    )
    (parent / "ck").chmod(0o755)
    state.chmod(0o555)
    assert re.search(r"cannot create state_dir: .*state/ck: .*state is not writable", _check(parent / "ck", state))
    (state / "ck").mkdir()
    assert re.search(r"cannot write to state_dir: .*state/ck: not writable", _check(parent / "ck", state))
    (parent / "file").touch()
    assert "not a directory" in _check(parent / "file", state)
    assert re.search(r"cannot use output_dir: .*none: No such file.*create it", _check(parent / "none", state))
    (parent / "ck").chmod(0o300)
    assert "not readable for this user" in _check(parent / "ck", state)
    assert re.search(
        r"cannot use output_dir: /etc: it belongs to root, this is .*run ckptsync as root", _check("/etc", state)
    )


def test_what_lies_on_a_read_only_file_system_is_said_to_also_to_root(read_only, tmp_path, read):
    (tmp_path / "ck").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write to output_dir: .*/ck: on a read-only .*\(mount it read-write"):
        check_paths(read(f'[run]\noutput_dir = "{read_only}/ck"\nstate_dir = "{tmp_path}/s"\n'))
    with pytest.raises(ConfigError, match=r"cannot create state_dir: .*/s: .* is on a read-only file system"):
        check_paths(read(f'[run]\noutput_dir = "{tmp_path}/ck"\nstate_dir = "{read_only}/s"\n'))


def test_a_missing_ca_file_is_named(tmp_path, read):
    (tmp_path / "ck").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read ca_file: .*ca\.pem"):
        check_paths(read(f'[run]\noutput_dir = "ck"\nstate_dir = "{tmp_path}/s"\n[upload]\nca_file = "ca.pem"\n'))
