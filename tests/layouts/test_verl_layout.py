from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.layouts.verl import Verl
from ckptsync.model.step import Shard
from ckptsync.testing.checkpoints import verl_sft_step, verl_step

VERL = Verl()
QUEUE = {"transfer_queue/metadata.json": 10, "transfer_queue/controller_state.pkl": 10}


def read_from(directory):
    return lambda path: (directory / path).read_bytes()


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("global_step_20", 20),
        ("global_step_0", 0),
        ("global_step_10000", 10000),
        ("global_step_020", None),
        ("global_step_", None),
        ("global_step_-1", None),
        ("global_step_20.partial", None),
        ("global_step_20\n", None),
        ("global_step_٢", None),
        ("global_step_9999999999999", None),
        ("tmp_global_step_20", None),
        ("step_20", None),
        ("latest", None),
    ],
)
def test_step_names_are_strict(name, step):
    assert VERL.step_of(name) == step


@given(st.integers(0, 10**12 - 1))
def test_every_step_number_is_read(step):
    assert VERL.step_of(f"global_step_{step}") == step


def test_steps_are_ordered_as_numbers():
    names = [f"global_step_{n}" for n in (9, 10, 99, 100, 9900, 10000)]
    assert sorted(sorted(names), key=VERL.step_of) == names


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("120", 120),
        (" 120\n", 120),
        ("0", 0),
        ("", None),
        ("  \n", None),
        ("release", None),
        ("12.5", None),
        ("+120", None),
        ("1_000", None),
        ("-3", None),
        ("1" * 5000, None),
    ],
)
def test_an_unreadable_tracker_is_unknown_never_zero(text, step):
    assert VERL.tracker.parse(text) == step


@given(st.integers(0, 10**9))
def test_the_tracker_is_written_as_plain_digits(step):
    assert VERL.tracker.render(step).isdigit()
    assert VERL.tracker.parse(VERL.tracker.render(step)) == step


@pytest.mark.parametrize(
    ("path", "shard"),
    [
        ("actor/model_world_size_16_rank_3.pt", Shard("actor", "model", 3, 16)),
        ("critic/extra_state_world_size_2_rank_1.pt", Shard("critic", "extra_state", 1, 2)),
        ("optim_world_size_2_rank_0.pt", Shard("", "optim", 0, 2)),
        ("actor/optimizer/dist_ckpt/__3_1.distcp", Shard("actor", "optimizer/dist_ckpt", 3)),
        ("actor/dist_ckpt/__3_0.distcp", Shard("actor", "dist_ckpt", 3)),
        ("model/dist_ckpt/__3_0.distcp", Shard("", "model/dist_ckpt", 3)),
        ("actor/model/x/__0_0.distcp", Shard("actor", "model/x", 0)),
        ("actor/model_world_size_4_rank_4.pt", None),
        ("actor/model_world_size_0_rank_0.pt", None),
        ("actor/model_world_size_4_rank_3.pt.tmp", None),
        ("data.pt", None),
        ("data_0.pt", None),
        ("actor/huggingface/model.safetensors", None),
    ],
)
def test_what_a_shards_name_says(path, shard):
    assert VERL.shard(path) == shard


def test_the_torchtitan_engine_has_the_same_role_at_every_step():
    assert VERL.shard("step-10/__1_0.distcp") == VERL.shard("step-20/__1_0.distcp") == Shard("step-N", "dcp", 1)


class TestPpoOnTwoNodes:
    """Node 0 has ranks 0 and 1 and the driver, node 1 has ranks 2 and 3."""

    @pytest.fixture
    def nodes(self, tmp_path):
        return (
            verl_step(tmp_path / "n0", 20, world=4, ranks=[0, 1], n=64),
            verl_step(tmp_path / "n1", 20, world=4, ranks=[2, 3], driver=False, n=64),
        )

    def test_the_union_is_whole_and_no_node_is(self, nodes, sizes_of, faults):
        assert VERL.missing(sizes_of(*nodes)) == ()
        lacking = [p.message for p in VERL.missing(sizes_of(nodes[0]))]
        assert lacking == [f"the {kind} shards of ranks 2-3 of 4 are missing" for kind in sorted_kinds()]
        assert ("data.pt", "missing") in faults(VERL.missing(sizes_of(nodes[1])))

    def test_each_share_lacks_nothing_here(self, nodes, sizes_of):
        assert [VERL.missing_here(sizes_of(node), {}) for node in nodes] == [(), ()]

    @pytest.mark.parametrize(
        "path", ["actor/fsdp_config.json", "actor/huggingface/config.json", "actor/optim_world_size_4_rank_1.pt"]
    )
    def test_a_file_that_rank_0s_node_should_have_is_missed_here_and_in_the_whole(self, nodes, sizes_of, path):
        (nodes[0] / path).unlink()
        assert VERL.missing_here(sizes_of(nodes[0]), {})
        assert VERL.missing(sizes_of(*nodes))

    def test_the_dataloaders_state_is_missed_in_the_whole_only(self, nodes, sizes_of, faults):
        (nodes[0] / "data.pt").unlink()
        assert VERL.missing_here(sizes_of(nodes[0]), {}) == ()
        assert faults(VERL.missing(sizes_of(*nodes))) == [("data.pt", "missing")]

    def test_only_the_drivers_node_holds_the_closing_file(self, nodes, sizes_of):
        assert VERL.closing(sizes_of(nodes[0])) == {"data.pt"}
        assert VERL.closing(sizes_of(nodes[1])) == frozenset()


def sorted_kinds():
    return sorted(["model", "optim", "extra_state"])


def test_a_driver_on_a_third_node_completes_the_union(tmp_path, sizes_of):
    shards = verl_step(tmp_path / "n0", 20, world=2, driver=False, n=64)
    driver = verl_step(tmp_path / "n1", 20, world=2, ranks=[], n=64)
    assert VERL.missing(sizes_of(driver))
    assert VERL.missing(sizes_of(shards, driver)) == ()
    assert VERL.closing(sizes_of(driver)) == {"data.pt"}


def test_a_critic_that_was_there_before_is_awaited(tmp_path, sizes_of):
    step = verl_step(tmp_path, 20, world=2, driver=False, n=64)
    seen = {("actor", "model"): 2, ("critic", "model"): 2}
    assert [p.path for p in VERL.missing_here(sizes_of(step), seen)] == ["critic"]
    verl_step(tmp_path, 20, world=2, roles=("critic",), n=64)
    assert VERL.missing_here(sizes_of(step), seen) == ()


def test_a_save_is_whole_at_its_very_last_file_and_not_before(tmp_path, sizes_of):
    step = tmp_path / "global_step_20"
    verdicts = []
    verl_step(
        tmp_path, 20, world=2, roles=("actor", "critic"), n=64, pause=lambda _: verdicts.append(judge(sizes_of(step)))
    )
    assert verdicts[-2:] == [True, True]  # data.pt, then the tracker
    assert not any(verdicts[:-2])


def judge(sizes):
    return not VERL.missing(sizes) and not any(VERL.is_temporary(path) for path in sizes)


def test_a_save_that_was_killed_is_not_whole(tmp_path, sizes_of, faults):
    step = verl_step(tmp_path, 60, world=2, driver=False, n=64)
    shutil.rmtree(step / "actor/huggingface")
    (step / "actor/fsdp_config.json").unlink()
    assert faults(VERL.missing(sizes_of(step))) == [
        ("actor/fsdp_config.json", "missing"),
        ("actor/huggingface/config.json", "missing"),
        ("data.pt", "missing"),
    ]


def test_a_step_without_a_tracker_is_whole(tmp_path, sizes_of):
    assert VERL.missing(sizes_of(verl_step(tmp_path, 20, tracker=False, n=64))) == ()


def test_a_step_left_from_another_world_size_is_no_whole_step(tmp_path, sizes_of, faults):
    verl_step(tmp_path, 20, world=2, n=64)
    step = verl_step(tmp_path, 20, world=1, n=64)
    assert faults(VERL.missing(sizes_of(step))) == [("actor", "world-size")]


@pytest.mark.parametrize(
    ("paths", "husk"),
    [
        ([], True),
        (["data.pt"], True),
        (["data.pt", *QUEUE], True),
        (["data_0.pt", "data_1.pt"], True),
        (["data.pt", "actor/model_world_size_1_rank_0.pt"], False),
        (["actor/huggingface/config.json"], False),
        (["model_world_size_1_rank_0.pt"], False),
    ],
)
def test_a_husk_is_what_retention_leaves(paths, husk):
    assert VERL.is_husk(paths) is husk


@pytest.mark.parametrize("paths", [{}, {"data.pt": 64}])
def test_a_husk_is_never_whole(paths):
    assert VERL.missing(paths)


@pytest.mark.parametrize(
    ("path", "temporary"),
    [
        ("actor/huggingface/.tmpAb3xZ9", True),
        ("actor/ckpt_contents.json.tmp", True),
        ("actor/dist_ckpt/.metadata.tmp", True),
        ("transfer_queue.tmp/metadata.json", True),
        ("transfer_queue.old/simple_storage/su_0_a.pkl", True),
        ("transfer_queue/metadata.json", False),
        ("actor/dist_ckpt/.metadata", False),
        ("actor/huggingface/model.safetensors", False),
    ],
)
def test_temporary_files_say_that_the_save_goes_on(path, temporary):
    assert VERL.is_temporary(path) is temporary


def test_batch_files_of_the_bridge_are_no_part_of_a_step():
    leftovers = ["mcore_batch_3_0.safetensors", "hf_batch_12_4.safetensors"]
    assert all(VERL.ignored(f"actor/model/huggingface/{name}") for name in leftovers)
    assert not VERL.ignored("actor/model/huggingface/model.safetensors")


@pytest.mark.parametrize("gone", sorted(QUEUE))
def test_a_transfer_queue_is_whole_or_absent(tmp_path, sizes_of, faults, gone):
    sizes = sizes_of(verl_step(tmp_path, 20, n=64))
    assert VERL.missing(sizes | QUEUE) == ()
    damaged = {path: size for path, size in (sizes | QUEUE).items() if path != gone}
    assert faults(VERL.missing(damaged)) == faults(VERL.missing_here(damaged, {})) == [(gone, "missing")]


def test_the_transfer_queue_is_written_after_the_dataloaders_state(tmp_path, sizes_of):
    assert VERL.closing(sizes_of(verl_step(tmp_path, 20, n=64)) | QUEUE) == {"data.pt", *QUEUE}


class TestSft:
    @pytest.fixture
    def nodes(self, tmp_path):
        return (
            verl_sft_step(tmp_path / "n0", 20, world=4, ranks=[0, 1], n=64),
            verl_sft_step(tmp_path / "n1", 20, world=4, ranks=[2, 3], n=64),
        )

    def test_the_union_is_whole(self, nodes, sizes_of):
        assert VERL.missing(sizes_of(*nodes)) == ()
        assert VERL.missing(sizes_of(nodes[0]))
        assert VERL.missing_here(sizes_of(nodes[1]), {}) == ()

    def test_each_node_has_its_own_closing_files_and_nobody_waits(self, nodes, sizes_of):
        assert VERL.closing(sizes_of(nodes[1])) == {"data_2.pt", "data_3.pt"}
        assert not VERL.has_barrier(sizes_of(*nodes))
        assert VERL.has_barrier(["actor/model_world_size_1_rank_0.pt", "data.pt"])

    def test_the_older_dataloader_state_will_do(self, nodes, sizes_of, faults):
        bare = {p: s for p, s in sizes_of(*nodes).items() if not p.startswith("data_")}
        assert faults(VERL.missing(bare)) == [("data_0.pt", "missing")]
        assert VERL.missing(bare | {"data.pt": 64}) == ()

    @pytest.mark.usefixtures("nodes")
    def test_only_the_node_of_rank_0_writes_the_tracker(self, tmp_path):
        trackers = list(tmp_path.glob("*/latest_checkpointed_iteration.txt"))
        assert [path.parent.name for path in trackers] == ["n0"]


def test_the_torchtitan_engine_needs_its_metadata(faults):
    step = {"data.pt": 64, "step-20/__0_0.distcp": 9, "step-20/__1_0.distcp": 9}
    assert faults(VERL.missing(step)) == [("step-20/.metadata", "missing")]
    assert VERL.missing(step | {"step-20/.metadata": 9}) == ()


class TestContent:
    def test_the_world_size_is_told_twice(self, tmp_path, sizes_of):
        step = verl_step(tmp_path, 20, world=2, n=64)
        assert VERL.check(sizes_of(step), 20, read_from(step)) == ()

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            (json.dumps({"FSDP_version": 1, "world_size": 4}), "world-size"),
            (json.dumps({"FSDP_version": 1, "world_size": "2"}), "world-size"),
            ("{", "json"),
            ("[]", "json"),
            ("[" * 100_000, "json"),
            ("", "json"),
        ],
    )
    def test_another_world_size_is_another_save(self, tmp_path, sizes_of, faults, text, code):
        step = verl_step(tmp_path, 20, world=2, n=64)
        (step / "actor/fsdp_config.json").write_text(text)
        assert faults(VERL.check(sizes_of(step), 20, read_from(step))) == [("actor/fsdp_config.json", code)]

    def test_a_huge_file_is_not_read(self, faults):
        sizes = {"actor/fsdp_config.json": 2**40, "actor/model_world_size_1_rank_0.pt": 1}

        def read(path):
            raise AssertionError(path)

        assert faults(VERL.check(sizes, 20, read)) == [("actor/fsdp_config.json", "json")]


def test_the_trainer_is_given_a_path_it_can_parse():
    arguments = VERL.resume_args("/data/ckpt/global_step_20/")
    assert arguments == ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/data/ckpt/global_step_20"]
    assert int(arguments[1].rsplit("global_step_", 1)[1]) == 20


@pytest.mark.parametrize(
    "path",
    [
        "actor/model_world_size_8_rank_0.pt",
        "optim_world_size_8_rank_0.pt",
        "actor/dist_ckpt/common.pt",
        "critic/model/dist_ckpt/__0_0.distcp",
        "step-10/__0_0.distcp",
        "data.pt",
        "data_3.pt",
    ],
)
def test_any_first_file_is_recognised(path):
    assert VERL.recognise([path])


@pytest.mark.parametrize("paths", [[], ["model.safetensors", "trainer_state.json"], ["__0_0.txt"]])
def test_foreign_files_are_not_recognised(paths):
    assert not VERL.recognise(paths)


def test_a_critic_without_its_actor_is_not_whole(tmp_path):
    step = verl_step(tmp_path, 20, roles=("actor", "critic"))
    sizes = {str(path.relative_to(step)): path.stat().st_size for path in step.rglob("*") if path.is_file()}
    assert Verl().missing(sizes) == ()
    without = {path: size for path, size in sizes.items() if not path.startswith("actor/")}
    assert [(problem.path, problem.code) for problem in Verl().missing(without)] == [("actor", "missing")]
