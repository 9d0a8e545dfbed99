"""What a train log says of a resume, line for line as trainers print them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_logs import RAY, layered_start, legacy_start, step_line, steps, v1_start

from ckptsync.resume.confirmation.confirm import Confirming, Expected, confirm, steps_of

BEFORE = steps(1, 44)
SCRATCH = f"{RAY}INFO:2026-01-02 03:04:05,678:Training from scratch\n"


def outcome(log, name, **expected):
    found = dict(confirm(log, Expected(**expected)).checks)[name]
    assert found.status in ("pass", "warn") or found.remedy
    assert "\n" not in found.message
    return found.status, found.message


def after(*changes, start=None, first=41, before=BEFORE):
    """A training that was at step 44, and resumed from step 40."""
    changed = dict(changes)
    return [*before, *(v1_start(40) if start is None else start), *steps(first, first + 2, **changed)]


# -- a resume that goes on


@pytest.mark.parametrize("start", [v1_start(40), legacy_start(40)], ids=["v1", "legacy"])
def test_a_sound_resume_passes_every_check_that_verls_log_allows(start):
    found = confirm(after(start=start), Expected(step=40))
    assert {name: outcome.status for name, outcome in found.checks} == {
        "resumed": "pass",
        "first_step": "pass",
        "epoch": "pass",
        "optimizer": "skip",
        "dataloader": "pass",
        "learning_rate": "pass",
        "loss": "pass",
        "rollouts": "pass",
        "state_dict": "pass",
        "memory": "pass",
    }
    assert (found.ok, found.step, found.first, found.pending) == (True, 40, 41, False)
    assert found.line == "the training goes on from step 40"
    assert {"ok", "step", "first", "pending", "checks"} == found.to_json().keys()


def test_a_layered_debug_run_is_compared_with_what_the_step_holds():
    log = [*layered_start(40, 2, 12800), *steps(41, 41)]
    found = dict(confirm(log, Expected(step=40, epoch=2, offset=12800)).checks)
    assert [found[name].status for name in ("resumed", "epoch", "optimizer", "dataloader")] == ["pass"] * 4
    assert outcome(log, "epoch", step=40, epoch=1) == ("fail", "epoch 2, saved was 1")
    assert outcome(log, "dataloader", step=40, offset=6400) == ("fail", "dataloader offset 12800, saved was 6400")
    assert outcome(log, "dataloader", step=40)[0] == "warn"
    fresh = [*layered_start(40, 2, 12800, optimizer=0), *steps(41, 41)]
    assert outcome(fresh, "optimizer", step=40) == ("fail", "optimizer step 0, saved was 40")


def test_a_layered_run_without_debug_says_nothing_of_its_dataloader():
    assert outcome([layered_start(40, 2, 0)[0], *steps(41, 41)], "dataloader", step=40)[0] == "skip"


def test_the_log_before_may_be_another_file():
    log = [*v1_start(40), *steps(41, 43)]
    assert outcome(log, "loss", step=40)[0] == "skip"
    assert outcome(log, "learning_rate", step=40)[0] == "skip"
    assert outcome(log, "loss", before=steps_of(BEFORE))[0] == "pass"
    assert outcome(log, "learning_rate", before=steps_of(BEFORE))[0] == "pass"


# -- one that does not


def test_training_from_scratch_fails():
    found = confirm([*BEFORE, SCRATCH, *steps(1, 3)], Expected(step=40))
    assert dict(found.checks)["resumed"].status == "fail"
    assert not found.ok
    assert found.line.startswith("the training does not go on from step 40: the log says that it trains from nothing")


def test_scratch_fails_before_any_step_and_is_not_waited_for():
    found = confirm([SCRATCH], Expected(step=40))
    assert (found.ok, found.pending) == (False, False)


def test_another_step_than_wanted_fails():
    assert outcome(after(), "resumed", step=20) == ("fail", "it resumed from step 40, not step 20")


@pytest.mark.parametrize(("first", "status"), [(41, "pass"), (42, "fail"), (40, "fail"), (1, "fail"), (81, "fail")])
def test_the_first_step_must_be_the_next_one(first, status):
    assert outcome(after(first=first), "first_step", step=40)[0] == status


def test_a_restart_without_a_word_is_seen_by_the_number_that_goes_down():
    """verl 0.9.1 V1 prints nothing with resume_mode=disable."""
    found = confirm([*BEFORE, *steps(1, 3)], Expected(step=40))
    assert dict(found.checks)["first_step"].message == "the first step is 1 (it began anew), it should be 41"
    assert not confirm([*BEFORE, *steps(1, 3)], Expected()).ok, "also where nobody says what it should be"
    assert dict(found.checks)["resumed"].status == "skip"


def test_without_stderr_the_validation_before_training_tells_the_step():
    """verl's V1 trainer says `Resuming from` on stderr; `step:40 - val-...` goes to stdout."""
    quiet = v1_start(40)[2:]
    log = [*BEFORE, *quiet, *steps(41, 43)]
    assert outcome(log, "resumed", step=40) == ("pass", "it had validated before its first step at step 40")
    assert confirm(log, Expected()).step == 40
    assert outcome(log, "resumed", step=20)[0] == "fail"
    assert outcome([*BEFORE, *v1_start(0)[2:], *steps(1, 3)], "resumed", step=40)[0] == "fail"


def test_a_validation_after_a_step_begins_nothing():
    """verl's SFT trainer logs it in a line of its own."""
    log = [*BEFORE, *v1_start(40), step_line(41), "step:41 - val/loss:0.5\n", step_line(42)]
    assert confirm(log, Expected(step=40)).ok
    assert confirm(log, Expected(step=40)).first == 41


def test_a_trainer_that_logs_every_tenth_step_may_begin_with_the_tenth():
    log = [*(step_line(step) for step in (10, 20, 30, 40)), *v1_start(45), step_line(50), step_line(60)]
    assert outcome(log, "first_step", step=45)[0] == "pass"
    assert outcome([*log[:-2], step_line(60)], "first_step", step=45)[0] == "fail"


def test_the_newest_start_counts():
    """Two crashes while loading, then one that works."""
    crash = [*v1_start(40)[:1], f"{RAY}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"]
    found = confirm([*BEFORE, *crash, *crash, *v1_start(20), *steps(21, 23)], Expected(step=20))
    assert found.ok
    assert (found.step, found.first) == (20, 21)


def test_the_command_and_the_configuration_mark_a_start_too():
    oom = f"{RAY}ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization.\n"
    again = "+ python3 -m verl.trainer.main_ppo trainer.resume_mode=auto\n"
    assert confirm([*BEFORE, again, oom, again, *v1_start(40), *steps(41, 43)], Expected(step=40)).ok
    assert not confirm([*BEFORE, again, *v1_start(40), oom], Expected(step=40)).ok


def test_a_log_without_a_step_after_the_start_is_pending_and_confirms_nothing():
    found = confirm([*BEFORE, *v1_start(40)], Expected(step=40))
    assert (found.pending, found.ok) == (True, False)
    assert dict(found.checks)["first_step"].status == "fail"
    assert confirm([], Expected(step=40)).pending


def test_the_last_line_of_a_run_that_ended_early_is_shown():
    log = [*v1_start(40), "FileNotFoundError: /c/global_step_40/actor/model_world_size_8_rank_3.pt\n"]
    assert "rank_3.pt" in outcome(log, "first_step", step=40)[1]


# -- data


@pytest.mark.parametrize(
    "line",
    [
        f"{RAY}WARNING:Warning: No dataloader state found at /c/global_step_40/data.pt, will start from scratch\n",
        "Warning: No dataloader state found at /c/global_step_40/data.pt, will start from scratch\n",
    ],
)
def test_data_that_begins_anew_fails(line):
    log = [*BEFORE, v1_start(40)[0], line, *steps(41, 43)]
    assert outcome(log, "dataloader", step=40)[0] == "fail"
    assert outcome(log, "resumed", step=40)[0] == "pass", "`start from scratch` speaks of the data only"


def test_an_epoch_that_goes_back_fails():
    assert outcome(after(("training/epoch", 0)), "epoch", step=40)[0] == "fail"
    assert outcome(after(("training/epoch", 2)), "epoch", step=40)[0] == "pass"
    assert outcome(after(("training/epoch", 3)), "epoch", step=40)[0] == "fail"


# -- learning rate


def schedule(first, last, rate):
    return [step_line(step, actor__lr=rate(step)) for step in range(first, last + 1)]


def warm_up(step):
    return 1e-6 * min(step / 50, 1.0)


def cosine(step):
    return 5e-7 * (1 + math.cos(math.pi * step / 100))


@pytest.mark.parametrize("rate", [warm_up, cosine, lambda _: 1e-6])
@pytest.mark.parametrize("crashed_at", [40, 47])
def test_a_schedule_that_goes_on_passes_and_one_that_starts_again_fails(rate, crashed_at):
    before = [*schedule(1, crashed_at, rate), *v1_start(40)]
    assert outcome([*before, *schedule(41, 43, rate)], "learning_rate", step=40)[0] == "pass"
    again = [step_line(step, actor__lr=warm_up(step - 40)) for step in range(41, 44)]
    status, message = outcome([*before, *again], "learning_rate", step=40)
    assert status == "fail"
    assert "jumps" in message


def test_one_value_before_cannot_tell_a_schedule():
    log = [*schedule(40, 40, lambda _: 1e-6), *v1_start(40), *schedule(41, 41, lambda _: 2e-6)]
    assert outcome(log, "learning_rate", step=40)[0] == "warn"


def test_every_learning_rate_counts():
    before = [step_line(step, critic__lr=1e-5) for step in range(1, 45)]
    log = [*before, *v1_start(40), *(step_line(step, critic__lr=0.0) for step in (41, 42))]
    assert outcome(log, "learning_rate", step=40) == ("fail", "critic/lr jumps: 1e-05 at step 40, 0 at step 41")


# -- loss


@pytest.mark.parametrize(
    ("value", "status"), [(0.03, "pass"), (0.045, "pass"), (0.08, "warn"), (0.5, "fail"), (-0.5, "fail")]
)
def test_a_loss_is_compared_with_the_band_of_the_steps_before(value, status):
    assert outcome(after(("actor/loss", value)), "loss", step=40)[0] == status


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_fails(value):
    status, message = outcome(after(("actor/pg_loss", value)), "loss", step=40)
    assert (status, message) == ("fail", "actor/pg_loss is not a number at step 41")


def test_one_odd_batch_of_three_is_not_a_jump():
    log = [*BEFORE, *v1_start(40), step_line(41), step_line(42, actor__loss=5.0), step_line(43)]
    assert outcome(log, "loss", step=40)[0] == "pass"


def test_rewards_that_fall_are_worth_a_look():
    assert outcome(after(("critic/score/mean", 0.0)), "loss", step=40)[0] == "warn"


def test_steps_of_long_ago_say_nothing():
    log = [*steps(1, 44), *v1_start(400), *steps(401, 403)]
    assert outcome(log, "loss", step=400)[0] == "skip"


def test_a_loss_next_to_zero_may_wobble():
    before = [step_line(step, actor__pg_loss=1e-9 * step) for step in range(1, 45)]
    log = [*before, *v1_start(40), *(step_line(step, actor__pg_loss=-2e-4) for step in (41, 42))]
    assert outcome(log, "loss", step=40)[0] == "pass"


# -- rollouts

SAME_LENGTH = (("response_length/min", 512.0), ("response_length/max", 512.0))
SAME_SCORE = (("critic/score/min", 0.0), ("critic/score/max", 0.0))
NO_SIGNAL = (("critic/advantages/min", 0.0), ("critic/advantages/max", 0.0))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ((), "pass"),
        (SAME_LENGTH, "warn"),
        (SAME_SCORE, "warn"),
        (NO_SIGNAL, "warn"),
        ((*SAME_SCORE, *NO_SIGNAL), "warn"),
        ((*SAME_LENGTH, *SAME_SCORE), "fail"),
        ((*SAME_LENGTH, *SAME_SCORE, *NO_SIGNAL), "fail"),
    ],
)
def test_rollouts_that_are_all_alike(changes, status):
    assert outcome(after(*changes), "rollouts", step=40)[0] == status


def test_rollouts_that_were_alike_before_are_no_news():
    """Binary rewards of a hard task: every score is 0, before and after."""
    before = steps(1, 44, **dict(SAME_SCORE))
    assert outcome(after(*SAME_SCORE, before=before), "rollouts", step=40)[0] == "pass"
    assert outcome(after(*SAME_SCORE, *SAME_LENGTH, before=before), "rollouts", step=40)[0] == "fail"


def test_one_batch_alike_of_three_is_chance():
    log = [*BEFORE, *v1_start(40), step_line(41, **dict(SAME_SCORE)), step_line(42)]
    assert outcome(log, "rollouts", step=40)[0] == "pass"


def test_without_metrics_of_rollouts_nothing_is_known():
    log = [*v1_start(40), "step:41 - train/loss:0.5\n"]
    assert outcome(log, "rollouts", step=40)[0] == "skip"


# -- complaints


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Error(s) in loading state_dict for FullyShardedDataParallel:\n",
        '\tMissing key(s) in state_dict: "model.layers.0.self_attn.q_proj.weight". \n',
        '(WorkerDict pid=12) \tUnexpected key(s) in state_dict: "model.layers.0.mlp.gate.weight". \n',
        "\tsize mismatch for lm_head.weight: copying a param with shape torch.Size([8]) from checkpoint\n",
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.lm_head.exp_avg.\n",
        "_IncompatibleKeys(missing_keys=['lm_head.weight'], unexpected_keys=[])\n",
        "unexpected keys: ['a.b', 'c']\n",
    ],
    ids=lambda line: line[:40],
)
def test_keys_that_do_not_fit_fail(line):
    assert outcome([*BEFORE, v1_start(40)[0], line], "state_dict", step=40)[0] == "fail"
    assert not confirm([*BEFORE, *v1_start(40), line, *steps(41, 43)], Expected(step=40)).pending


@pytest.mark.parametrize("line", ["<All keys matched successfully>\n", "missing_keys=[], unexpected_keys=[]\n"])
def test_keys_that_fit_pass(line):
    assert outcome([v1_start(40)[0], line, *steps(41, 41)], "state_dict", step=40)[0] == "pass"


def test_weights_that_came_from_no_file_are_worth_a_look():
    line = "Some weights of Qwen2ForTokenClassification were not initialized from the model checkpoint at /m and are "
    line += "newly initialized: ['score.weight']\n"
    assert outcome([v1_start(40)[0], line, *steps(41, 41)], "state_dict", step=40)[0] == "warn"


OUT_OF_MEMORY = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.1 GiB\n",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
    "(raylet) 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n",
    "ValueError: Free memory on device (10.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.6)\n",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n",
]


@pytest.mark.parametrize("line", OUT_OF_MEMORY, ids=lambda line: line[:30])
def test_memory_that_runs_out_fails(line):
    assert outcome([*BEFORE, *v1_start(40), line], "memory", step=40)[0] == "fail"
    assert outcome([*BEFORE, *v1_start(40), line, *steps(41, 42)], "memory", step=40)[0] == "warn", "it trained on"
    assert outcome([*BEFORE, *v1_start(40), *steps(41, 42), line], "memory", step=40)[0] == "fail"
    assert outcome([*BEFORE, line, *v1_start(40), *steps(41, 42)], "memory", step=40)[0] == "pass", "the crash before"


def test_before_the_first_step_nothing_is_said_of_keys_and_memory():
    assert outcome(v1_start(40), "state_dict", step=40)[0] == "skip"
    assert outcome(v1_start(40), "memory", step=40)[0] == "skip"


# -- logs that grow


def test_a_log_that_grows_says_the_same_as_the_whole():
    log = after()
    confirming = Confirming(Expected(step=40))
    for line in log:
        confirming.feed([line])
    assert confirming.result() == confirm(log, Expected(step=40))


def test_more_steps_may_be_wanted_before_anything_is_judged():
    log = [*BEFORE, *v1_start(40), *steps(41, 42)]
    assert confirm(log, Expected(step=40, steps=3)).pending
    assert not confirm([*log, step_line(43)], Expected(step=40, steps=3)).pending


def test_a_long_training_is_kept_in_bounds():
    log = [*steps(1, 200), *v1_start(150), *steps(151, 400), *v1_start(390), *steps(391, 392)]
    found = confirm(log, Expected())
    assert (found.ok, found.step, found.first) == (True, 390, 391)
    assert [logged.step for logged in steps_of(log)] == list(range(1, 401))


LINES = st.sampled_from(
    [*after()[35:], SCRATCH, *OUT_OF_MEMORY, *layered_start(40, 2, 7), *legacy_start(20), "{'a': {\n"]
)


@given(st.lists(LINES | st.text(max_size=40), max_size=40))
def test_no_log_makes_it_raise(log):
    found = confirm(log, Expected(step=40))
    assert len(found.checks) == 10
    assert found.line.isprintable()
