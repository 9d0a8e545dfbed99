"""Would the trainer resume from the newest whole step, or begin at step 0 (or at another step) without a word?"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace

import pytest
from preflighting import fresh, prepared, verified

from ckptsync.actions.push import push_step
from ckptsync.errors import ConflictError
from ckptsync.resume import registry
from ckptsync.resume.checks.tracker import check
from ckptsync.testing.checkpoints import age, hf_step, layered_step, verl_sft_step, verl_step

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def two(out):
    """Steps 20 and 40, whole, and a tracker that says so."""
    age(verl_step(out, 20, world=2), 100)
    verl_step(out, 40, world=2)
    return out


def outcome(tmp_path, *words, **options):
    return check(prepared(fresh(tmp_path), *words, **options))


# -- verl, mode auto


def test_a_tracker_that_names_the_newest_whole_step_passes(two, tmp_path):
    found = outcome(tmp_path, f"trainer.default_local_dir={two}")
    assert (found.status, found.remedy) == ("pass", "")
    assert f"{TRACKER} leads to step 40, the newest whole step" in found.message


def test_without_the_command_it_passes_and_says_what_it_does_not_know(two, tmp_path):
    found = outcome(tmp_path)
    assert found.status == "pass"
    assert "but the trainer's command was not given" in found.message


def test_nothing_anywhere_is_skipped(out, tmp_path):
    assert outcome(tmp_path).status == "skip"
    assert outcome(tmp_path, "trainer.resume_mode=auto").status == "skip"


def test_steps_of_which_none_is_whole_are_a_warning(out, tmp_path):
    (layered_step(out, 20) / "trainer_state.json").unlink()
    found = outcome(tmp_path)
    assert (found.status, "none of 1 step directories here is whole" in found.message) == ("warn", True)
    found = outcome(tmp_path, f"trainer.resume_from_checkpoint={out}/step_60")
    assert (found.status, "is not on this disk" in found.message) == ("fail", True)


def test_a_directory_that_does_not_exist_yet_is_skipped(tmp_path):
    node = fresh(tmp_path)
    (tmp_path / "out").rmdir()
    assert check(prepared(replace(node, local=None, layout=None))).status == "skip"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "is missing in .*: the trainer starts from step 0"),
        ("", "is empty: verl stops"),
        ("twenty", "holds no number: verl stops"),
        ("60", "names step 60, which is not on this disk: the trainer starts from step 0"),
    ],
    ids=["missing", "empty", "junk", "ahead"],
)
def test_a_tracker_that_leads_nowhere_fails_and_fix_writes_it(two, tmp_path, text, why):
    if text is None:
        (two / TRACKER).unlink()
    else:
        (two / TRACKER).write_text(text)
    found = outcome(tmp_path, f"trainer.default_local_dir={two}")
    assert found.status == "fail"
    assert re.search(why, found.message)
    assert "; step 40 is whole on this disk" in found.message
    assert found.remedy.startswith("`ckptsync preflight --fix` points it at step 40; or run `ckptsync pull`")
    before, said = sorted(os.listdir(two)), []
    fixed = outcome(tmp_path, f"trainer.default_local_dir={two}", fix=True, said=said)
    assert fixed.status == "pass"
    assert (two / TRACKER).read_text() == "40"
    assert said == [f"{two / TRACKER} is written: 40"]
    assert sorted(os.listdir(two)) == sorted({*before, TRACKER})


def test_where_no_whole_step_is_left_nobody_is_sent_to_pull_one(out, tmp_path):
    step = verl_step(out, 40, world=2)
    os.truncate(step / "actor/model_world_size_2_rank_1.pt", 900)
    context = prepared(fresh(tmp_path))
    for name in ("tracker", "integrity"):
        found = registry.run(name, context)
        assert (found.status, "pull" in found.remedy) == ("fail", False)
        assert found.remedy.endswith("`ckptsync steps` says what each lacks")
    silent = registry.run("tracker", replace(context, store_asked=False))
    assert silent.remedy.startswith("bring the store back first")


# -- a configuration that does not fit the start


@pytest.mark.parametrize("there", [True, False])
def test_a_start_that_saves_where_nobody_looks_is_no_first_start(out, tmp_path, there):
    words = f"trainer.default_local_dir={tmp_path}/output"
    found = outcome(tmp_path, words)
    assert (found.status, f"{words} is not output_dir, {out}" in found.message) == ("warn", True)
    verl_step(tmp_path / "output", 40)
    node = fresh(tmp_path)
    if not there:
        out.rmdir()
    found = check(prepared(node, words))
    assert (found.status, "and there are steps" in found.message) == ("fail", True)
    assert "[run] output_dir" in found.remedy


def test_a_first_start_below_output_dir_or_by_its_name_in_a_container_or_a_relative_one_is_fine(out, tmp_path):
    for words in (f"{out}", f"{out}/checkpoints", "checkpoints/p/e"):
        assert outcome(tmp_path, f"trainer.default_local_dir={words}").status == "skip"
    node = fresh(tmp_path, 'trainer_dir = "/workspace/ckpt"')
    assert check(prepared(node, "trainer.default_local_dir=/workspace/ckpt")).status == "skip"


def test_steps_of_another_layout_than_the_configured_one_are_no_first_start(out, tmp_path):
    hf_step(out, 40)
    found = check(prepared(fresh(tmp_path, 'layout = "verl"')))
    assert (found.status, found.remedy) == ("fail", 'set [run] layout = "plain", or leave it out')
    assert "of layout plain, and [run] layout = 'verl' does not see them" in found.message
    assert check(prepared(fresh(tmp_path))).status == "pass"


def test_a_tracker_that_names_a_broken_step_fails_and_fix_goes_back_to_the_whole_one(two, tmp_path):
    (two / "global_step_40/actor/optim_world_size_2_rank_1.pt").unlink()
    found = outcome(tmp_path)
    assert (found.status, "step 40, which is not whole; the newest whole step is 20" in found.message) == ("fail", True)
    assert outcome(tmp_path, fix=True).status == "pass"
    assert (two / TRACKER).read_text() == "20"


def test_a_damaged_newest_step_is_not_taken_for_whole(two, tmp_path):
    file = two / "global_step_40/actor/optim_world_size_2_rank_1.pt"
    file.write_bytes(file.read_bytes()[:-100])
    found = outcome(tmp_path)
    assert found.status == "warn", "by its names it is whole: `integrity` says what is wrong with it"
    assert "the newest whole step is 20" in found.message


def test_fix_waits_for_whoever_works_on_the_run(two, tmp_path, monkeypatch):
    monkeypatch.setattr("ckptsync.resume.checks.tracker._LOCK_S", 0.1)
    (two / TRACKER).unlink()
    node = fresh(tmp_path)
    lock = node.lock()
    lock.acquire()
    try:
        with pytest.raises(ConflictError):
            check(prepared(node, fix=True))
    finally:
        lock.release()
    assert not (two / TRACKER).exists()


def test_an_older_step_is_a_warning_that_names_both(two, tmp_path):
    (two / TRACKER).write_text("20")
    found = outcome(tmp_path, f"trainer.default_local_dir={two}")
    assert found.status == "warn"
    assert "leads to step 20; the newest whole step is 40" in found.message


def test_mode_disable_with_steps_fails(two, tmp_path):
    found = outcome(tmp_path, "trainer.resume_mode=disable")
    assert (found.status, "starts from step 0" in found.message) == ("fail", True)
    assert "--fix" not in found.remedy


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["trainer.resume_mode=${oc.env:MODE}"], "warn"),
        (["trainer.resume_mode=auto,disable"], "warn"),
        (["~trainer.resume_mode"], "warn"),
        (["trainer.resume_from_path=${oc.env:FROM}"], "warn"),
        (["trainer.resume_mode=resume_path", "trainer.resume_from_path=${oc.env:FROM}"], "fail"),
    ],
)
def test_what_only_hydra_makes_a_value_of_never_passes(two, tmp_path, words, status):
    found = outcome(tmp_path, f"trainer.default_local_dir={two}", *words)
    assert (found.status, "only the trainer's Hydra can make a value of it" in found.message) == (status, True)


def test_an_unknown_mode_fails(two, tmp_path):
    assert "verl knows auto" in outcome(tmp_path, "trainer.resume_mode=resume").message


def test_another_directory_fails(two, tmp_path):
    found = outcome(tmp_path, f"trainer.default_local_dir={tmp_path}/elsewhere")
    assert found.status == "fail"
    assert f"={tmp_path}/elsewhere is not where the steps are, {two}: the trainer does not see them" in found.message
    assert "--fix" not in found.remedy


def test_a_relative_directory_is_a_warning_even_where_it_fits_from_here(two, tmp_path):
    found = outcome(tmp_path, "trainer.default_local_dir=out", cwd=tmp_path)
    assert (found.status, "is relative" in found.message) == ("warn", True)
    assert outcome(tmp_path, "trainer.default_local_dir=out", cwd=tmp_path.parent).status == "fail"


def test_a_command_that_does_not_name_the_directory_is_a_warning(two, tmp_path):
    found = outcome(tmp_path, "trainer.save_freq=20")
    assert (found.status, "trainer.default_local_dir is not known" in found.message) == ("warn", True)


def test_the_directory_in_the_container_is_ours(two, tmp_path):
    node = fresh(tmp_path, 'trainer_dir = "/workspace/ckpt"')
    assert check(prepared(node, "trainer.default_local_dir=/workspace/ckpt")).status == "pass"
    assert check(prepared(node, "trainer.default_local_dir=/workspace/other")).status == "fail"


def test_a_node_without_the_drivers_files_is_told_so(out, tmp_path):
    age(verl_step(out, 20, world=4, ranks=[2, 3], driver=False), 50)
    context = replace(prepared(fresh(tmp_path)), wanted=20, wanted_path=str(out / "global_step_20"), nodes=2)
    found = check(context)
    assert found.status == "fail"
    assert "the driver was on another node" in found.message


# -- verl, by path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{out}/latest", "a path without global_step_N"),
        ("{out}/global_step_40/", "from the end of the path"),
        ("{out}/global_step_40.partial", "from the end of the path"),
        ("{out}/global_step_60", "is not on this disk"),
        ("", "without trainer.resume_from_path"),
    ],
    ids=["link", "slash", "suffix", "absent", "none"],
)
def test_paths_at_which_verl_stops_fail(two, tmp_path, path, why):
    (two / "latest").symlink_to("global_step_40")
    words = [f"trainer.resume_from_path={path.format(out=two)}"] if path else []
    found = outcome(tmp_path, "trainer.resume_mode=resume_path", *words)
    assert found.status == "fail"
    assert why in found.message


def test_a_slash_at_the_end_of_the_path_is_answered_by_the_path_without_it(two, tmp_path):
    path = f"trainer.resume_from_path={two}/global_step_40"
    assert outcome(tmp_path, "trainer.resume_mode=resume_path", f"{path}/").remedy == f"give {path}"
    found = outcome(tmp_path, "trainer.resume_mode=resume_path", f"{path}.partial")
    assert found.remedy == f"give trainer.resume_from_path={two}/global_step_N, without a slash at the end"


def test_a_path_that_is_not_here_is_answered_by_the_newest_step_that_is(two, tmp_path):
    path = f"trainer.resume_from_path={two}/global_step_60"
    found = outcome(tmp_path, "trainer.resume_mode=resume_path", path)
    assert found.message == f"{path}: it is not on this disk; step 40 is whole on this disk"
    assert found.remedy.startswith(f"name {two}/global_step_40 there; or run `ckptsync pull`")


def test_a_right_path_passes_and_an_older_one_warns(two, tmp_path):
    mode = "trainer.resume_mode=resume_path"
    assert outcome(tmp_path, mode, f"trainer.resume_from_path={two}/global_step_40").status == "pass"
    found = outcome(tmp_path, mode, f"trainer.resume_from_path={two}/global_step_20")
    assert (found.status, "step 20; the newest whole step is 40" in found.message) == ("warn", True)


def test_a_path_counts_without_a_tracker(two, tmp_path):
    (two / TRACKER).unlink()
    words = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={two}/global_step_40")
    assert outcome(tmp_path, *words).status == "pass"


@pytest.mark.parametrize(
    ("given", "status"),
    [("trainer.use_v1=True", "pass"), ("trainer.use_v1=False", "fail"), ("trainer.project_name=p", "warn")],
)
def test_verls_older_trainer_stops_at_a_tracker_without_a_number_whatever_path_it_gets(two, tmp_path, given, status):
    (two / TRACKER).write_text("")
    words = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={two}/global_step_40", given)
    found = outcome(tmp_path, *words)
    assert found.status == status
    assert (f"{TRACKER} is empty: verl stops at it" in found.message) == (status != "pass")
    assert ("`ckptsync pull`" in found.remedy) == (status != "pass")
    if status == "fail":
        assert outcome(tmp_path, *words, fix=True).status == "pass"
        assert (two / TRACKER).read_text() == "40"


@pytest.mark.parametrize(
    ("given", "status"),
    [("trainer.use_v1=True", "pass"), ("trainer.use_v1=False", "fail"), ("trainer.project_name=p", "warn")],
)
def test_verls_older_trainer_stops_at_an_hdfs_directory(two, tmp_path, given, status):
    found = outcome(tmp_path, f"trainer.default_local_dir={two}", "trainer.default_hdfs_dir=hdfs://nn/run", given)
    assert found.status == status
    assert ("leave out trainer.default_hdfs_dir" in found.remedy) == (status != "pass")
    assert (
        outcome(tmp_path, f"trainer.default_local_dir={two}", "trainer.default_hdfs_dir=null", given).status == "pass"
    )


def test_a_path_in_mode_auto_is_ignored_by_ppo_and_taken_by_sft(out, tmp_path):
    age(verl_step(out, 20, world=2), 100)
    verl_step(out, 40, world=2)
    found = outcome(tmp_path, f"trainer.resume_from_path={out}/global_step_20", f"trainer.default_local_dir={out}")
    assert found.status == "fail"
    assert "counts only with trainer.resume_mode=resume_path" in found.message
    shutil.rmtree(out)
    age(verl_sft_step(out, 20, world=2), 100)
    verl_sft_step(out, 40, world=2)
    for path in ("global_step_40", "global_step_40/"):
        assert outcome(tmp_path, f"trainer.resume_from_path={out}/{path}").status == "pass"


# -- other trainers


def test_layered_must_be_told_a_step(out, tmp_path):
    layered_step(out, 40)
    assert "starts from step 0" in outcome(tmp_path, "trainer.total_epochs=3").message
    assert outcome(tmp_path, f"trainer.resume_from_checkpoint={out}/step_40").status == "pass"
    assert outcome(tmp_path, f"trainer.resume_from_checkpoint={out}/step_60").status == "fail"
    assert outcome(tmp_path, f"trainer.resume_from_checkpoint={out}").status == "fail"
    found = outcome(tmp_path)
    assert (found.status, "that `ckptsync exec` adds leads to step 40" in found.message) == ("pass", True)


def test_the_highest_number_counts_for_hugging_face_also_if_it_is_not_whole(out, tmp_path):
    age(hf_step(out, 500), 100)
    assert outcome(tmp_path).status == "pass"
    broken = hf_step(out, 600)
    (broken / "trainer_state.json").unlink()
    found = outcome(tmp_path)
    assert (found.status, "the highest number leads to step 600, which is not whole" in found.message) == ("fail", True)
    assert "--fix" not in found.remedy
    assert outcome(tmp_path, "--resume_from_checkpoint", f"{out}/checkpoint-500").status == "pass"
    assert "starts from step 0" in outcome(tmp_path, "--resume_from_checkpoint=false").message
    assert "the trainer does not see them" in outcome(tmp_path, "--output_dir", "/elsewhere").message


@pytest.mark.parametrize("pointer", ["latest", TRACKER])
def test_pointers_of_deepspeed_and_megatron_count_before_numbers(out, tmp_path, pointer):
    for step in (20, 40):
        directory = out / f"iter_{step:07d}"
        directory.mkdir()
        (directory / "mp_rank_00_model_states.pt").write_bytes(b"opaque")
        os.utime(directory / "mp_rank_00_model_states.pt", (step, step))
    (out / pointer).write_text("40" if pointer == TRACKER else "iter_0000040")
    assert f"{pointer} leads to step 40" in outcome(tmp_path).message
    (out / pointer).write_text("60" if pointer == TRACKER else "iter_0000060")
    found = outcome(tmp_path)
    assert (found.status, "no such step on this disk" in found.message) == ("fail", True)


# -- the store


def test_a_step_that_is_only_in_the_store_fails_with_pull(two, tmp_path):
    node = fresh(tmp_path)
    verified(node)
    push_step(node, 40, progress=lambda _: None)
    shutil.rmtree(two)
    two.mkdir()
    found = outcome(tmp_path)
    assert (found.status, "step 40 is in the store, and no step is here" in found.message) == ("fail", True)
    assert "ckptsync pull" in found.remedy
    age(verl_step(two, 20, world=2), 100)
    assert "leads to step 20; the newest whole step is 40 in the store" in outcome(tmp_path).message
    (two / TRACKER).unlink()
    found = outcome(tmp_path, fix=True)
    assert (found.status, "--fix" in found.remedy) == ("fail", False), "the tracker must not name what is not newest"
    assert not (two / TRACKER).exists()


def test_another_save_of_the_same_number_is_not_taken_for_the_one_in_the_store(two, tmp_path):
    node = fresh(tmp_path)
    verified(node)
    push_step(node, 40, progress=lambda _: None)
    assert outcome(tmp_path).status == "pass"
    shutil.rmtree(two / "global_step_40")
    shutil.rmtree(tmp_path / "state/saves")
    age(verl_step(two, 40, world=2, seed=5), 50)
    found = outcome(tmp_path)
    assert (found.status, "the store has a newer save of this number" in found.message) == ("warn", True)
