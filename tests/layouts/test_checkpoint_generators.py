from __future__ import annotations

import hashlib
import os
import random
import zipfile

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributed.checkpoint import FileSystemReader

from ckptsync.testing import checkpoints as ck

WRITERS = {
    "verl": ck.verl_step,
    "verl_sft": ck.verl_sft_step,
    "megatron_v1": ck.megatron_v1_step,
    "megatron_v2": ck.megatron_v2_step,
    "layered": ck.layered_step,
    "hf": ck.hf_step,
    "dcp": ck.dcp_step,
}
STATES = ("extra_state", "rng_state", "scheduler")


def digests(directory):
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(params=WRITERS)
def write(request):
    return WRITERS[request.param]


@pytest.mark.parametrize("real", [False, True], ids=["ours", "torch"])
def test_every_torch_file_loads_in_torch(tmp_path, write, real):
    step = write(tmp_path, 20, n=256, real=real)
    files = [p for p in step.rglob("*") if p.suffix in (".pt", ".pth", ".bin")]
    for path in files:
        if not path.name.startswith(STATES):
            assert torch.load(path, weights_only=True)["weight"].dtype == torch.float32
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    assert files or write is ck.dcp_step


@pytest.mark.parametrize("real", [False, True], ids=["ours", "torch"])
def test_generators_and_schedules_take_their_states_from_what_was_written(tmp_path, real):
    verl, hf = ck.verl_step(tmp_path / "v", 20, real=real), ck.hf_step(tmp_path / "h", 20, real=real)
    layered = ck.layered_step(tmp_path / "l", 20, real=real)
    extra = torch.load(verl / "actor/extra_state_world_size_1_rank_0.pt", weights_only=False)
    theirs = torch.load(hf / "rng_state.pth", weights_only=False)
    for state, python in ((extra["rng"], "random"), (theirs, "python")):
        torch.Generator().set_state(state["cpu"])
        np.random.RandomState().set_state(state["numpy"])
        random.Random().setstate(state[python])
        assert state["cuda"].numel() == 16
    files = (hf / "scheduler.pt", layered / "actor/scheduler.pt")
    for schedule in (extra["lr_scheduler"], *(torch.load(file, weights_only=True) for file in files)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-6)
        following = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        following.load_state_dict(schedule)
        assert following.last_epoch == 20


def test_our_records_are_those_of_torch(tmp_path):
    ours, real = (ck.verl_step(tmp_path / str(r), 1, n=256, real=r) / "data.pt" for r in (False, True))
    names, offsets = [], []
    for path in (ours, real):
        with zipfile.ZipFile(path) as archive:
            names.append([info.filename.partition("/")[2] for info in archive.infolist()])
            info = archive.infolist()[4]
        header = path.read_bytes()[info.header_offset :]
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        offsets.append((info.header_offset + 30 + lengths) % 64)
    assert names[0] == names[1]
    assert offsets == [0, 0]


def test_safetensors_and_index_are_real(tmp_path):
    step = ck.hf_step(tmp_path, 20, shards=2, n=256)
    for path in step.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert [file.get_tensor(key).numel() for key in file.keys()] == [256]  # noqa: SIM118 - no mapping


def test_dcp_metadata_is_real_and_names_every_nodes_files(tmp_path):
    first = ck.dcp_step(tmp_path / "n0", 20, world=3, ranks=[0], n=256)
    others = ck.dcp_step(tmp_path / "n1", 20, world=3, ranks=[1, 2], n=256)
    ends = {}
    for info in FileSystemReader(first).read_metadata().storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    files = {p.name: p.stat().st_size for d in (first, others) for p in d.glob("*.distcp")}
    assert ends == files


def test_equal_calls_write_equal_bytes_and_others_differ(tmp_path, write):
    one, two = (digests(write(tmp_path / name, 20, n=64)) for name in ("a", "b"))
    assert one == two
    other_seed = digests(write(tmp_path / "c", 20, n=64, seed=1))
    assert one.keys() == other_seed.keys()
    assert one != other_seed


def test_shares_of_two_nodes_are_those_of_one_save(tmp_path):
    whole = digests(ck.megatron_v2_step(tmp_path / "whole", 20, world=4, n=64))
    first = digests(ck.megatron_v2_step(tmp_path / "n0", 20, world=4, ranks=[0, 1], n=64))
    second = digests(ck.megatron_v2_step(tmp_path / "n1", 20, world=4, ranks=[2, 3], driver=False, n=64))
    assert first | second == whole
    assert not first.keys() & second.keys()


def test_a_frozen_model_is_the_same_at_every_step(tmp_path):
    first, second = (digests(ck.layered_step(tmp_path, step, n=64)) for step in (1, 2))
    assert first["ref/pytorch_model.bin"] == second["ref/pytorch_model.bin"]
    assert first["actor/pytorch_model.bin"] != second["actor/pytorch_model.bin"]


def test_verl_writes_in_its_own_order(tmp_path):
    order = []
    ck.verl_step(tmp_path, 20, world=2, roles=("actor", "critic"), hf=True, n=64, pause=order.append)
    marks = [
        "global_step_20/actor/model_world_size_2_rank_0.pt",
        "global_step_20/actor/extra_state_world_size_2_rank_1.pt",
        "global_step_20/actor/fsdp_config.json",
        "global_step_20/actor/huggingface/model.safetensors",
        "global_step_20/critic/model_world_size_2_rank_0.pt",
        "global_step_20/data.pt",
        "latest_checkpointed_iteration.txt",
    ]
    assert [path for path in order if path in marks] == marks
    assert order[0] == marks[0]
    assert order[-2:] == marks[-2:]
    assert any("/.tmp" in path for path in order)
    assert (tmp_path / marks[-1]).read_text() == "20"


def test_nothing_temporary_stays(tmp_path, write):
    step = write(tmp_path, 20, n=64)
    assert not [path for path in step.rglob("*") if "tmp" in path.name]


def test_ageing_keeps_order_and_content(tmp_path):
    step = ck.verl_step(tmp_path, 20, n=64)
    (step / "link").symlink_to("data.pt")
    os.utime(step / "data.pt", ns=(0, 10**18 + 7))

    def times():
        return {path: path.lstat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))}

    before = times()
    ck.age(tmp_path, 90.5)
    assert times() == {path: mtime - 90_500_000_000 for path, mtime in before.items()}
