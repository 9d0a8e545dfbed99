"""The check `dataset`, on real parquet and JSON files, and on dataloader states as torchdata and verl save them."""

from __future__ import annotations

import json
import os
import sys

import obstore
import pyarrow as pa
import pytest
import torch
from obstore.store import S3Store
from pyarrow import parquet
from resuming import context_of, node_of, now, record, then

from ckptsync.resume.checks.dataset import check
from ckptsync.resume.contents import datasets
from ckptsync.resume.contents.datafiles import Place, place_of
from ckptsync.resume.contents.datasets import TRAIN, VAL, describe, describe_inputs
from ckptsync.testing.checkpoints import layered_step, verl_sft_step, verl_step

BATCH = "data.train_batch_size"


def table_at(path, rows=100, *, seed=0, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    prompts = [f"question {seed} {n}" for n in range(rows)]
    parquet.write_table(pa.table({"prompt": prompts, "data_source": ["gsm8k"] * rows, **columns}), path)
    return str(path)


def lines_at(path, rows=100, *, end="\n"):
    path.write_text("\n".join(json.dumps({"prompt": n}) for n in range(rows)) + end)
    return str(path)


@pytest.fixture
def train(tmp_path):
    return table_at(tmp_path / "data" / "train.parquet")


@pytest.fixture
def val(tmp_path):
    return table_at(tmp_path / "data" / "test.parquet", 10)


def state_at(step, samples, batches, *, workers=0, ended=False):
    """`data.pt` of a StatefulDataLoader over a shuffled dataset (torchdata 0.11), with or without workers."""
    sampler = {"samples_yielded": samples, "sampler_iter_state": {"yielded": samples, "generator": torch.zeros(5056)}}
    main = {"_sampler_iter_state": sampler, "_sampler_iter_yielded": batches, "_index_sampler_state": None}
    state = {**main, "_num_yielded": batches, "dataset_state": None}
    if workers:
        snapshot = {"_snapshot_step": batches, "_main_snapshot": {**main, "_num_workers": workers}}
        state = {"_snapshot": snapshot, "_steps_since_snapshot": 0}
    torch.save({**state, "_iterator_finished": ended}, step / "data.pt")


@pytest.fixture
def step(tmp_path):
    """Step 10 of a training in batches of 8 over 100 rows: 80 samples are gone."""
    step = verl_step(tmp_path / "out", 10)
    state_at(step, 80, 10)
    return step


class Case:
    """A training on two files; what it was is recorded, what it will be can be changed."""

    def __init__(self, tmp_path, step, train, val):
        self.tmp_path, self.step = tmp_path, step
        self.settings = {TRAIN: train, VAL: [val], BATCH: 8}
        self.record = record(datasets=describe([train, val]))

    def check(self, *, record=True, more="", cwd="", complete=False, **changes):
        start = {**self.settings, **{f"data.{name}": value for name, value in changes.items()}}
        return check(
            context_of(
                self.tmp_path,
                step=self.step,
                more=more,
                cwd=cwd,
                then=then(self.settings),
                now=now(start, complete=complete),
                record=self.record if record else None,
            )
        )


@pytest.fixture
def case(tmp_path, step, train, val):
    return Case(tmp_path, step, train, val)


class TestFiles:
    def test_the_recorded_files_at_the_right_place_pass(self, case, train):
        outcome = case.check()
        assert outcome.status == "pass"
        assert f"{TRAIN}: {train}" in outcome.message
        assert "1 file, 100 rows" in outcome.message
        assert "data.pt stands at sample 80 of 100, as 10 steps of 8 should" in outcome.message

    def test_a_list_of_one_is_the_file_itself(self, case, train):
        assert case.check(train_files=[train]).status == "pass"

    def test_other_files_fail_and_the_remedy_names_the_originals(self, case, tmp_path, train):
        other = table_at(tmp_path / "data" / "other.parquet")
        outcome = case.check(train_files=other)
        assert outcome.status == "fail"
        assert f"the original had {train}, the start has {other}" in outcome.message
        assert f"add {TRAIN}={train}" in outcome.remedy

    def test_the_same_files_in_another_order_fail(self, case, tmp_path, train):
        other = table_at(tmp_path / "data" / "other.parquet")
        case.settings[TRAIN] = [train, other]
        outcome = case.check(train_files=[other, train])
        assert outcome.status == "fail"
        assert "the same files in another order" in outcome.message

    def test_other_validation_files_are_a_warning(self, case, tmp_path):
        case.settings[VAL] = table_at(tmp_path / "data" / "before.parquet", 10)
        assert case.check(val_files=table_at(tmp_path / "data" / "test.parquet", 10)).status == "warn"

    @pytest.mark.parametrize(
        ("rows", "seed", "columns", "told"),
        [
            (99, 0, {}, "100 rows then, 99 now, other content"),
            (100, 1, {}, "is not what it was: other content (size+footer+pieces: "),
            (100, 0, {"extra": list(range(100))}, "other columns, other content"),
        ],
    )
    def test_other_rows_columns_or_content_under_the_same_name_fail(self, case, tmp_path, rows, seed, columns, told):
        table_at(tmp_path / "data" / "train.parquet", rows, seed=seed, **columns)
        outcome = case.check()
        assert outcome.status == "fail"
        assert told in outcome.message

    def test_a_file_that_was_only_written_anew_with_the_same_content_passes(self, case, train):
        os.utime(train, (1, 1))
        assert case.check().status == "pass"

    def test_a_file_that_is_gone_fails(self, case, train):
        os.unlink(train)
        outcome = case.check()
        assert outcome.status == "fail"
        assert f"{train}: no such file" in outcome.message

    def test_a_file_that_lies_in_the_trainers_container_is_skipped(self, case, train):
        os.unlink(train)
        outcome = case.check(more='trainer_dir = "/workspace/out"')
        assert outcome.status == "skip"
        assert "where the trainer runs" in outcome.remedy

    def test_data_below_output_dir_is_found_under_the_trainers_name(self, case, tmp_path):
        table_at(tmp_path / "out" / "data" / "train.parquet")
        case.settings[TRAIN] = "/workspace/out/data/train.parquet"
        case.record = record(datasets={})
        outcome = case.check(more='trainer_dir = "/workspace/out"')
        assert "1 file, 100 rows" in outcome.message

    def test_a_file_that_this_user_may_not_read_is_denied(self, train):
        if os.geteuid() == 0:
            os.chmod(train, 0)
            os.seteuid(65534)
        else:
            os.chmod(train, 0)
        try:
            found = describe([train])[train]
        finally:
            if os.getuid() == 0:
                os.seteuid(0)
        assert found["error"] == "denied"

    def test_the_remedy_of_a_file_that_may_not_be_read(self, case, train, monkeypatch):
        denied = {"error": "denied", "why": "Permission denied"}
        monkeypatch.setattr("ckptsync.resume.checks.dataset.describe", lambda paths, _: dict.fromkeys(paths, denied))
        outcome = case.check()
        assert outcome.status == "fail"
        assert f"{train} cannot be read by this user" in outcome.message
        assert "chmod" in outcome.remedy

    @pytest.mark.parametrize("cut", [0, 3, 500])
    def test_a_damaged_parquet_file_fails(self, case, train, cut):
        with open(train, "rb+") as file:
            file.truncate(cut)
        outcome = case.check()
        assert outcome.status == "fail"
        assert "no parquet file" in outcome.message

    def test_a_footer_that_is_none_fails(self, case, train):
        with open(train, "rb+") as file:
            file.seek(-200, os.SEEK_END)
            file.write(b"\xff" * 150)
        outcome = case.check()
        assert outcome.status == "fail"
        assert "its footer cannot be read" in outcome.message

    def test_without_a_record_the_content_is_not_known(self, case):
        outcome = case.check(record=False)
        assert outcome.status == "skip"
        assert "1 file, 100 rows; what was in it when the step was written is not recorded" in outcome.message
        assert "ckptsync exec" in outcome.remedy

    def test_without_the_originals_files_nobody_knows(self, tmp_path, step, train):
        outcome = check(context_of(tmp_path, step=step, now=now({TRAIN: train, BATCH: 8})))
        assert outcome.status == "skip"
        assert f"{TRAIN} is not known for the original" in outcome.message
        assert check(context_of(tmp_path, then=then({TRAIN: train}))).status == "skip"


@pytest.fixture
def record_before(case):
    """The launch was recorded where there was a pyarrow."""
    return case


@pytest.mark.usefixtures("record_before", "no_pyarrow")
class TestWithoutPyarrow:
    @pytest.fixture
    def no_pyarrow(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setattr("ckptsync.resume.checks.dataset.has_pyarrow", lambda: False)

    def test_what_is_unchanged_needs_no_pyarrow(self, case):
        outcome = case.check()
        assert outcome.status == "pass"
        assert "stands at sample 80 of 100" in outcome.message  # the recorded rows

    def test_what_changed_fails_without_it(self, case):
        with open(case.settings[TRAIN], "rb+") as file:
            file.seek(20)
            file.write(b"x")
        assert case.check().status == "fail"

    def test_rows_that_nobody_recorded_are_skipped_with_what_to_install(self, case):
        outcome = case.check(record=False)
        assert outcome.status == "skip"
        assert "ckptsync[preflight]" in outcome.remedy

    def test_the_probe_for_pyarrow_finds_it(self, monkeypatch):
        monkeypatch.undo()
        assert datasets.has_pyarrow()


class TestPosition:
    @pytest.mark.parametrize("workers", [0, 8])
    def test_beyond_the_end_fails(self, case, workers):
        state_at(case.step, 104, 13, workers=workers)
        outcome = case.check()
        assert outcome.status == "fail"
        assert "data.pt stands at sample 104, beyond the end of the data (100 rows)" in outcome.message

    @pytest.mark.parametrize(
        ("step", "samples", "ended", "status"),
        [
            (10, 80, False, "pass"),
            (10, 72, False, "pass"),  # one batch off
            (10, 24, False, "warn"),
            (10, 0, False, "warn"),
            (12, 96, False, "pass"),
            (12, 100, True, "pass"),  # the end is the beginning of the next pass
            (12, 0, False, "pass"),
            (13, 8, False, "pass"),
            (13, 48, False, "warn"),
        ],
    )
    def test_it_must_be_about_where_so_many_steps_lead(self, case, tmp_path, step, samples, ended, status):
        case.step = verl_step(tmp_path / "out", step)
        state_at(case.step, samples, samples // 8, ended=ended)
        outcome = case.check()
        assert outcome.status == status
        assert f"data.pt stands at sample {samples} of 100" in outcome.message

    def test_filtered_prompts_and_asynchronous_trainers_are_allowed_for(self, case):
        state_at(case.step, 24, 3)
        case.settings["data.filter_overlong_prompts"] = True
        assert case.check().status == "pass"
        del case.settings["data.filter_overlong_prompts"]
        case.settings["trainer.v1.trainer_mode"] = "colocate_async"
        case.settings["trainer.v1.colocate_async.num_warmup_batches"] = 1.5
        state_at(case.step, 96, 12)
        assert case.check().status == "pass"

    def test_only_so_many_samples_count_as_the_trainer_takes(self, case, tmp_path):
        case.step = verl_step(tmp_path / "out", 10)
        state_at(case.step, 16, 2)
        case.settings["data.train_max_samples"] = 64
        outcome = case.check()
        assert outcome.status == "pass"
        assert "of 64" in outcome.message

    @pytest.mark.parametrize(
        ("wrote", "start", "status"), [(0, 0, "pass"), (0, 8, "fail"), (8, 8, "pass"), (8, 0, "fail"), (8, 4, "fail")]
    )
    def test_another_number_of_workers_cannot_load_the_state(self, case, wrote, start, status):
        state_at(case.step, 80, 10, workers=wrote)
        case.settings["data.dataloader_num_workers"] = start  # as recorded: it is the step that says otherwise
        outcome = case.check()
        assert outcome.status == status
        if status == "fail":
            assert f"of a loader with {wrote} workers" in outcome.message
            assert outcome.remedy == f"add data.dataloader_num_workers={wrote}"

    def test_a_shuffled_position_cannot_be_loaded_without_shuffling(self, case):
        case.settings["data.shuffle"] = True
        assert case.check().status == "pass"
        case.settings["data.shuffle"] = False
        outcome = case.check()
        assert (outcome.status, outcome.remedy) == ("fail", "add data.shuffle=True")

    @pytest.mark.parametrize("name", ["train_max_samples", "filter_overlong_prompts", "shuffle"])
    def test_another_selection_of_the_samples_fails(self, case, name):
        case.settings[f"data.{name}"] = True
        outcome = case.check(**{name: False})
        assert outcome.status == "fail"
        assert f"add data.{name}=True" in outcome.remedy

    def test_batches_alone_are_enough(self, case):
        torch.save({"_sampler_iter_yielded": 10, "_num_yielded": 10}, case.step / "data.pt")
        assert "stands at sample 80" in case.check().message

    def test_a_layered_trainers_state_tells_it_too(self, case, tmp_path):
        case.step = layered_step(tmp_path / "layered", 10)
        path = case.step / "trainer_state.json"
        assert "trainer_state.json stands at sample 80 of 100" in case.check().message
        path.write_text(json.dumps({**json.loads(path.read_text()), "train_dataset_offset": 200}))
        outcome = case.check()
        assert outcome.status == "fail"
        assert "trainer_state.json stands at sample 200, beyond the end" in outcome.message

    def test_sft_tells_the_share_of_one_rank(self, case, tmp_path):
        case.step = verl_sft_step(tmp_path / "sft", 10, world=2)
        torch.save({"_sampler_iter_state": {"samples_yielded": 40}}, case.step / "data_0.pt")
        outcome = case.check()
        assert outcome.status == "pass"
        assert "data_0.pt stands at sample 40 of 100" in outcome.message

    def test_a_state_that_cannot_be_read_is_skipped(self, case):
        (case.step / "data.pt").write_bytes(b"PK\3\4")
        outcome = case.check()
        assert outcome.status == "skip"
        assert "data.pt " in outcome.message
        assert "verify" in outcome.remedy
        torch.save({"something": "else"}, case.step / "data.pt")
        outcome = case.check()
        assert outcome.status == "skip"
        assert "tells no position" in outcome.message

    def test_a_node_without_the_drivers_files_says_nothing_about_it(self, case, tmp_path):
        case.step = verl_step(tmp_path / "other", 10, driver=False)
        assert case.check().status == "pass"

    def test_an_unknown_batch_size_leaves_only_the_end(self, case):
        del case.settings[BATCH]
        assert case.check().status == "pass"
        torch.save({"_sampler_iter_yielded": 10}, case.step / "data.pt")
        assert case.check().status == "skip"


class TestOtherPlaces:
    def test_a_pattern_means_all_files_that_it_matches_and_none_may_be_new_or_gone(self, case, tmp_path):
        pattern = str(tmp_path / "many" / "*.parquet")
        first, second = (table_at(tmp_path / "many" / f"{n}.parquet", 50) for n in (0, 1))
        case.settings[TRAIN] = pattern
        assert list(describe([pattern])) == [first, second]
        case.record = record(datasets=describe([pattern, *case.settings[VAL]]))
        assert "2 files, 100 rows" in case.check().message
        third = table_at(tmp_path / "many" / "2.parquet", 50)
        outcome = case.check()
        assert outcome.status == "fail"
        assert f"{third} was not there then" in outcome.message
        os.unlink(third)
        os.unlink(second)
        outcome = case.check()
        assert outcome.status == "fail"
        assert f"{second} is gone" in outcome.message

    def test_a_relative_path_begins_where_the_trainer_starts(self, case, tmp_path):
        case.settings[TRAIN] = "data/train.parquet"
        assert "1 file, 100 rows" in case.check(cwd=str(tmp_path)).message

    @pytest.mark.parametrize("end", ["\n", ""])
    def test_lines_of_json_are_counted(self, tmp_path, end):
        path = lines_at(tmp_path / "train.jsonl", 100, end=end)
        assert describe([path])[path]["rows"] == 100

    def test_other_json_has_no_rows_but_a_fingerprint(self, tmp_path, monkeypatch):
        path = tmp_path / "train.json"
        path.write_text("[{}, {}]")
        found = describe([str(path)])[str(path)]
        assert "rows" not in found
        assert str(found["fingerprint"]).startswith("size+pieces:")
        path = lines_at(tmp_path / "large.jsonl")
        monkeypatch.setattr(datasets, "_LINES_BYTES_MAX", 100)
        assert "rows" not in describe([path])[path]

    def test_a_change_anywhere_near_a_sampled_piece_is_seen(self, tmp_path):
        path = tmp_path / "large.jsonl"
        path.write_bytes(b"{" + bytes(3 * 1024 * 1024))
        before = describe([str(path)])[str(path)]
        for offset in (0, 16 * 1024 - 1, 3 * 1024 * 1024):
            with path.open("rb+") as file:
                file.seek(offset)
                file.write(b"x")
            after = describe([str(path)])[str(path)]
            assert after["fingerprint"] != before["fingerprint"]
            before = after

    def test_a_place_that_is_not_known_is_said_so(self, tmp_path):
        found = describe(["hdfs://name/train.parquet", str(tmp_path / "none-*.parquet")])
        assert found["hdfs://name/train.parquet"] == {"error": "unknown", "why": "hdfs:// is not read by ckptsync"}
        assert found[str(tmp_path / "none-*.parquet")]["error"] == "missing"

    def test_what_a_launch_records_is_what_can_be_looked_at(self, tmp_path, train, val):
        model = tmp_path / "model"
        model.mkdir()
        (model / "config.json").write_text('{"hidden_size": 64}')
        start = now({TRAIN: [train, "/none.parquet"], VAL: val, "actor_rollout_ref.model.path": str(model)})
        found = describe_inputs(start, node_of(tmp_path), "")
        assert sorted(found) == sorted([train, val, "/none.parquet", str(model)])
        assert found["/none.parquet"]["error"] == "missing"
        assert found[str(model)] == {"architecture": {"hidden_size": 64}}
        assert record(datasets=found).to_bytes()

    def test_far_more_files_than_anybody_has_are_not_all_opened(self, tmp_path, monkeypatch):
        monkeypatch.setattr(datasets, "_FILES_MAX", 1)
        paths = [lines_at(tmp_path / f"{n}.jsonl", 1) for n in range(2)]
        found = describe(paths)
        assert found[paths[0]]["rows"] == 1
        assert found[paths[1]]["error"] == "unknown"


class TestStores:
    @pytest.fixture
    def bucket(self, s3_server, s3_environ, train, tmp_path):  # noqa: ARG002 - points this process to the server
        """`s3://test/<a prefix>/train.parquet`."""
        prefix = f"datasets/{tmp_path.name}"
        store = S3Store("test", endpoint=s3_server.endpoint, client_options={"allow_http": True})
        with open(train, "rb") as file:
            obstore.put(store, f"{prefix}/train.parquet", file.read())
        self.store, self.key = store, f"{prefix}/train.parquet"
        return f"s3://test/{prefix}"

    def test_the_footer_of_an_object_is_read_and_nothing_else(self, case, bucket):
        path = f"{bucket}/train.parquet"
        case.settings[TRAIN] = path
        found = describe([path])
        assert (found[path]["rows"], str(found[path]["fingerprint"]).partition(":")[0]) == (100, "size+footer")
        case.record = record(datasets={**case.record.datasets, **found})
        assert case.check().status == "pass"
        table_at(case.tmp_path / "data" / "train.parquet", 90)
        obstore.put(self.store, self.key, (case.tmp_path / "data" / "train.parquet").read_bytes())
        outcome = case.check()
        assert outcome.status == "fail"
        assert "100 rows then, 90 now" in outcome.message

    def test_patterns_and_missing_objects(self, bucket):
        assert list(describe([f"{bucket}/*.parquet"])) == [f"{bucket}/train.parquet"]
        assert describe([f"{bucket}/none.parquet"])[f"{bucket}/none.parquet"]["error"] == "missing"
        assert describe([f"{bucket}/*/x.parquet"])[f"{bucket}/*/x.parquet"]["error"] == "unknown"
        assert describe([f"{bucket}/a=1.parquet"])[f"{bucket}/a=1.parquet"]["error"] == "unknown"

    @pytest.mark.usefixtures("s3_environ")
    def test_a_store_that_cannot_be_reached_is_skipped(self, case, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        case.settings[TRAIN] = "s3://test/x/train.parquet"
        outcome = case.check()
        assert outcome.status == "skip"
        assert "s3://test/x/train.parquet was not looked at" in outcome.message

    def test_data_is_reached_as_the_checkpoints_store_is(self, tmp_path):
        more = '[upload]\nstore = "s3://b/p"\nendpoint = "http://127.0.0.1:9000"\nregion = "r"'
        place = place_of(node_of(tmp_path, more), "/cwd")
        assert (place.options.endpoint, place.options.region, place.cwd) == ("http://127.0.0.1:9000", "r", "/cwd")
        assert not place.mapped
        assert Place("/cwd").here("x") == "/cwd/x"
