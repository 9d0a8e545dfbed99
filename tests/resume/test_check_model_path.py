"""The check `model_path`, on model directories with real small files."""

from __future__ import annotations

import json

import pytest
from resuming import MODEL, context_of, now, record, then

from ckptsync.resume.checks.model_path import check
from ckptsync.resume.contents.models import describe_model
from ckptsync.testing.checkpoints import verl_step

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2}
VOCAB = {"a": 0, "b": 1, "ab": 2}


def tokenizer(merges, vocab=None):
    """A tokenizer.json; transformers 4 wrote merges as text, 5 writes pairs."""
    added = [{"id": 3, "content": "<|end|>", "special": True}]
    return {
        "version": "1.0",
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocab or VOCAB, "merges": merges},
    }


def model_at(path, *, merges=("a b",), vocab=None, config=None, **changes):
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **changes} if config is None else config))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer(list(merges), vocab), indent=1))
    return path


@pytest.fixture
def model(tmp_path):
    return model_at(tmp_path / "model")


@pytest.fixture
def step(tmp_path):
    """A step whose huggingface/ holds what a newer library writes of the same model."""
    step = verl_step(tmp_path / "out", 10)
    inside = step / "actor" / "huggingface"
    (inside / "config.json").write_text(json.dumps({**CONFIG, "transformers_version": "5.24.0", "use_cache": False}))
    (inside / "tokenizer.json").write_text(json.dumps(tokenizer([["a", "b"]]), sort_keys=True))
    return step


def path_of(path):
    return {f"{MODEL}.path": str(path)}


def test_the_same_path_to_the_same_model_passes(tmp_path, model, step):
    outcome = check(context_of(tmp_path, step=step, then=then(path_of(model)), now=now(path_of(f"{model}/"))))
    assert outcome.status == "pass"
    assert "same tokenizer as actor/huggingface" in outcome.message
    assert "same architecture as actor/huggingface" in outcome.message


def test_a_relative_path_is_the_one_that_the_trainer_sees(tmp_path, model):
    context = context_of(tmp_path, then=then(path_of(model)), now=now(path_of("model")), cwd=str(tmp_path))
    assert check(context).status == "pass"


def test_a_hub_id_in_place_of_a_directory_fails_and_says_which_is_which(tmp_path, model, step):
    context = context_of(tmp_path, step=step, then=then(path_of(model)), now=now(path_of("Qwen/Qwen3-0.6B")))
    outcome = check(context)
    assert outcome.status == "fail"
    assert f"the original had {model} (a directory), the start has Qwen/Qwen3-0.6B (a name on a hub)" in outcome.message
    assert outcome.remedy == f"add {MODEL}.path={model}"


def test_another_path_to_what_looks_the_same_is_a_warning_since_weights_were_not_compared(tmp_path, model, step):
    context = context_of(tmp_path, step=step, then=then(path_of("Qwen/Qwen3-0.6B")), now=now(path_of(model)))
    outcome = check(context)
    assert outcome.status == "warn"
    assert "weights were not compared" in outcome.message
    assert outcome.remedy == f"add {MODEL}.path=Qwen/Qwen3-0.6B"


def test_a_directory_that_is_not_here_is_a_warning_unless_the_trainer_sees_other_paths(tmp_path):
    gone, words = (
        str(tmp_path / "gone"),
        {"then": then(path_of(tmp_path / "gone")), "now": now(path_of(tmp_path / "gone"))},
    )
    found = check(context_of(tmp_path, **words))
    assert (found.status, found.message) == ("warn", f"{gone} is not a directory on this host")
    assert check(context_of(tmp_path, more='trainer_dir = "/workspace/ckpt"', **words)).status == "pass"
    for elsewhere in ("Qwen/Qwen3-0.6B", "hdfs://models/x"):
        named = {"then": then(path_of(elsewhere)), "now": now(path_of(elsewhere))}
        assert check(context_of(tmp_path, **named)).status == "pass"


def test_another_path_about_which_nothing_can_be_compared_fails(tmp_path, model):
    context = context_of(tmp_path, then=then(path_of("Qwen/Qwen3-0.6B")), now=now(path_of(model)))
    assert check(context).status == "fail"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers: 2, now 3"),
        ({"vocab": {**VOCAB, "c": 4}}, "vocab: "),
        ({"merges": ("b a",)}, "merges: "),
    ],
)
def test_a_model_that_was_exchanged_under_the_same_path_fails(tmp_path, model, step, change, told):
    model_at(model, **change)
    outcome = check(context_of(tmp_path, step=step, then=then(path_of(model)), now=now(path_of(model))))
    assert outcome.status == "fail"
    assert told in outcome.message
    assert "actor/huggingface" in outcome.message


def test_the_record_knows_the_tokenizer_where_the_step_has_none(tmp_path, model):
    known = record(datasets={str(model): describe_model(str(model))})
    same = {"then": then(path_of(model)), "now": now(path_of(model)), "record": known}
    assert "same tokenizer as the record" in check(context_of(tmp_path, **same)).message
    model_at(model, vocab={"a": 0})
    outcome = check(context_of(tmp_path, **same))
    assert outcome.status == "fail"
    assert "differs from the record" in outcome.message


def test_sentencepiece_files_are_compared_by_their_bytes(tmp_path, step):
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.model").write_bytes(b"one")
    (step / "actor" / "huggingface" / "tokenizer.model").write_bytes(b"two")
    outcome = check(context_of(tmp_path, step=step, then=then(path_of(model)), now=now(path_of(model))))
    assert outcome.status == "fail"
    assert "tokenizer.model: " in outcome.message


def test_parts_of_a_multimodal_model_are_compared_too(tmp_path, model, step):
    nested = {"model_type": "qwen3_vl", "text_config": {"hidden_size": 64}, "vision_config": {"hidden_size": 32}}
    (step / "actor" / "huggingface" / "config.json").write_text(json.dumps(nested))
    model_at(model, config={**nested, "text_config": {"hidden_size": 128}})
    outcome = check(context_of(tmp_path, step=step, then=then(path_of(model)), now=now(path_of(model))))
    assert "text_config.hidden_size: 64, now 128" in outcome.message


def test_without_the_originals_path_nobody_knows_even_if_the_step_fits(tmp_path, model, step):
    outcome = check(context_of(tmp_path, step=step, now=now(path_of(model))))
    assert outcome.status == "skip"
    assert "not known for the original" in outcome.message
    assert check(context_of(tmp_path, then=then(path_of(model)))).status == "skip"
    model_at(model, hidden_size=128)
    assert check(context_of(tmp_path, step=step, now=now(path_of(model)))).status == "fail"


def test_files_that_cannot_be_read_as_json_say_nothing(tmp_path, model, step):
    (model / "config.json").write_text("{")
    (model / "tokenizer.json").write_text("[1]")
    outcome = check(context_of(tmp_path, step=step, then=then(path_of(model)), now=now(path_of(model))))
    assert (outcome.status, outcome.message) == ("pass", f"the original's model: {model}")
