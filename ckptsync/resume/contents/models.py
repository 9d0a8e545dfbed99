"""What a model's directory holds: its architecture and its tokenizer, told by small files, without reading weights.

Trainers save the tokenizer through the library, which writes the same content in other words: another order of keys,
merges as pairs or as text, the chat template in a file of its own (transformers 4 to 5). So content is compared: what
gives a text its numbers, and where a tokenizer has none of it in JSON, the file's bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ckptsync.disk.read import FileSource
from ckptsync.resume.contents.step_json import object_at
from ckptsync.resume.settings import Settings

__all__ = ["PATH_NAMES", "architecture", "describe_model", "is_hub_id", "model_path", "tokenizer"]

PATH_NAMES = ("actor_rollout_ref.model.path", "model.path")
"""RL and SFT (verl 0.9.1, trainer/config/ppo_trainer.yaml, sft_trainer_engine.yaml)."""

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_SHAPE = frozenset(
    {
        "architectures",
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "kv_lora_rank",
        "model_type",
        "moe_intermediate_size",
        "n_routed_experts",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_local_experts",
        "q_lora_rank",
        "tie_word_embeddings",
        "vocab_size",
    }
)
"""Fields of config.json that give the model's tensors their names and shapes."""
_PARTS = ("text_config", "vision_config", "audio_config")
_BYTES = ("vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "vocab.txt")
_BYTES_MAX = 64 * 1024 * 1024
_WHOLE = "tokenizer.json"
_CONFIG = "config.json"


def is_hub_id(text: str, cwd: str) -> bool:
    """Whether a model's path looks like a name on a hub (`Qwen/Qwen3-8B`), and no such directory is below `cwd`."""
    return bool(_HUB_ID.fullmatch(text)) and not os.path.isdir(os.path.join(cwd, text))


def model_path(settings: Settings) -> str | None:
    """The model's path in a training's settings; None = not known."""
    found = (settings.get(name) for name in PATH_NAMES)
    return next((str(known.value) for known in found if known is not None and known.value is not None), None)


def describe_model(directory: str) -> Mapping[str, object]:
    """What a launch record keeps of a model's directory: `{architecture, tokenizer}`; nothing of what is unreadable."""
    shape, words = architecture(directory), tokenizer(directory)
    return {name: value for name, value in (("architecture", shape), ("tokenizer", words)) if value}


def architecture(directory: str) -> dict[str, object]:
    """The fields of config.json that decide names and shapes of tensors; those of a part as `part.field`."""
    document = object_at(os.path.join(directory, _CONFIG)) or {}
    found = {name: value for name, value in document.items() if name in _SHAPE}
    for part in _PARTS:
        inner = document.get(part)
        if isinstance(inner, dict):
            found.update({f"{part}.{name}": value for name, value in inner.items() if name in _SHAPE})
    return found


def tokenizer(directory: str) -> dict[str, str]:
    """What gives a text its numbers: name of the piece -> digest. Equal tokenizers agree in the names they share."""
    document = object_at(os.path.join(directory, _WHOLE))
    found = _pieces(document) if document is not None else {}
    for name in _BYTES:
        digest = _digest_file(os.path.join(directory, name))
        if digest and not _told(name, found):
            found[name] = digest
    return found


def _told(name: str, found: Mapping[str, str]) -> bool:
    """vocab.json and merges.txt repeat what tokenizer.json says."""
    return posixpath.splitext(name)[0] in found


def _pieces(document: Mapping[str, Any]) -> dict[str, str]:
    """The vocabulary, merges and added tokens of a tokenizer.json."""
    model = document.get("model")
    found = {}
    if isinstance(model, dict):
        if isinstance(model.get("vocab"), (dict, list)):
            found["vocab"] = _digest(model["vocab"])
        if isinstance(model.get("merges"), list):
            found["merges"] = _digest([item.split(" ") if isinstance(item, str) else item for item in model["merges"]])
    added = document.get("added_tokens")
    if isinstance(added, list):
        found["added_tokens"] = _digest(
            sorted((str(item.get("content")), str(item.get("id"))) for item in added if isinstance(item, dict))
        )
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _digest_file(path: str) -> str:
    """Empty if there is no such file, or none that can be read."""
    try:
        with FileSource(path) as source:
            if source.size > _BYTES_MAX:
                return ""
            return hashlib.sha256(source.read(0, _BYTES_MAX)).hexdigest()[:16]
    except OSError:
        return ""
