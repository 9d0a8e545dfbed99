from __future__ import annotations

import json

import pytest

from ckptsync.layouts.verl import Verl
from ckptsync.testing.checkpoints import megatron_v1_step, megatron_v2_step

VERL = Verl()
PIECES = ("model", "optimizer", "extra")


@pytest.fixture(params=[megatron_v1_step, megatron_v2_step], ids=["v1", "v2"])
def write(request):
    return request.param


def test_a_save_is_whole_at_its_very_last_file_and_not_before(tmp_path, sizes_of, write):
    step = tmp_path / "global_step_20"
    verdicts = []

    def look(_):
        sizes = sizes_of(step)
        verdicts.append(not VERL.missing(sizes) and not any(VERL.is_temporary(path) for path in sizes))

    write(tmp_path, 20, n=64, pause=look)
    assert verdicts[-2:] == [True, True]
    assert not any(verdicts[:-2])


def test_two_nodes_make_a_whole_step(tmp_path, sizes_of, write):
    first = write(tmp_path / "n0", 20, world=4, ranks=[0, 1], n=64)
    second = write(tmp_path / "n1", 20, world=4, ranks=[2, 3], driver=False, n=64)
    assert VERL.missing_here(sizes_of(first), {}) == VERL.missing_here(sizes_of(second), {}) == ()
    assert VERL.missing(sizes_of(first, second)) == ()
    assert VERL.missing(sizes_of(second))
    assert VERL.closing(sizes_of(second)) == frozenset()


def test_a_tracker_that_is_ahead_of_the_writer_proves_nothing(tmp_path, sizes_of, faults):
    step = megatron_v1_step(tmp_path, 30, n=64)
    for name in (".metadata", "metadata.json"):
        (step / "actor/dist_ckpt" / name).unlink()
    expected = [("actor/dist_ckpt/.metadata", "missing"), ("actor/dist_ckpt/metadata.json", "missing")]
    assert faults(VERL.missing(sizes_of(step))) == faults(VERL.missing_here(sizes_of(step), {})) == expected


def test_common_pt_may_be_absent(tmp_path, sizes_of, write):
    step = write(tmp_path, 20, n=64)
    for path in step.rglob("common.pt"):
        path.unlink()
    assert VERL.missing(sizes_of(step)) == ()


def test_markers_close_a_save_with_the_drivers_file(tmp_path, sizes_of):
    v1 = megatron_v1_step(tmp_path / "v1", 20, roles=("actor", "critic"), n=64)
    inside = {f"{role}/dist_ckpt/{name}" for role in ("actor", "critic") for name in (".metadata", "metadata.json")}
    assert VERL.closing(sizes_of(v1)) == {"data.pt", *inside}
    v2 = megatron_v2_step(tmp_path / "v2", 20, n=64)
    assert {"data.pt", "actor/ckpt_contents.json", "actor/extra/dist_ckpt/.metadata"} <= VERL.closing(sizes_of(v2))


@pytest.mark.parametrize(
    "gone", ["ckpt_contents.json", "optimizer/dist_ckpt/metadata.json", "extra/dist_ckpt/.metadata"]
)
def test_every_marker_of_the_second_layout_is_needed_on_rank_0s_node(tmp_path, sizes_of, faults, gone):
    step = megatron_v2_step(tmp_path, 20, n=64)
    (step / "actor" / gone).unlink()
    expected = [(f"actor/{gone}", "missing")]
    assert faults(VERL.missing(sizes_of(step))) == faults(VERL.missing_here(sizes_of(step), {})) == expected


def test_a_migrated_step_keeps_both_layouts(tmp_path, sizes_of):
    step = megatron_v1_step(tmp_path, 10, n=64)
    old = step / "actor/dist_ckpt"
    for piece in PIECES:
        target = step / "actor" / piece / "dist_ckpt"
        target.mkdir(parents=True)
        for file in old.iterdir():
            (target / file.name).hardlink_to(file)
    (step / "actor/ckpt_contents.json").write_text('{"schema_version": 2}')
    assert VERL.missing(sizes_of(step)) == ()
    assert VERL.check(sizes_of(step), 10, lambda path: (step / path).read_bytes()) == ()


def test_the_combined_checkpoint_of_megatron_fsdp_has_only_metadata(tmp_path, sizes_of):
    step = megatron_v2_step(tmp_path, 20, n=64)
    kept = {
        path: size
        for path, size in sizes_of(step).items()
        if not path.startswith(("actor/optimizer", "actor/extra")) and not path.endswith("/metadata.json")
    }
    assert VERL.missing(kept) == ()
    assert VERL.check(kept, 20, lambda path: (step / path).read_bytes()) == ()


def test_a_model_directory_alone_is_combined_only_once_its_role_is_declared_complete(faults):
    step = {"data.pt": 1, "actor/model/dist_ckpt/__0_0.distcp": 1, "actor/model/dist_ckpt/.metadata": 1}
    expected = [("actor/ckpt_contents.json", "missing"), ("actor/model/dist_ckpt/metadata.json", "missing")]
    assert faults(VERL.missing(step)) == expected
    assert VERL.missing(step | {"actor/ckpt_contents.json": 1}) == ()


def test_a_finished_role_closes_nothing_where_the_driver_is_elsewhere(tmp_path, sizes_of, write):
    rank0 = write(tmp_path, 20, driver=False, n=64)
    assert VERL.closing(sizes_of(rank0)) == frozenset()


def test_a_model_exported_without_shards_needs_its_contents_file(faults):
    step = {"data.pt": 1, "actor/model/huggingface/config.json": 1, "actor/model/huggingface/model.safetensors": 1}
    assert (
        faults(VERL.missing(step)) == faults(VERL.missing_here(step, {})) == [("actor/ckpt_contents.json", "missing")]
    )


class TestContents:
    @pytest.fixture
    def step(self, tmp_path):
        return megatron_v2_step(tmp_path, 20, n=64)

    def check(self, step, sizes, number=20):
        return VERL.check(sizes, number, lambda path: (step / path).read_bytes())

    def test_what_it_names_is_there(self, step, sizes_of):
        assert self.check(step, sizes_of(step)) == ()

    def test_another_steps_file_is_found(self, step, sizes_of, faults):
        assert faults(self.check(step, sizes_of(step), 30)) == [("actor/ckpt_contents.json", "wrong-step")]

    def test_a_piece_that_is_gone_is_named(self, step, sizes_of, faults):
        sizes = {p: s for p, s in sizes_of(step).items() if not p.startswith("actor/optimizer/")}
        assert faults(self.check(step, sizes)) == [("actor/optimizer/dist_ckpt", "missing")]

    @pytest.mark.parametrize("gone", ["global_step", "contents", "world_size"])
    def test_fields_that_are_not_there_are_not_missed(self, step, sizes_of, gone):
        path = step / "actor/ckpt_contents.json"
        document = json.loads(path.read_text())
        del document[gone]
        path.write_text(json.dumps(document))
        assert self.check(step, sizes_of(step)) == ()

    def test_a_torn_file_is_found(self, step, sizes_of, faults):
        path = step / "actor/ckpt_contents.json"
        path.write_bytes(path.read_bytes()[:-9])
        assert faults(self.check(step, sizes_of(step))) == [("actor/ckpt_contents.json", "json")]
