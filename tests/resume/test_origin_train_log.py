"""A train log is read as verl and Ray write it: long, coloured, interleaved, of several starts."""

from __future__ import annotations

import io
import math
import os
import random
import time
from pprint import pprint

import pytest
import train_logs
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.errors import CkptsyncError, UsageError
from ckptsync.resume.sources import train_log
from ckptsync.resume.sources.names import flatten
from ckptsync.resume.sources.train_log import (
    DATASET_LEN,
    events,
    is_training,
    parse_step_line,
    plain,
    read_lines,
    settings_of,
)

RAY = "(TaskRunnerV1 pid=123, ip=10.0.0.1) "
COLOUR = "\x1b[36m(TaskRunnerV1 pid=123)\x1b[0m "

CONFIG = {
    "actor_rollout_ref": {
        "actor": {"optim": {"lr": 1e-06, "betas": [0.9, 0.999]}, "use_kl_loss": True, "clip": float("inf")},
        "model": {"path": "/models/" + "a very long directory name " * 6, "external_lib": None},
        "rollout": {"n": 8, "name": "vllm", "empty": {}},
    },
    "data": {"train_files": ["/d/it's [odd], {really}.parquet", '/d/"b".parquet'], "train_batch_size": 1024},
    "trainer": {"nnodes": 2, "logger": ["console"], "project_name": "p (1)", "low": float("-inf"), "what": "inf"},
}


def printed(config, prefix=RAY):
    """As `pprint(OmegaConf.to_container(config, resolve=True))` in a Ray worker."""
    out = io.StringIO()
    pprint(config, stream=out)
    return [f"{prefix}{line}\n" for line in out.getvalue().splitlines()]


def expected(config=CONFIG):
    values = flatten(config)
    return {
        name: str(value) if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()
    }


def kinds(lines):
    return [event.kind for event in events(lines)]


# -- lines of steps


@pytest.mark.parametrize("prefix", ["", RAY, COLOUR, "2026-01-02 03:04:05 | "])
def test_a_step_line(prefix):
    line = (
        f"{prefix}step:41 - actor/pg_loss:-0.0123 - actor/lr:1e-06 - critic/score/mean:np.float64(0.5)"
        " - training/epoch:1 - val-core/openai/gsm8k/reward/mean@1:0.61 - a:nan - b:inf - c:True - d:np.int64(3)"
        " - e:1_000 - f:text - g:\r\n"
    )
    step, metrics = parse_step_line(line)
    assert step == 41
    assert math.isnan(metrics.pop("a"))
    assert metrics == {
        "actor/pg_loss": -0.0123,
        "actor/lr": 1e-6,
        "critic/score/mean": 0.5,
        "training/epoch": 1.0,
        "val-core/openai/gsm8k/reward/mean@1": 0.61,
        "b": math.inf,
        "c": 1.0,
        "d": 3.0,
        "e": 1000.0,
    }


def test_a_step_line_behind_a_progress_bar():
    line = f"{RAY}Training Progress:  41%|####      | 41/100 [00:00<?, ?it/s]\rstep:42 - actor/lr:0.5\n"
    assert parse_step_line(line) == (42, {"actor/lr": 0.5})


@pytest.mark.parametrize(
    "line",
    [
        *("", "step:", "step:x - a:1", "global_step:40 - a:1", "mystep:4 - a:1", "a/step:4", "timestep:4 - a:1"),
        "Setting global step to 41",
        "{'step': 41}",
    ],
)
def test_other_lines_are_no_steps(line):
    assert parse_step_line(line) is None


@given(
    st.integers(0, 10**9),
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,6}(/[a-z0-9_@-]{1,6}){0,3}", fullmatch=True),
        st.floats(allow_nan=False) | st.integers(-(10**12), 10**12),
        max_size=8,
    ),
)
def test_what_verl_prints_of_a_step_comes_back(step, metrics):
    line = " - ".join([f"step:{step}", *(f"{name}:{value!r}" for name, value in metrics.items())])
    assert parse_step_line(f"{COLOUR}{line}\n") == (step, {name: float(value) for name, value in metrics.items()})


def test_a_validation_alone_is_no_training():
    assert not is_training({"val-core/gsm8k/reward/mean@1": 0.6, "val-aux/num_turns/mean": 2.0})
    assert not is_training({})
    assert is_training({"val-core/gsm8k/reward/mean@1": 0.6, "actor/pg_loss": 0.1})


def test_prefixes_and_colours():
    assert plain(f"{COLOUR}text \n") == ("TaskRunnerV1 pid=123", "text ")
    assert plain(f"{RAY}{{'a': 1}}\n") == ("TaskRunnerV1 pid=123, ip=10.0.0.1", "{'a': 1}")
    assert plain("(not a prefix) text\n") == ("", "(not a prefix) text")
    assert plain("\x1b[1;31mred\x1b[0m\n") == ("", "red")


# -- other lines


def test_what_a_log_says_of_a_resume():
    first = next(events(train_logs.v1_start(40)))
    assert (first.kind, first.step, first.path) == ("resumed", 40, "/c/global_step_40")
    legacy = [(e.kind, e.step, e.path) for e in events(train_logs.legacy_start(40))]
    assert legacy == [("resumed", 40, ""), ("resumed", None, "/c/global_step_40")]
    layered = [(e.kind, e.step, e.epoch, e.count) for e in events(train_logs.layered_start(40, 2, 12800))]
    assert layered == [("resumed", 40, 2, None), ("optimizer", 40, None, None), ("offset", None, None, 12800)]


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        ("INFO:2026-01-02 03:04:05,678:Training from scratch", "scratch", {}),
        ("[FullyAsyncRollouter] Training from scratch (no checkpoint found)", "scratch", {}),
        ("WARNING:x:Warning: No dataloader state found at /c/data.pt, will start from scratch", "no-dataloader", {}),
        ("[FullyAsyncTrainer] Setting global step to 7, x", "resumed", {"step": 7}),
        ("[FullyAsyncTrainer] Resuming from  /c/global_step_7", "resumed", {"path": "/c/global_step_7"}),
        ("dataset len: 7473", "dataset", {"count": 7473}),
        ("Loaded train dataset: 12800 samples", "dataset", {"count": 12800}),
        ("Loaded train dataset from /d/a.parquet", "dataset", {"count": None}),
        (
            "actor_rollout_ref.model.path: /models/q",
            "setting",
            {"values": {"actor_rollout_ref.model.path": "/models/q"}},
        ),
        ("INFO learning_rate = 1e-06, warmup", "setting", {"values": {"learning_rate": "1e-06"}}),
        ("manual_seed set to 42", "setting", {"values": {"manual_seed": "42"}}),
        ("torch.manual_seed(42)", None, {}),
        ("manual_seed 42", "setting", {"values": {"manual_seed": "42"}}),
        ("filter dataset len: 7000", None, {}),
        ("{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 1.0}", None, {}),
        ("10%|#  | 1/10 {'loss': 0.5, 'learning_rate': 5e-05}", None, {}),
        ("ray init kwargs: {'runtime_env': {'a': 1}}", None, {}),
        ("(WorkerDict pid=1) learning", None, {}),
    ],
)
@pytest.mark.parametrize("prefix", ["", COLOUR])
def test_single_lines(line, kind, fields, prefix):
    found = list(events([f"{prefix}{line}\n"]))
    assert [event.kind for event in found] == ([kind] if kind else [])
    for name, value in fields.items():
        assert getattr(found[0], name) == value


def test_a_command_that_the_shell_showed():
    (found,) = events(["+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo 'data.train_files=[\"/a\"]'\n"])
    assert found.kind == "command"
    assert found.values == {"algorithm.adv_estimator": "grpo", "data.train_files": ["/a"]}
    assert found.explicit == {"algorithm.adv_estimator", "data.train_files"}
    for line in ("+ set -e\n", "+ export A=b\n", "+ echo 'unclosed\n", "++ date --iso\n", "+ python3 --version\n"):
        assert not list(events([line])) or line.endswith("--version\n")


# -- the configuration


@pytest.mark.parametrize("prefix", ["", RAY, COLOUR])
def test_the_configuration_that_verl_prints(prefix):
    (found,) = events(["noise\n", *printed(CONFIG, prefix), "noise\n"])
    assert (found.kind, found.line) == ("config", 2)
    assert found.values == expected()


def test_lines_of_other_workers_in_between_do_no_harm():
    pick = random.Random(7)
    mine, other = printed(CONFIG), printed({"x": {"y": list(range(60))}}, "(Other pid=9) ")
    lines = []
    while mine or other:
        source = pick.choice([lines_of for lines_of in (mine, other) if lines_of])
        lines.append(source.pop(0))
        lines.append("(WorkerDict pid=77) {'not': 'closed\n")
    found = {event.values.get("trainer.nnodes"): event for event in events(lines) if event.kind == "config"}
    assert found[2].values == expected()
    assert found[None].values == {"x.y": list(range(60))}


@pytest.mark.parametrize(
    "lines",
    [
        ["{'a': 1}\n"],
        ["{'a': {'b': __import__('os').system('touch /tmp/x')}}\n"],
        ["{'a': {'b': 1}\n", "step:4 - a:1\n"],
        ["{'a': {'b': " + "[" * 400 + "]" * 400 + "}}\n"],
        ["{'a':\n", "text\n"],
        ["{'a': {1}}\n"],
        ["{'\n"] * 20,
    ],
)
def test_what_is_no_configuration(lines):
    assert "config" not in kinds(lines)


def test_a_line_after_a_broken_one_is_read():
    assert kinds(["{'a': {'b': 1\n", "step:4 - a:1\n"]) == ["step"]


def test_a_configuration_without_end_costs_bounded_memory(monkeypatch):
    monkeypatch.setattr(train_log, "_CONFIG_CHARS_MAX", 1000)
    lines = ["{'a': {'b': 1,\n", *["  'c': 1,\n"] * 1000, "step:4 - a:1\n"]
    assert kinds(lines) == ["step"]


@given(st.lists(st.text(max_size=30), max_size=10))
def test_no_text_breaks_it(lines):
    list(events(lines))


# -- whose settings


def write(tmp_path, *parts):
    path = tmp_path / "train.log"
    path.write_text("".join(line for part in parts for line in part))
    return str(path)


def values(found):
    return {name: known.value for name, known in found.values.items()}


def start(**trainer):
    return printed({**CONFIG, "trainer": {**CONFIG["trainer"], **trainer}})


def test_the_start_that_trained_the_step(tmp_path):
    path = write(
        tmp_path,
        start(nnodes=1),
        [f"{RAY}INFO:x:Training from scratch\n", f"{RAY}dataset len: 7473\n", f"{RAY}dataset len: 1319\n"],
        train_logs.steps(1, 45),
        start(nnodes=2),
        train_logs.v1_start(40),
        train_logs.steps(41, 60),
    )
    early, late = settings_of(path, 40), settings_of(path, 60)
    assert values(early)["trainer.nnodes"] == 1
    assert values(early)[DATASET_LEN] == 7473
    assert early.values["trainer.nnodes"].source == path
    assert early.complete
    assert values(late)["trainer.nnodes"] == 2
    assert not settings_of(path, 61).values


def test_where_two_trained_it_only_what_they_agree_on_is_known(tmp_path):
    path = write(
        tmp_path, start(nnodes=1, seed=3), train_logs.steps(1, 45), start(nnodes=2, seed=3), train_logs.steps(21, 60)
    )
    found = settings_of(path, 40)
    assert "trainer.nnodes" not in found.values
    assert values(found)["trainer.seed"] == 3
    assert not found.complete
    assert values(settings_of(path, 20))["trainer.nnodes"] == 1
    assert values(settings_of(path, 50))["trainer.nnodes"] == 2


def test_a_validation_before_training_trains_nothing(tmp_path):
    """verl logs the step that it resumed from once more, with validation metrics."""
    path = write(tmp_path, start(nnodes=2), train_logs.v1_start(40), train_logs.steps(41, 44))
    assert not settings_of(path, 40).values
    assert settings_of(path, 41).values


def test_a_log_without_steps_is_of_those_after_its_beginning(tmp_path):
    path = write(tmp_path, start(nnodes=2), [f"{RAY}INFO:x:Training from scratch\n"])
    assert values(settings_of(path, 40))["trainer.nnodes"] == 2
    path = write(tmp_path, start(nnodes=2), train_logs.legacy_start(40))
    assert not settings_of(path, 40).values
    assert not settings_of(path, 20).values
    assert values(settings_of(path, 41))["trainer.nnodes"] == 2


def test_the_command_says_what_was_explicit_and_the_configuration_what_it_became(tmp_path):
    command = "+ python3 -m verl.trainer.main_ppo trainer.nnodes=2 'actor_rollout_ref.rollout.n=${N}' +only.here=1\n"
    path = write(tmp_path, [command], start(), train_logs.steps(1, 4), [command.replace("=2", "=3")], start(nnodes=3))
    found = settings_of(path, 4)
    assert found.explicit == {"trainer.nnodes", "actor_rollout_ref.rollout.n", "only.here"}
    assert values(found)["trainer.nnodes"] == 2
    assert values(found)["actor_rollout_ref.rollout.n"] == 8
    assert values(found)["only.here"] == 1


def test_single_lines_count_where_nothing_better_does_and_they_agree(tmp_path):
    lines = ["learning_rate: 1e-6\n", "manual_seed: 1\n", "actor_rollout_ref.model.path: /m\n", "manual_seed: 2\n"]
    path = write(tmp_path, lines, train_logs.steps(1, 4))
    found = settings_of(path, 4)
    assert values(found) == {"learning_rate": "1e-6", "actor_rollout_ref.model.path": "/m"}
    assert not found.complete
    path = write(tmp_path, lines, start(), train_logs.steps(1, 4))
    assert values(settings_of(path, 4))["actor_rollout_ref.model.path"] == CONFIG["actor_rollout_ref"]["model"]["path"]


def test_a_log_that_is_not_there_or_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="no such log"):
        settings_of(str(tmp_path / "none"), 4)
    with pytest.raises(CkptsyncError, match="train log"):
        settings_of(str(tmp_path), 4)


# -- files


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/zero"):
        with pytest.raises(CkptsyncError, match="Invalid argument"):
            settings_of(path, 4)


def test_bytes_that_are_no_text_do_no_harm(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00noise\n" + b"step:4 - a:1\r\n" + b"no end")
    assert [event.step for event in events(read_lines(str(path)))] == [4]


def test_a_line_without_end_costs_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(train_log, "_LINE_BYTES_MAX", 100)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000 + b" step:3 - a:1\n" + b"step:4 - a:1\n")
    lines = list(read_lines(str(path)))
    assert max(map(len, lines)) <= 100
    assert [event.step for event in events(lines)] == [4]


def test_of_a_log_that_is_too_long_the_end_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(train_log, "_LOG_BYTES_MAX", 64)
    path = tmp_path / "log"
    path.write_text("".join(f"step:{step} - a:1\n" for step in range(100, 200)))
    assert [event.step for event in events(read_lines(str(path)))] == [196, 197, 198, 199]


@pytest.mark.parametrize(
    "line",
    [
        "{'trainer': '" + "\\'" * 400_000,
        "{'trainer': " + "'\\" * 400_000,
        "Resuming from" + " " * 900_000,
        "Resuming from /x " * 60_000,
        "Resuming from step 1, epoch " * 40_000,
        "learning_rate   " * 60_000,
        "Loaded train dataset " * 50_000,
        "\x1b]" * 500_000 + "step:1",
        "+ python train.py a=" + "[" * 900_000,
        "+ python train.py a=" + "[" * 120_000,
        "+ python train.py a=" + "${" * 60_000,
        "+ python train.py " + "a=[[ " * 40_000,
        "step:1 - " * 100_000,
    ],
    ids=lambda line: line[:20],
)
def test_no_line_takes_longer_than_its_length_allows(line):
    before = time.process_time()
    list(events([line + "\n", "step:7 - a:1\n"]))
    assert time.process_time() - before < 15  # what looks at each pair of characters takes minutes


def test_what_is_said_behind_a_long_progress_bar_is_heard():
    bar = "".join(f"\r{n}%|####      | {n}/100000" for n in range(20_000))
    (said,) = events([f"{bar}\rResuming from /o/global_step_40, setting global step to 40\n"])
    assert (said.kind, said.step) == ("resumed", 40)
