from __future__ import annotations

import json

import pytest

from ckptsync.layouts.verl_layered import VerlLayered
from ckptsync.testing.checkpoints import layered_step

LAYERED = VerlLayered()
NEEDED = [
    "actor/optimizer.pt",
    "actor/pytorch_model.bin",
    "actor/scheduler.pt",
    "ref/pytorch_model.bin",
    "trainer_state.json",
]


@pytest.fixture
def step(tmp_path):
    return layered_step(tmp_path, 120, n=64)


@pytest.fixture
def check_with(step, sizes_of):
    """The content check after `edit` has changed the trainer's state."""

    def run(edit, number=120):
        path = step / "trainer_state.json"
        state = json.loads(path.read_text())
        edit(state)
        path.write_text(json.dumps(state))
        found = LAYERED.check(sizes_of(step), number, lambda path: (step / path).read_bytes())
        return [(problem.code, problem.message) for problem in found]

    return run


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("step_120", 120),
        ("step_0", 0),
        ("step-120", None),
        ("step_0120", None),
        ("tmp_step_120", None),
        ("step_", None),
    ],
)
def test_step_names_are_strict(name, number):
    assert LAYERED.step_of(name) == number


def test_a_complete_step_lacks_nothing(step, sizes_of, check_with):
    assert LAYERED.missing(sizes_of(step)) == LAYERED.missing_here(sizes_of(step), {}) == ()
    assert check_with(lambda _: None) == []


def test_the_engines_state_is_optional(tmp_path, sizes_of):
    assert LAYERED.missing(sizes_of(layered_step(tmp_path, 1, rollout=False, n=64))) == ()


@pytest.mark.parametrize("path", NEEDED)
def test_every_other_file_is_needed(step, sizes_of, faults, path):
    (step / path).unlink()
    assert faults(LAYERED.missing(sizes_of(step))) == [(path, "missing")]
    assert faults(LAYERED.missing_here(sizes_of(step), {})) == [(path, "missing")]


def test_the_state_is_the_last_file_and_closes_the_step(tmp_path, sizes_of):
    order = []
    step = layered_step(tmp_path, 7, n=64, pause=order.append)
    assert order[-1] == "step_7/trainer_state.json"
    assert LAYERED.closing(sizes_of(step)) == {"trainer_state.json"}


def test_a_node_with_only_an_engine_waits_for_nothing_it_never_wrote():
    assert LAYERED.missing_here({"rollout/engine_state.json": 9}, {}) == ()
    (problem,) = LAYERED.missing_here({"rollout/engine_state.json": 9}, {("actor", "model"): 1})
    assert problem.path == "actor"


@pytest.mark.parametrize(
    ("key", "value", "code", "said"),
    [
        ("global_step", None, "global-step", "not a whole number: None"),
        ("global_step", "120", "global-step", "not a whole number: '120'"),
        ("global_step", True, "global-step", "not a whole number: True"),
        ("global_step", 119, "global-step", "119, in the directory of step 120"),
        ("epoch", "1", "epoch", "not a number"),
        ("epoch", True, "epoch", "not a number"),
        ("rng_states", [], "rng-state", "not an object"),
        ("rng_states", None, "rng-state", "rng_states is missing"),
        ("dataloader_state", None, "dataloader-state", "missing"),
    ],
)
def test_a_bad_value_is_named(check_with, key, value, code, said):
    ((found, message),) = check_with(lambda state: state.update({key: value}))
    assert found == code
    assert said in message


@pytest.mark.parametrize("key", ["global_step", "epoch", "rng_states", "dataloader_state"])
def test_a_missing_key_is_named(check_with, key):
    ((_, message),) = check_with(lambda state: state.pop(key))
    assert message == f"{key} is missing"


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "cuda"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is missing"),
        ("", "is empty"),
        ([], "is empty"),
        ({}, "is empty"),
        ("not base64!", "is not valid base64"),
        ("YWJj\n", "is not valid base64"),
        ("é" * 4, "is not valid base64"),
        (["YWJj", "YW"], "is not valid base64"),
        (["YWJj", ""], "is not valid base64"),
    ],
)
def test_a_bad_generator_state_is_named(check_with, name, value, said):
    found = check_with(lambda state: state["rng_states"].update({name: value}))
    assert found == [("rng-state", f"rng_states.{name} {said}")]


@pytest.mark.parametrize(
    "value", ["YWJj", ["YWJj", "ZGVm"], [3, [1, 2, 3], None], {"state": "any"}, ["MT19937", [1, 2], 624]]
)
def test_generator_states_of_other_shapes_pass(check_with, value):
    assert check_with(lambda state: state["rng_states"].update(python=value)) == []


@pytest.mark.parametrize("epoch", [0, 3, 1.5])
def test_an_epoch_may_be_a_fraction(check_with, epoch):
    assert check_with(lambda state: state.update(epoch=epoch)) == []


def test_all_faults_are_told_at_once(step, sizes_of):
    (step / "actor/optimizer.pt").write_bytes(b"")
    (step / "actor/scheduler.pt").write_bytes(b"")
    (step / "trainer_state.json").write_text('{"rng_states": {"torch": "YWJj"}}')
    found = LAYERED.check(sizes_of(step), 120, lambda path: (step / path).read_bytes())
    assert [(p.path, p.code) for p in found] == [
        ("actor/optimizer.pt", "empty"),
        ("actor/scheduler.pt", "empty"),
        ("trainer_state.json", "global-step"),
        ("trainer_state.json", "epoch"),
        *[("trainer_state.json", "rng-state")] * 3,
        ("trainer_state.json", "dataloader-state"),
    ]


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"'])
def test_a_state_that_does_not_parse_is_one_problem(step, sizes_of, faults, text):
    (step / "trainer_state.json").write_text(text)
    found = LAYERED.check(sizes_of(step), 120, lambda path: (step / path).read_bytes())
    assert faults(found) == [("trainer_state.json", "json")]


def test_the_resume_leaves_the_engines_state_alone():
    assert LAYERED.resume_args("/out/step_120") == [
        "trainer.resume_from_checkpoint=/out/step_120",
        "--no-rollout-state-restore",
    ]
