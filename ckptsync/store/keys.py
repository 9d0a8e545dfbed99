"""The names of objects: where each thing of a run lives, and how its name is read back. Pure functions.

```
<run>/run.json
<run>/chunks/ab/<blake3>[.<suffix>]
<run>/steps/<step:012d>/parts/<node>@<digest>.json.zst
<run>/steps/<step:012d>/{wanted, ready}/<node>@<digest>
<run>/steps/<step:012d>/commits/<digest>.json
<run>/gc/<n:06d>/{list, sweep}
<run>/pins/<commit or part digest>
<run>/tags/<commit or part digest>/<name>
<run>/bad/<commit digest>
<run>/attempts/<attempt>/<round:06d>/{decision.json, offers/<node>.json, withdrawn/<node>@<digest>}
<run>/attempts/<attempt>/<round:06d>/{progress, done}/<node>
<run>/attempts/<attempt>/<round:06d>/peers/<node>@<address>
<run>/attempts/<attempt>/launches/<started_ns:020d>@<node>/{record.json, alive, ended.json, <name>.json}
<run>/attempts/<attempt>/preflight/<set:06d>/{outcome, <node>.json, <node>.seen}
<run>/probes/<node>
<run>/probes/contract@<node>/<name>
```

Names that users choose (run, node) are percent-encoded. Prefixes carry no trailing slash; a store lists
`prefix + "/"`, so that run-1 never sees run-10.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

__all__ = [
    "COMPONENT_CHARS_MAX",
    "KEY_CHARS_MAX",
    "Kind",
    "attempt_prefix",
    "attempts_prefix",
    "bad_key",
    "bad_prefix",
    "check",
    "check_prefix",
    "chunk_key",
    "chunks_prefix",
    "commit_key",
    "contract_prefix",
    "decision_key",
    "done_key",
    "gc_prefix",
    "is_valid",
    "kind_of",
    "launch_key",
    "list_key",
    "offer_key",
    "parse_commit",
    "parse_launch",
    "parse_number",
    "parse_step",
    "part_key",
    "peer_key",
    "pin_key",
    "pins_prefix",
    "probe_key",
    "progress_key",
    "quote_name",
    "ready_key",
    "round_prefix",
    "run_key",
    "step_prefix",
    "steps_prefix",
    "sweep_key",
    "tag_key",
    "tags_prefix",
    "unquote_name",
    "wanted_key",
    "withdrawn_key",
]

Kind = Literal["commit", "part", "ready", "chunk"]

KEY_CHARS_MAX = 1024  # what S3, GCS and Azure allow
COMPONENT_CHARS_MAX = 238  # NAME_MAX 255, less the "#" and 16 hex digits of a temporary name
_COMPONENT = re.compile(rf"(?!\.\.?\Z)[A-Za-z0-9._@%-]{{1,{COMPONENT_CHARS_MAX}}}")
_STEP = re.compile(r"[0-9]{12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK = re.compile(r"[0-9a-f]{64}(\.[A-Za-z0-9]{1,32})?")
_STEP_MAX = 10**12
_NUMBER = re.compile(r"[0-9]{6}")
_NUMBER_MAX = 10**6
_LAUNCH = re.compile(r"launches/([0-9]{20})@([^/]+)/([a-z][a-z0-9-]{0,40}(?:\.json)?)")
_TIME_MAX = 2**63
_BELOW_STEP = re.compile(
    r"[0-9]{12}/(?:(?P<commit>commits/[0-9a-f]{64}\.json)"
    r"|(?P<part>parts/[^/@]+@[0-9a-f]{64}\.json\.zst)|(?P<ready>(?:ready|wanted)/[^/@]+@[0-9a-f]{64}))"
)


def is_valid(key: str) -> bool:
    """Whether `key` could be one of ours: relative, one spelling, allowed characters, not too long."""
    return len(key) <= KEY_CHARS_MAX and all(_COMPONENT.fullmatch(part) for part in key.split("/"))


def check(key: str) -> str:
    """Return `key` if it is valid.

    Raises:
        ValueError: it is not; a bug of the caller, or a hostile listing.
    """
    if not is_valid(key):
        msg = f"not a valid key: {key[:KEY_CHARS_MAX]!r}"
        raise ValueError(msg)
    return key


def check_prefix(prefix: str) -> str:
    """Like `check`; "" is the whole store."""
    return check(prefix) if prefix else prefix


@functools.lru_cache(1024)  # of the few names of a run, one is asked for with every key of a list
def quote_name(name: str) -> str:
    """A run's or node's name as one component: all but A-Z a-z 0-9 . _ - is percent-encoded.

    Raises:
        ValueError: empty, or too long for a component.
    """
    text = quote_from_bytes(os.fsencode(name), safe="").replace("~", "%7E")
    if text in (".", ".."):
        text = text.replace(".", "%2E")
    if not _COMPONENT.fullmatch(text):
        msg = f"not usable as a name in the store: {name[:COMPONENT_CHARS_MAX]!r}"
        raise ValueError(msg)
    return text


def unquote_name(text: str) -> str:
    """The inverse of `quote_name`, and of the `<node>@<digest>` of parts and marks (one bare @ stays an @).

    Raises:
        ValueError: a spelling that we would not have produced.
    """
    head, at, tail = text.rpartition("@")
    return _unquote(head) + at + _unquote(tail) if at else _unquote(text)


def _unquote(text: str) -> str:
    name = os.fsdecode(unquote_to_bytes(text.encode("ascii", "replace")))
    if not name or quote_name(name) != text:
        msg = f"not a name as we spell it: {text!r}"
        raise ValueError(msg)
    return name


def run_key(run: str) -> str:
    """The object that carries the run's random id and format version."""
    return f"{quote_name(run)}/run.json"


def chunks_prefix(run: str) -> str:
    """Below it: every chunk of a run."""
    return f"{quote_name(run)}/chunks"


def chunk_key(run: str, chunk: str) -> str:
    """Where a chunk lives; `chunk` is `<blake3>[.<suffix>]`. Raises ValueError for anything else."""
    if not _CHUNK.fullmatch(chunk):
        msg = f"not a chunk's name: {chunk!r}"
        raise ValueError(msg)
    return f"{chunks_prefix(run)}/{chunk[:2]}/{chunk}"


def steps_prefix(run: str) -> str:
    """Below it: one component per step."""
    return f"{quote_name(run)}/steps"


def step_prefix(run: str, step: int) -> str:
    """Below it: the parts, marks and commits of one step. Raises ValueError for a number out of range."""
    if not 0 <= step < _STEP_MAX:
        msg = f"step {step} is out of range"
        raise ValueError(msg)
    return f"{steps_prefix(run)}/{step:012d}"


def part_key(run: str, step: int, part: str) -> str:
    """Where a part lives; `part` is `<node>@<digest>`."""
    return f"{step_prefix(run, step)}/parts/{_part_name(part)}.json.zst"


def ready_key(run: str, step: int, part: str) -> str:
    """Where it is noted that the store has every chunk of a part."""
    return f"{step_prefix(run, step)}/ready/{_part_name(part)}"


def wanted_key(run: str, step: int, part: str) -> str:
    """Where it is noted that the node of a part uploads it: the others upload theirs of that save, too."""
    return f"{step_prefix(run, step)}/wanted/{_part_name(part)}"


def commit_key(run: str, step: int, digest: str) -> str:
    """Where a commit lives; without one there is no step in the store."""
    return f"{step_prefix(run, step)}/commits/{_digest(digest)}.json"


def gc_prefix(run: str) -> str:
    """Below it: one component per collection."""
    return f"{quote_name(run)}/gc"


def list_key(run: str, number: int) -> str:
    """What a collection announces to delete. Raises ValueError for a number out of range."""
    return f"{_collection(run, number)}/list"


def sweep_key(run: str, number: int) -> str:
    """What a collection deletes. Raises ValueError for a number out of range."""
    return f"{_collection(run, number)}/sweep"


def pins_prefix(run: str) -> str:
    """Below it: one object per pinned save."""
    return f"{quote_name(run)}/pins"


def pin_key(run: str, digest: str) -> str:
    """Says that a commit, or every commit of a part, is never to be deleted. Raises ValueError for no digest."""
    return f"{pins_prefix(run)}/{_digest(digest)}"


def tags_prefix(run: str) -> str:
    """Below it: one component per tagged save."""
    return f"{quote_name(run)}/tags"


def tag_key(run: str, digest: str, name: str) -> str:
    """A value that people gave to a commit, or to every commit of a part. Raises ValueError for no digest or name."""
    return f"{tags_prefix(run)}/{_digest(digest)}/{quote_name(name)}"


def bad_prefix(run: str) -> str:
    """Below it: one object per commit that cannot be restored."""
    return f"{quote_name(run)}/bad"


def bad_key(run: str, commit: str) -> str:
    """Says that a commit (its digest) cannot be restored. Raises ValueError for anything else."""
    return f"{bad_prefix(run)}/{_digest(commit)}"


def attempts_prefix(run: str) -> str:
    """Below it: one component per attempt."""
    return f"{quote_name(run)}/attempts"


def attempt_prefix(run: str, attempt: str) -> str:
    """Below it: one component per round. Raises ValueError for a name that cannot be one."""
    return f"{attempts_prefix(run)}/{quote_name(attempt)}"


def round_prefix(run: str, attempt: str, number: int) -> str:
    """Below it: what the nodes say in one round. Raises ValueError for a number out of range."""
    if not 0 < number < _NUMBER_MAX:
        msg = f"round {number} is out of range"
        raise ValueError(msg)
    return f"{attempt_prefix(run, attempt)}/{number:06d}"


def offer_key(run: str, attempt: str, number: int, node: str) -> str:
    """What a node says once in round `number`. Raises ValueError for a number out of range."""
    return f"{round_prefix(run, attempt, number)}/offers/{quote_name(node)}.json"


def withdrawn_key(run: str, attempt: str, number: int, part: str) -> str:
    """Says that the node of a part cannot upload it any more, though it offered to."""
    return f"{round_prefix(run, attempt, number)}/withdrawn/{_part_name(part)}"


def progress_key(run: str, attempt: str, number: int, node: str) -> str:
    """Replaced as long as a node uploads what it offered."""
    return f"{round_prefix(run, attempt, number)}/progress/{quote_name(node)}"


def peer_key(run: str, attempt: str, number: int, node: str, address: str) -> str:
    """Says where a node gives chunks to the others: `address` is `host:port`."""
    return f"{round_prefix(run, attempt, number)}/peers/{quote_name(node)}@{quote_name(address)}"


def decision_key(run: str, attempt: str, number: int) -> str:
    """What all nodes of a round do."""
    return f"{round_prefix(run, attempt, number)}/decision.json"


def done_key(run: str, attempt: str, number: int, node: str) -> str:
    """Says that a node has done what was decided."""
    return f"{round_prefix(run, attempt, number)}/done/{quote_name(node)}"


def contract_prefix(run: str, node: str) -> str:
    """Below it: what a node tries the store's promises with. No node's probe is spelled like this."""
    return f"{quote_name(run)}/probes/contract@{quote_name(node)}"


def launch_key(run: str, attempt: str, started_ns: int, node: str, name: str) -> str:
    """A document of a launch that began at `started_ns` (store time).

    Raises:
        ValueError: a time out of range, or a name that is not a-z, 0-9, - and perhaps `.json`.
    """
    below = f"launches/{started_ns:020d}@{quote_name(node)}/{name}"
    if not 0 <= started_ns < _TIME_MAX or _LAUNCH.fullmatch(below) is None:
        msg = f"not a document of a launch: {below!r}"
        raise ValueError(msg)
    return f"{attempt_prefix(run, attempt)}/{below}"


def parse_launch(run: str, key: str) -> tuple[str, int, str, str] | None:
    """(attempt, started_ns, node, name) of a full key that `launch_key` could have made; None for any other."""
    head, _, below = key.removeprefix(f"{attempts_prefix(run)}/").partition("/")
    found = _LAUNCH.fullmatch(below)
    if found is None:
        return None
    try:
        attempt, node = _unquote(head), _unquote(found[2])
        mine = launch_key(run, attempt, int(found[1]), node, found[3])
    except ValueError:
        return None
    return (attempt, int(found[1]), node, found[3]) if mine == key else None


def probe_key(run: str, node: str) -> str:
    """An object that only `node` writes, to learn the store's clock."""
    return f"{quote_name(run)}/probes/{quote_name(node)}"


def parse_step(component: str) -> int | None:
    """The step of a component below `steps_prefix`; None for a foreign name."""
    return int(component) if _STEP.fullmatch(component) else None


def parse_number(component: str) -> int | None:
    """The number of a component below `gc_prefix`, `attempt_prefix` or `preflight_prefix`; None for a foreign name."""
    return int(component) if _NUMBER.fullmatch(component) else None


def kind_of(run: str, key: str) -> Kind | None:
    """What a full key of `run` names, by its shape alone; None for anything else, of this run or not.

    "ready" stands for both marks of a part, also for `wanted`: they go with it.
    """
    below = key.removeprefix(f"{quote_name(run)}/")
    if below == key or not is_valid(key):
        return None
    area, _, rest = below.partition("/")
    if area == "chunks":
        head, _, name = rest.partition("/")
        return "chunk" if _CHUNK.fullmatch(name) and head == name[:2] else None
    found = _BELOW_STEP.fullmatch(rest) if area == "steps" else None
    if found is None:
        return None
    return "commit" if found["commit"] else "part" if found["part"] else "ready"


def parse_commit(component: str) -> str | None:
    """The digest of a component below `.../commits`; None for a foreign name."""
    digest = component.removesuffix(".json")
    return digest if _DIGEST.fullmatch(digest) else None


def _collection(run: str, number: int) -> str:
    if not 0 < number < _NUMBER_MAX:
        msg = f"collection {number} is out of range"
        raise ValueError(msg)
    return f"{gc_prefix(run)}/{number:06d}"


def _part_name(part: str) -> str:
    node, _, digest = part.rpartition("@")
    return f"{quote_name(node)}@{_digest(digest)}"


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        msg = f"not a digest: {text!r}"
        raise ValueError(msg)
    return text
