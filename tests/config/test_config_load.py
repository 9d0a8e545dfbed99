from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from ckptsync.config import Config, find, load, parse
from ckptsync.errors import ConfigError, UsageError
from ckptsync.model.step import Level
from ckptsync.units import FreeSpace

RUN = '[run]\noutput_dir = "/data/ck"\n'


def test_every_default_is_resolved(read):
    config = read(RUN)
    assert config.run.name == "ck"
    assert config.run.output_dir == config.run.trainer_dir == "/data/ck"
    assert config.run.layout == "auto"
    assert config.node.name == os.uname().nodename
    assert config.upload.store == f"file://{config.state_dir}/store"
    assert (config.upload.every_steps, config.upload.every) == (1, None)
    assert (config.watch.settle, config.watch.scan_interval) == (10.0, 5.0)
    assert config.commit.window == 3600.0
    assert config.verify.level is Level.FULL
    assert config.pull.drop == ("rollout/engine_state.json",)
    assert config.daemon.stop_timeout == 60.0
    assert config.retention.local.delete is False
    assert config.promote.link == "auto"


def test_values_are_seconds_bytes_and_bytes_per_second(read):
    config = read(
        RUN
        + """
        [watch]
        settle = "1m30s"
        [verify]
        level = "deep"
        deep_memory = "8GiB"
        [upload]
        store = "s3://bucket/prefix/"
        every = "30m"
        bandwidth = "500MB/s"
        [retention.local]
        keep_within = "2d"
        min_free = "10%"
        [retention.remote]
        keep_best = { metric = "val/reward", count = 2 }
        [pull]
        drop = []
        scope = "0,8-15"
        [preflight]
        ports = [29500]
        [peer]
        listen = "[::]:7070"
        secret_file = "peer.secret"
        """
    )
    assert config.watch.settle == 90.0
    assert (config.verify.level, config.verify.deep_memory) == (Level.DEEP, 8 * 1024**3)
    assert config.upload.store == "s3://bucket/prefix"
    assert (config.upload.every, config.upload.every_steps) == (1800.0, None)
    assert config.upload.bandwidth == 500_000_000
    assert config.retention.local.keep_within == 172800.0
    assert config.retention.local.min_free == FreeSpace(fraction=0.1)
    assert config.pull.drop == ()
    assert config.preflight.ports == (29500,)
    assert config.peer.secret_file == str(Path(config.file).parent / "peer.secret")


def test_the_configuration_cannot_be_changed(read):
    with pytest.raises(ValueError, match="frozen"):
        read(RUN).upload.workers = 9


def test_paths_are_relative_to_the_file_and_tilde_is_the_home(read, tmp_path):
    config = read('[run]\noutput_dir = "../x/./ck/"\nstate_dir = "~/state"\n[upload]\nca_file = "ca.pem"\n')
    assert config.run.output_dir == str(tmp_path.parent / "x" / "ck")
    assert config.state_dir == "/home/t/state"
    assert config.upload.ca_file == str(tmp_path / "ca.pem")


def test_output_dir_of_the_command_line_wins_and_is_relative_to_the_working_directory(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read(RUN, output_dir="mine")
    assert config.run.output_dir == str(tmp_path / "mine")
    assert config.run.name == "mine"


def test_without_a_file_an_output_dir_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(None, {}, output_dir="ck")
    assert config.file is None
    assert config.upload.store == f"file://{config.state_dir}/store"
    with pytest.raises(UsageError, match=r"no configuration found.*ckptsync init"):
        load(None, {})


def test_the_file_is_looked_for_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("a.toml", {"CKPTSYNC_CONFIG": "b.toml"}) == str(tmp_path / "a.toml")
    assert find(None, {"CKPTSYNC_CONFIG": "b.toml"}) == str(tmp_path / "b.toml")
    assert find(None, {"CKPTSYNC_CONFIG": ""}) != ""
    (tmp_path / "ckptsync.toml").touch()
    assert find(None, {}) == str(tmp_path / "ckptsync.toml")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/ckptsync"}, "/var/lib/ckptsync/ck"),
        ({"STATE_DIRECTORY": "/var/lib/ckptsync:/var/lib/other"}, "/var/lib/ckptsync/ck"),
        ({"STATE_DIRECTORY": "/var/lib/ckptsync/ck"}, "/var/lib/ckptsync/ck"),
    ],
)
def test_systemd_says_where_the_state_is(read, env, expected):
    assert read(RUN, env).state_dir == expected


@pytest.mark.parametrize(
    ("uid", "env", "expected"),
    [
        (0, {"XDG_STATE_HOME": "/x"}, "/var/lib/ckptsync/ck"),
        (1000, {"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/ckptsync/ck"),
        (1000, {"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/ckptsync/ck"),
        (1000, {"HOME": "/h"}, "/h/.local/state/ckptsync/ck"),
    ],
)
def test_the_state_of_root_and_of_others(read, monkeypatch, uid, env, expected):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert read(RUN, env).state_dir == expected


def test_a_shell_sees_the_state_that_the_unit_made_for_this_user(read, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda path, _: str(path) == "/var/lib/ckptsync/ck")
    assert read(RUN).state_dir == "/var/lib/ckptsync/ck"


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"SLURMD_NODENAME": "gpu-7", "NODE_NAME": "k8s"}, "gpu-7"),
        ({"NODE_NAME": "k8s"}, "k8s"),
    ],
)
def test_the_node_is_named_by_the_scheduler(read, env, name):
    assert read(RUN, env).node.name == name
    assert read(RUN + '[node]\nname = "mine"\n', env).node.name == "mine"


def test_a_missing_or_unreadable_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration: .*none\.toml: No such file.*ckptsync init"):
        load(str(tmp_path / "none.toml"), {})
    with pytest.raises(ConfigError, match=r"cannot read the configuration: .*: Is a directory"):
        load(str(tmp_path), {})


@pytest.mark.parametrize("content", [b"[run\n", b"a = \xff\n", b"x = " + b"[" * 100_000, b"x = 1\nx = 2\n"])
def test_what_is_not_toml_is_one_line_with_the_file(tmp_path, content):
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not valid TOML: .*bad.toml: .+") as caught:
        load(str(file), {})
    assert "\n" not in str(caught.value)


def test_a_syntax_error_names_the_line(refused):
    assert "line 3" in refused(RUN + "layout = \n")


def test_a_huge_file_is_not_read(tmp_path):
    file = tmp_path / "big.toml"
    file.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(str(file), {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[upload]\nevry_steps = 3\n", r"\[upload\] evry_steps is not a known key \(did you mean every_steps\?\)"),
        ("[uplod]\nstore = 's3://b'\n", r"uplod is not a known table \(did you mean \[upload\]\?\)"),
        ("[watch]\nkeep_last = 3\n", r"\[watch\] keep_last .*\(it belongs in \[retention.local\]\)"),
        ("[watch]\nzzzz = 3\n", r"\[watch\] zzzz .*\(known: settle, scan_interval\)"),
        ("[retention.local]\nkeep_lst = 3\n", r"\[retention.local\] keep_lst .*did you mean keep_last\?"),
        ("watch = 3\n", r"\[watch\] is not a table"),
        ("[watch]\nsettle = 10\n", r"\[watch\] settle '10' has no unit: write it like \"30s\""),
        ("[watch]\nsettle = '1s'\n", r"\[watch\] settle must be at least 2s"),
        ("[upload]\nbandwidth = '5MB'\n", r"\[upload\] bandwidth '5MB' is not a rate"),
        ("[upload]\nworkers = '4'\n", r"\[upload\] workers must be a valid integer, not '4'"),
        ("[upload]\nworkers = true\n", r"\[upload\] workers must be a valid integer, not True"),
        ("[upload]\nevery_steps = 0\n", r"\[upload\] every_steps must be greater than or equal to 1, not 0"),
        ("[upload]\nevery_steps = 1\nevery = '1h'\n", r"\[upload\] every_steps and every exclude each other"),
        ("[upload]\ncompression = 'gzip'\n", r"\[upload\] compression must be 'auto', 'zstd' or 'none', not 'gzip'"),
        ("[upload]\nstore = '/data/store'\n", r"\[upload\] store is not a URL: .*file:///directory"),
        ("[upload]\nstore = 'file://data/store'\n", r"\[upload\] store needs an absolute path"),
        (
            "[upload]\nendpoint = 'localhost:9000'\n",
            r"\[upload\] endpoint is not an endpoint: write \"https://host:port\"",
        ),
        ("[verify]\nlevel = 'ful'\n", r"\[verify\] level must be 'structure', 'full' or 'deep', not 'ful'"),
        ("[promote]\nlink = 'latest'\n", r"\[promote\] link 'latest' is not an absolute path"),
        ("[node]\nname = 'a/b'\n", r"\[node\] name 'a/b' is not a name: up to 128 letters"),
        ("[pull]\nscope = 'mine'\n", r"\[pull\] scope 'mine' is no scope"),
        ("[pull]\nscope = '5-3'\n", r"\[pull\] scope the ranks 5-3 run backwards"),
        ("[pull]\ndrop = 'x'\n", r"\[pull\] drop must be a valid tuple, not 'x'"),
        ("[preflight]\nports = [0]\n", r"\[preflight\] ports must be greater than or equal to 1, not 0"),
        ("[peer]\nlisten = ':99999'\n", r"\[peer\] listen ':99999' is no address"),
        ("[peer]\nlisten = '0.0.0.0:70'\n", r"\[peer\] listen needs secret_file"),
        ("[retention.remote]\nkeep_best = { count = 2 }\n", r"\[retention.remote.keep_best\] metric is missing"),
        ("[pull]\nselect = 'oldest'\n", r"\[pull\] select 'oldest' selects nothing"),
        ("[retention.local]\nmin_free = '100%'\n", r"\[retention.local\] min_free '100%' leaves no room"),
    ],
)
def test_a_wrong_value_is_named_with_its_table_and_the_remedy(refused, text, expected):
    line = refused(text + RUN)
    assert re.search(expected, line), line
    assert re.match(r"the configuration is refused: /.*run\.toml: ", line)


def test_a_missing_output_dir_says_what_to_do(refused):
    assert "[run] output_dir is missing (set it to the directory that holds the step directories" in refused("")


def test_a_run_whose_directory_makes_no_name_must_be_named(refused, read):
    assert "[run] name 'my run' is not a name" in refused('[run]\noutput_dir = "/data/my run"\n')
    assert read('[run]\noutput_dir = "/data/my run"\nname = "r1"\n').run.name == "r1"
    assert "[run] name '..'" in refused(RUN + 'name = ".."\n')


def test_all_problems_are_counted_in_one_line(refused):
    line = refused(RUN + "[watch]\nsettle = 1\n[upload]\nworkers = 0\n[pull]\nnodes = 0\n")
    assert "[watch] settle '1' has no unit" in line
    assert "(and 2 more: [upload] workers, [pull] nodes)" in line


def test_a_misspelt_key_is_told_before_the_one_that_is_missing_for_it(refused):
    assert "[run] output_dri is not a known key (and 1 more: [run] output_dir) (did you mean output_dir?)" in refused(
        "[run]\noutput_dri = '/x'\n"
    )


@pytest.mark.parametrize("key", ["secret_access_key", "access_key", "token", "password", "credentials", "api_key"])
def test_secrets_are_refused_first_and_never_repeated(refused, key):
    line = refused(RUN + f"[watch]\nsettle = 1\n[upload]\n{key} = 'hunter2'\n")
    assert f"[upload] {key} is refused: secrets do not belong in the configuration" in line
    assert line.endswith("(use the environment, a profile or an instance role)")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("key", "value"),
    [("store", "sftp://me:hunter2@host/x"), ("endpoint", "https://me:hunter2@host"), ("store", "az://c/p?sig=hunter2")],
)
def test_secrets_inside_a_url_are_refused_and_never_repeated(refused, key, value):
    line = refused(RUN + f"[upload]\n{key} = '{value}'\n")
    assert "credentials" in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("text", "env", "expected"),
    [
        ("", {}, None),
        ("[upload]\nbandwidth = '5MB/s'\n", {}, 5e6),
        ("[node]\ncount = 4\n[upload]\nbandwidth_total = '8MB/s'\n", {}, 2e6),
        ("[node]\ncount = 4\n[upload]\nbandwidth_total = '8MB/s'\n", {"SLURM_NNODES": "2"}, 2e6),
        ("[upload]\nbandwidth_total = '8MB/s'\n", {"SLURM_NNODES": "2"}, 4e6),
        ("[node]\ncount = 4\n[upload]\nbandwidth_total = '8MB/s'\nbandwidth = '1MB/s'\n", {}, 1e6),
        ("[node]\ncount = 4\n[upload]\nbandwidth_total = '8MB/s'\nbandwidth = '9MB/s'\n", {}, 2e6),
    ],
)
def test_a_nodes_bandwidth_is_its_own_limit_or_its_share_of_the_total(tmp_path, text, env, expected):
    assert parse((RUN + text).encode(), str(tmp_path / "c.toml"), env).bandwidth == expected


@pytest.mark.parametrize("slurm", [None, "", "0", "many"])
def test_a_share_of_nobody_knows_how_many_is_refused(tmp_path, slurm):
    env = {} if slurm is None else {"SLURM_NNODES": slurm}
    with pytest.raises(ConfigError, match=r"bandwidth_total needs the number of nodes: set \[node\] count"):
        parse((RUN + "[upload]\nbandwidth_total = '1MB/s'\n").encode(), str(tmp_path / "c.toml"), env)


def test_describe_is_plain_json_and_complete(read):
    described = json.loads(json.dumps(read(RUN + '[retention.local]\nmin_free = "10%"\n').describe()))
    assert described["upload"]["every_steps"] == 1
    assert described["retention"]["local"]["min_free"] == {"fraction": 0.1, "size": 0}
    assert described.keys() == {"file", *Config.model_fields}
