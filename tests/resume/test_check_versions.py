"""The check `versions`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from resuming import context_of, record

from ckptsync.resume.checks.versions import check
from ckptsync.testing.checkpoints import verl_step

WROTE = {"torch": "2.8.0+cu128", "verl": "0.9.1", "vllm": "0.11.0", "transformers": "4.57.1", "CUDA": "12.8"}


def outcome_of(tmp_path, found, wrote=WROTE):
    python = SimpleNamespace(versions=lambda: found)
    return check(context_of(tmp_path, record=record(versions=wrote), python=python))


def test_the_recorded_versions_pass_and_so_does_another_patch(tmp_path):
    assert outcome_of(tmp_path, WROTE).status == "pass"
    outcome = outcome_of(tmp_path, {**WROTE, "torch": "2.8.1+cu129"})
    assert outcome.status == "pass"
    assert "torch 2.8.0+cu128, now 2.8.1+cu129" in outcome.message


@pytest.mark.parametrize(
    ("package", "version"),
    [("torch", "2.9.0"), ("verl", "0.8.0"), ("verl", "0.10.0"), ("transformers", "5.24.0"), ("vllm", "0.12.0")],
)
def test_another_major_or_minor_is_a_warning_with_both(tmp_path, package, version):
    outcome = outcome_of(tmp_path, {**WROTE, package: version})
    assert outcome.status == "warn"
    assert f"{package}: {WROTE[package]} wrote the step, now {version}" in outcome.message
    assert outcome.remedy.startswith(f"install {package} {WROTE[package]}")


def test_a_torch_older_than_the_one_that_wrote_the_step_fails(tmp_path):
    outcome = outcome_of(tmp_path, {**WROTE, "torch": "2.7.1"})
    assert outcome.status == "fail"
    assert "older" in outcome.message
    assert outcome.remedy == "install torch 2.8.0+cu128"


def test_a_package_that_is_gone_is_a_warning(tmp_path):
    outcome = outcome_of(tmp_path, {name: version for name, version in WROTE.items() if name != "vllm"})
    assert outcome.status == "warn"
    assert "vllm: 0.11.0, and now it is not installed" in outcome.message


def test_a_version_that_is_none_is_skipped(tmp_path):
    outcome = outcome_of(tmp_path, {**WROTE, "verl": "main"})
    assert outcome.status == "skip"
    assert "cannot be compared" in outcome.message


def test_without_record_or_interpreter_nobody_knows(tmp_path):
    python = SimpleNamespace(versions=lambda: WROTE)
    outcome = check(context_of(tmp_path, step=verl_step(tmp_path / "out", 10), python=python))
    assert outcome.status == "skip"
    assert "ckptsync exec" in outcome.remedy
    outcome = check(context_of(tmp_path, record=record(versions=WROTE)))
    assert outcome.status == "skip"
    assert "--python" in outcome.remedy
    assert outcome_of(tmp_path, {}).status == "skip"
    without = {name: version for name, version in WROTE.items() if name != "torch"}
    outcome = outcome_of(tmp_path, WROTE, without)
    assert (outcome.status, outcome.remedy.count("ckptsync exec --python")) == ("skip", 1)


def test_the_step_itself_tells_the_transformers_that_wrote_it_and_no_more(tmp_path):
    step = verl_step(tmp_path / "out", 10)
    (step / "actor" / "huggingface" / "config.json").write_text(json.dumps({"transformers_version": "4.57.1"}))
    outcome = check(context_of(tmp_path, step=step, python=SimpleNamespace(versions=lambda: WROTE)))
    assert outcome.status == "skip"
    assert "the torch that wrote the step is not known" in outcome.message
    newer = SimpleNamespace(versions=lambda: {**WROTE, "transformers": "5.24.0"})
    outcome = check(context_of(tmp_path, step=step, python=newer))
    assert outcome.status == "warn"
    assert "transformers: 4.57.1 wrote the step, now 5.24.0" in outcome.message
