"""Level deep, in real child processes: what loads, what is not finite, what is refused, what is stopped."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import warnings
import zipfile

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ckptsync.errors import ConfigError
from ckptsync.formats import deep
from ckptsync.formats.child import run_child
from ckptsync.formats.deep import check_deep

NAN, INF = float("nan"), float("inf")
MIB = 1 << 20


def with_bad(size, at, value, dtype=torch.float32):
    tensor = torch.zeros(size)
    tensor[at] = value
    return tensor.to(dtype)


def sharded():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        return {"good": DTensor.from_local(torch.ones(8), mesh, [Shard(0)]), "bad": DTensor.from_local(
            with_bad(8, 3, NAN), mesh, [Shard(0)])}  # fmt: skip
    finally:
        dist.destroy_process_group()


def crafted(path, pickled):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", pickled)
        file.writestr("a/byteorder", b"little")
        file.writestr("a/version", b"3\n")


class Custom:
    """A class of a trainer, unknown to torch."""


def write_step(root):
    (root / "actor").mkdir()
    wide = torch.zeros(3000, 1000)
    wide[2999, 1] = INF  # the last row: the last slice
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a sharded tensor is pickled
        torch.save(sharded(), root / "actor/dtensor.pt")
    torch.save(
        {
            "state": {0: {"exp_avg": with_bad(3 * MIB, 3 * MIB - 1, NAN), "step": torch.tensor(3.0)}},
            "param": torch.nn.Parameter(torch.ones(4)),
            "list": [torch.ones(2), (with_bad(4, 1, -INF, torch.bfloat16),)],
            "wide": wide[:, :500],  # a view that is not contiguous
            "complex": torch.complex(torch.tensor([NAN, 1.0]), torch.tensor([INF, 1.0])),
            "fp8": with_bad(9, 2, NAN, torch.float8_e4m3fn),
            "ints": torch.ones(4, dtype=torch.int64),
        },
        root / "actor/optim.pt",
    )
    torch.save({"rng": np.random.RandomState(0).get_state(), "lr": np.float64(1.0)}, root / "extra_state.pt")
    torch.save({"huge": torch.zeros(1).expand(10**12)}, root / "expanded.pt")
    torch.save(Custom(), root / "training_args.bin")
    torch.save({"w": torch.tensor([NAN])}, root / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.trace(torch.nn.ReLU(), torch.ones(1)), root / "script.pt")
    save_file(
        {"a": with_bad(2 * MIB, MIB, NAN, torch.bfloat16), "b": torch.ones(3), "i": torch.arange(2)},
        root / "m.safetensors",
    )
    (root / "cut.safetensors").write_bytes((root / "m.safetensors").read_bytes()[:-1])
    (root / "cut.pt").write_bytes((root / "extra_state.pt").read_bytes()[:-40])
    torch.save({f"t{i}": torch.tensor([NAN]) for i in range(100)}, root / "all.pt")
    (root / "config.json").write_text("{}")
    for name, size in (("bomb.pt", 200 * MIB), ("same_but_small.pt", 20 * MIB)):
        crafted(root / name, b"\x80\x02cbuiltins\nbytearray\nJ" + size.to_bytes(4, "little") + b"\x85R.")


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    root = tmp_path_factory.mktemp("deep")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        write_step(root)
    return root


@pytest.fixture(scope="module")
def found(step):
    paths = sorted(str(path.relative_to(step)) for path in step.rglob("*") if path.is_file())
    return [
        (problem.path, problem.code, problem.message)
        for problem in check_deep(str(step), paths, timeout_s=60, memory_bytes=64 * MIB)
    ]


def of(found, path):
    return [(code, message) for where, code, message in found if where == path]


def test_every_tensor_that_is_not_finite_is_named(found):
    assert of(found, "actor/optim.pt") == [
        ("nan", "state.0.exp_avg: 1 NaN"),
        ("inf", "list.1.0: 1 Inf"),
        ("inf", "wide: 1 Inf"),
        ("nan", "complex: 1 NaN, 1 Inf"),
        ("nan", "fp8: 1 NaN"),
    ]


def test_local_shards_of_sharded_tensors_are_looked_at(found):
    assert of(found, "actor/dtensor.pt") == [("nan", "bad: 1 NaN")]


def test_safetensors_files_are_looked_at(found):
    assert of(found, "m.safetensors") == [("nan", "a: 1 NaN")]
    assert [code for code, _ in of(found, "cut.safetensors")] == ["not-loadable"]


@pytest.mark.parametrize("path", ["extra_state.pt", "expanded.pt", "legacy.bin", "config.json"])
def test_states_of_random_generators_and_harmless_files_pass(found, path):
    assert of(found, path) == []


def test_classes_outside_the_allow_list_are_skipped_not_loaded(found):
    ((code, message),) = of(found, "training_args.bin")
    assert code == "skipped"
    assert "Custom" in message
    assert [code for code, _ in of(found, "script.pt")] == ["skipped"]


def test_a_file_that_torch_cannot_open_is_not_loadable(found):
    assert [code for code, _ in of(found, "cut.pt")] == ["not-loadable"]


def test_a_file_full_of_nan_does_not_flood_the_report(found):
    assert len(of(found, "all.pt")) == 20


def test_a_memory_bomb_is_stopped_by_the_limit_and_only_by_it(found):
    assert [code for code, _ in of(found, "bomb.pt")] == ["deep-limit"]
    assert of(found, "same_but_small.pt") == []


def test_a_child_out_of_time_is_a_problem(step):
    (problem,) = check_deep(str(step), ["m.safetensors"], timeout_s=0.01, memory_bytes=64 * MIB)
    assert problem.code == "deep-limit"
    assert "its time was up" in problem.message


def test_a_child_that_dies_names_the_file_it_was_at(monkeypatch):
    script = 'import os; print(\'{"begin": "a.pt"}\', flush=True); os.abort()'
    monkeypatch.setattr(deep, "_COMMAND", (sys.executable, "-I", "-c", script))
    (problem,) = check_deep("/", ["a.pt"], timeout_s=60, memory_bytes=MIB)
    assert (problem.path, problem.code) == ("a.pt", "deep-limit")


def test_without_torch_the_remedy_is_named(monkeypatch):
    script = "import sys; sys.modules['torch'] = None; from ckptsync.formats import deep_child; deep_child.main()"
    monkeypatch.setattr(deep, "_COMMAND", (sys.executable, "-I", "-c", script))
    with pytest.raises(ConfigError, match=r"pip install 'ckptsync\[torch\]'"):
        check_deep("/", [], timeout_s=60, memory_bytes=MIB)


def test_a_child_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(deep, "_COMMAND", ("/no/such/python",))
    with pytest.raises(ConfigError, match="cannot start"):
        check_deep("/", [], timeout_s=60, memory_bytes=MIB)


def child(script, feed=(), **limits):
    return run_child([sys.executable, "-I", "-c", script], feed, **({"timeout_s": 60, "output_max": 10_000} | limits))


def test_a_child_sees_no_secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = json.loads(child("import os, json; print(json.dumps(dict(os.environ)))").output)
    assert not [name for name in environment if name.startswith(("AWS", "PYTHON", "HOME"))]
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 can only begin a session")
def test_ctrl_c_is_not_for_a_child_and_it_gives_way_as_its_parent_does():
    shown = json.loads(child("import os; print([os.getpid(), os.getpgid(0), os.getsid(0)])").output)
    assert shown[0] == shown[1]
    assert shown[2] == os.getsid(0), "another session has a share of the processor of its own"


def test_a_child_is_stopped_when_it_hangs_or_floods():
    assert child("import time; time.sleep(600)", timeout_s=0.2).stopped == "its time was up"
    flood = child("while True: print('x' * 1000)")
    assert (flood.stopped, len(flood.output)) == ("it wrote too much", 10_000)


def test_a_child_that_does_not_read_its_input_is_no_error():
    outcome = child("import sys; sys.exit(7)", [bytes(MIB)] * 4)
    assert (outcome.code, outcome.output, outcome.stopped) == (7, b"", "")


def test_the_crafted_bomb_is_a_valid_pickle_of_200_mib(step):
    with zipfile.ZipFile(step / "bomb.pt") as file:
        assert len(pickle.load(io.BytesIO(file.read("a/data.pkl")))) == 200 * MIB


def test_loading_ends_at_once_when_it_is_asked_to_and_says_meanwhile_that_it_lives(tmp_path):
    torch.save({"w": torch.zeros(4)}, tmp_path / "a.pt")
    asked = []

    def go_on():
        asked.append(True)
        return False

    problems = check_deep(str(tmp_path), ["a.pt"] * 10_000, timeout_s=300, memory_bytes=1 << 30, go_on=go_on)
    assert asked
    assert [problem.code for problem in problems] == ["deep-limit"]
    assert "asked to stop" in problems[0].message
