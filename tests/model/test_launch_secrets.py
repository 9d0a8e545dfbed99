"""What must not be kept of a command line or of settings is not, and settings that only look like it are."""

from __future__ import annotations

import pytest

from ckptsync.model.secrets import HIDDEN, hide, hide_text, hide_words, is_secret

SECRET = "s3cr3t-Value.9"


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_password", "wandb.api_key", "WANDB_API_KEY", "HF_TOKEN", "token", "hub-token", "apikey"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "clientSecret", "s3.credentials.user", "private_key"),
        *("model@secrets.x", "auth_key", "accessToken", "passphrase"),
    ],
)
def test_names_that_speak_of_secrets(name):
    assert is_secret(name, SECRET)
    assert hide(name, SECRET) == HIDDEN
    assert hide(name, [SECRET, SECRET]) == [HIDDEN, HIDDEN]
    assert hide(name.split(".")[0], {name: {"x": SECRET}}) == {name: {"x": HIDDEN}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 16384),
        ("data.max_tokens", "8192"),
        ("optim.tokens", 1.5e9),
        ("data.tokenizer", "/models/tokenizer"),
        ("actor_rollout_ref.model.tokenizer_path", "/models/qwen"),
        ("actor_rollout_ref.rollout.trace.token2text", False),
        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
        ("data.prompt_key", "prompt"),
        ("trainer.hub_token", None),
        ("trainer.use_token", True),
        ("model.api_key", ""),
        ("actor_rollout_ref.model.path", "Qwen/Qwen3-8B"),
        ("keyboard.secretary", "x"),
    ],
)
def test_settings_that_only_look_like_it_stay(name, value):
    assert hide(name, value) == value
    assert hide_words([f"{name}={value}"]) == (f"{name}={value}",)


def test_a_long_number_below_a_tokens_name_may_be_one():
    assert hide("chat.token", 123456) == 123456
    assert hide("chat.token", 12345678901234) == HIDDEN
    assert hide("chat.token", "12345678901234") == HIDDEN


@pytest.mark.parametrize(
    "words",
    [
        ["env", f"HF_TOKEN={SECRET}", "python3"],
        ["python3", "-m", "m", f"+trainer.wandb.api_key={SECRET}"],
        ["train.py", "--hub-token", SECRET, "--lr", "1"],
        ["train.py", f"--hub_token={SECRET}"],
        ["ray", "job", "submit", f'--runtime-env-json={{"env_vars": {{"WANDB_API_KEY": "{SECRET}"}}}}'],
        ["ray", "job", "submit", "--runtime-env-json", f'{{"env_vars": {{"HF_TOKEN":"{SECRET}", "A": "b"}}}}'],
        ["bash", "-c", f"export HF_TOKEN={SECRET}; python3 -m m"],
        ["bash", "-c", f"HF_TOKEN='{SECRET}' python3 -m m"],
        ["python3", "-m", "m", f"store={{endpoint: x, password: {SECRET}}}"],
        ["python3", "-m", "m", f"store.url='https://user:{SECRET}@host/path'"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["sh", "-c", f'python -m m "x={{\\"api_key\\": \\"{SECRET}\\"}}"'],
    ],
)
def test_command_lines_lose_their_secrets(words):
    hidden = hide_words(words)
    assert SECRET not in " ".join(hidden)
    assert HIDDEN in " ".join(hidden)
    assert hidden[0] == words[0]
    assert hide_words(hidden) == hidden


@pytest.mark.parametrize(
    "value",
    [
        "hf_" + "a" * 20,
        "ghp_" + "A1" * 15,
        "sk-" + "a" * 24,
        "AKIA" + "A" * 16,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)
def test_keys_are_known_by_their_shape_whatever_their_name(value):
    assert value not in hide_words([f"x={value}"])[0]
    assert hide("notes", value) == HIDDEN


def test_plain_text_stays():
    text = "python3 -m verl.trainer.main_ppo data.train_files=['/a.parquet'] trainer.nnodes=4 s3://bucket/key"
    assert hide_text(text) == text
